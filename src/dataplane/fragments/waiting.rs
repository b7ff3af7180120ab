//! Fragments that came before the first of their datagram, and wait for it.

use crate::dataplane::conntrack::Key;
use crate::ids::PortId;
use crate::limits::FRAGMENTS_WAITING_MAX;
use crate::xdp::Frame;

/// A fragment that waits.
pub(super) struct Waiter {
    /// The port that it came from.
    pub port: PortId,
    /// Its datagram.
    pub key: Key,
    /// Hash of that.
    pub hash: u64,
    /// When its datagram is given up.
    pub until_ms: u32,
    frame: Option<Frame>,
}

/// All of one worker.
pub(super) struct Waiting {
    waiters: Vec<Waiter>,
    /// Of those, the ones that have their frame: places are reserved in the stages and filled behind them.
    filled: usize,
    max: usize,
}

impl Waiting {
    /// Places for a share of a worker's frames.
    pub(super) fn new(frames_total: usize) -> Waiting {
        let max = FRAGMENTS_WAITING_MAX.min(frames_total / 16);
        Waiting { waiters: Vec::with_capacity(max), filled: 0, max }
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Frames that those that wait lie in.
    pub(super) fn frames(&self) -> usize {
        self.waiters.iter().filter_map(|waiter| waiter.frame.as_ref()).map(Frame::frames).sum()
    }

    /// Reserves a place; false where there is none, or the port has its share.
    pub(super) fn reserve(&mut self, port: PortId, key: &Key, hash: u64, until_ms: u32) -> bool {
        let own = self.waiters.iter().filter(|waiter| waiter.port == port).count();
        let fits = self.waiters.len() < self.max && own < self.max.div_ceil(2);
        if fits {
            self.waiters.push(Waiter { port, key: *key, hash, until_ms, frame: None });
        }
        fits
    }

    /// Fills the place that was reserved first.
    pub(super) fn fill(&mut self, frame: Frame) {
        self.waiters[self.filled].frame = Some(frame);
        self.filled += 1;
    }

    /// Takes out every fragment for which `verdict` has something, and gives it to `give`, up to `max`.
    pub(super) fn take<V>(
        &mut self,
        max: usize,
        mut verdict: impl FnMut(&Waiter) -> Option<V>,
        mut give: impl FnMut(Frame, PortId, V),
    ) {
        let (mut at, mut taken) = (0, 0);
        while at < self.waiters.len() && taken < max {
            let Some(verdict) = verdict(&self.waiters[at]) else {
                at += 1;
                continue;
            };
            let waiter = self.waiters.swap_remove(at);
            taken += 1;
            if let Some(frame) = waiter.frame {
                give(frame, waiter.port, verdict);
            }
        }
        // Between two batches all have their frames.
        self.filled = self.waiters.len();
    }
}
