//! Frames of a batch: those of the receive rings, and those that have waited for another frame.

use super::Worker;
use crate::dataplane::pipeline::batch::Disposition;
use crate::dataplane::pipeline::flow::early_syn;
use crate::dataplane::waiting::Waiter;
use crate::limits::{BATCH_FRAMES_MAX, PORT_BURST_FRAMES_MAX};

impl Worker {
    /// Fills the batch from the active ports. Returns the number of its frames.
    pub(super) fn receive(&mut self, now_ms: u32) -> usize {
        if self.batch.early_syns.len() > 0 {
            self.resume_early_syns(now_ms);
        }
        let (batch, shared) = (&mut self.batch, &self.shared.first_fragments);
        self.fragments.resume(BATCH_FRAMES_MAX - batch.len(), shared, now_ms, |frame, port, drop| {
            batch.resume(frame, port, drop.map_or(Disposition::Pending, Disposition::Dropped));
        });
        let reserve = self.fill_budget.reserve(self.ports.len());
        let target_max = self.fill_budget.target_max(self.ports.len());
        self.ports.rotate();
        for step in 0..self.ports.active_len() {
            let Some(port) = self.ports.active_from_first(step) else { continue };
            let start = self.batch.len();
            if start == BATCH_FRAMES_MAX {
                break;
            }
            let had = port.queue.receiving();
            let frames = &mut self.batch.frames;
            let count = if port.takes_segments {
                self.batch.has_virtio_headers = true;
                port.queue.receive_into(&mut self.umem, &mut self.free, frames, PORT_BURST_FRAMES_MAX)
            } else {
                port.queue.receive(&mut self.umem, frames, PORT_BURST_FRAMES_MAX)
            };
            port.idle_polls = if count > 0 { 0 } else { port.idle_polls.saturating_add(1) };
            if count > 0 {
                port.frames_since_arm += count;
                self.batch.note_received(start, port.id);
                self.fill_budget.grow(port, had, target_max);
                port.refill(&mut self.umem, &mut self.free, reserve);
            }
        }
        self.batch.len()
    }

    /// Adds SYNs that wait no longer to the batch.
    #[cold]
    #[inline(never)]
    fn resume_early_syns(&mut self, now_ms: u32) {
        let mut early_syns = std::mem::take(&mut self.batch.early_syns);
        let (batch, conntrack, flows) = (&mut self.batch, &self.shared.conntrack, &self.flows);
        let is_over =
            |waiter: &mut Waiter| early_syn::is_over(waiter, conntrack, flows, now_ms).then_some(());
        early_syns.take(BATCH_FRAMES_MAX - batch.len(), is_over, |frame, port, ()| {
            batch.resume(frame, port, Disposition::Pending);
        });
        self.batch.early_syns = early_syns;
        self.batch.has_virtio_headers |= self.ports.has_taps();
    }

    /// Number of SYNs that wait for the end of the connection that has their ports.
    pub(crate) fn early_syns(&self) -> usize {
        self.batch.early_syns.len()
    }
}
