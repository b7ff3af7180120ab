//! Bounded queue of the fragments that came before the first one of their datagram.

use crate::dataplane::conntrack::Key;
use crate::ids::PortId;
use crate::limits::FRAGMENTS_WAITING_MAX;
use crate::xdp::Frame;

/// A waiting fragment.
pub(super) struct Waiter {
    /// Receiving port.
    pub port: PortId,
    /// Key of its datagram.
    pub key: Key,
    /// Hash of the key.
    pub hash: u64,
    /// End of its datagram's time.
    pub until_ms: u32,
    frame: Option<Frame>,
}

/// Waiting fragments of one worker.
pub(super) struct Waiting {
    waiters: Vec<Waiter>,
    /// Number of waiters that have their frame: the stages reserve places, and the worker fills them after
    /// the stages.
    filled: usize,
    max: usize,
}

impl Waiting {
    /// Makes a queue for at most a sixteenth of a worker's frames.
    pub(super) fn new(frames_total: usize) -> Waiting {
        let max = FRAGMENTS_WAITING_MAX.min(frames_total / 16);
        Waiting { waiters: Vec::with_capacity(max), filled: 0, max }
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Number of frames of waiting fragments.
    pub(super) fn frames(&self) -> usize {
        self.waiters.iter().filter_map(|waiter| waiter.frame.as_ref()).map(Frame::frames).sum()
    }

    /// Reserves a place. Returns false where there is none, or the port has half of all.
    pub(super) fn reserve(&mut self, port: PortId, key: &Key, hash: u64, until_ms: u32) -> bool {
        let own = self.waiters.iter().filter(|waiter| waiter.port == port).count();
        let fits = self.waiters.len() < self.max && own < self.max.div_ceil(2);
        if fits {
            self.waiters.push(Waiter { port, key: *key, hash, until_ms, frame: None });
        }
        fits
    }

    /// Fills the place that was reserved first among those without a frame.
    pub(super) fn fill(&mut self, frame: Frame) {
        self.waiters[self.filled].frame = Some(frame);
        self.filled += 1;
    }

    /// Removes up to `max` fragments for which `verdict` returns something, and hands each to `give`.
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
        // Between two batches every waiter has its frame.
        self.filled = self.waiters.len();
    }
}
