//! Bounded queue of frames that wait for another frame: fragments for the first one of their datagram, SYNs for the end of the
//! connection that has their ports.

use crate::dataplane::conntrack::Key;
use crate::ids::PortId;
use crate::xdp::Frame;

/// A waiting frame.
pub(crate) struct Waiter {
    /// Receiving port.
    pub port: PortId,
    /// Key of its datagram, or of its flow.
    pub key: Key,
    /// Hash of the key.
    pub hash: u64,
    /// End of its time.
    pub until_ms: u32,
    /// Of a SYN: epoch of conntrack in which it goes on, once that is known.
    pub epoch: Option<u64>,
    frame: Option<Frame>,
}

impl Waiter {
    /// Whether its time is over.
    pub(crate) fn is_past(&self, now_ms: u32) -> bool {
        now_ms.wrapping_sub(self.until_ms) as i32 >= 0
    }
}

/// Waiting frames of one worker.
#[derive(Default)]
pub(crate) struct Waiting {
    waiters: Vec<Waiter>,
    /// Number of waiters that have their frame: the stages reserve places, and the worker fills them after
    /// the stages.
    filled: usize,
    max: usize,
}

impl Waiting {
    /// Makes a queue of so many places.
    pub(crate) fn new(max: usize) -> Waiting {
        Waiting { waiters: Vec::with_capacity(max), filled: 0, max }
    }

    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Whether a SYN waits for nothing but the end of other workers' batches.
    pub(crate) fn has_epoch(&self) -> bool {
        self.waiters.iter().any(|waiter| waiter.epoch.is_some())
    }

    /// Number of frames of waiting packets.
    pub(crate) fn frames(&self) -> usize {
        self.waiters.iter().filter_map(|waiter| waiter.frame.as_ref()).map(Frame::frames).sum()
    }

    /// Reserves a place. Returns false where there is none, or the port has half of all.
    pub(crate) fn reserve(&mut self, port: PortId, key: &Key, hash: u64, until_ms: u32) -> bool {
        let own = self.waiters.iter().filter(|waiter| waiter.port == port).count();
        let fits = self.waiters.len() < self.max && own < self.max.div_ceil(2);
        if fits {
            self.waiters.push(Waiter { port, key: *key, hash, until_ms, epoch: None, frame: None });
        }
        fits
    }

    /// Fills the place that was reserved first among those without a frame.
    pub(crate) fn fill(&mut self, frame: Frame) {
        self.waiters[self.filled].frame = Some(frame);
        self.filled += 1;
    }

    /// Gives the frames of a closed port to `free`.
    pub(crate) fn close_port(&mut self, port: PortId, mut free: impl FnMut(Frame)) {
        let is_of_port = |waiter: &mut Waiter| (waiter.port == port).then_some(());
        self.take(usize::MAX, is_of_port, |frame, _, ()| free(frame));
    }

    /// Removes up to `max` packets for which `verdict` returns something, and hands each to `give`.
    pub(crate) fn take<V>(
        &mut self,
        max: usize,
        mut verdict: impl FnMut(&mut Waiter) -> Option<V>,
        mut give: impl FnMut(Frame, PortId, V),
    ) {
        let (mut at, mut taken) = (0, 0);
        while at < self.waiters.len() && taken < max {
            let Some(verdict) = verdict(&mut self.waiters[at]) else {
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
