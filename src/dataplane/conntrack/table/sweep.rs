//! The sweep, which visits every flow in the background.

use super::super::entry::Entry;
use super::super::quota::ASSURED_IDLE_MAX_MS;
use super::layout::Conntrack;
use super::remove::WorkerState;
use super::slot::{BUCKET_SLOTS, Slot};
use super::tags::{BucketTags, TOMBSTONE};
use crate::dataplane::FlowEnd;

impl Conntrack {
    /// Ends flows that are idle, or for which `is_ended` returns true, in the next `buckets` buckets of this
    /// worker's share. Assures answered flows that were beyond their port's quota and are within it again, and those
    /// that have been silent for hours no longer.
    pub(crate) fn sweep(
        &self,
        buckets: usize,
        now_ms: u32,
        by: &mut WorkerState,
        is_ended: impl Fn(&Entry) -> bool,
    ) {
        for _ in 0..buckets {
            if by.cursor >= self.buckets.len() {
                by.cursor = by.worker;
                if by.cursor >= self.buckets.len() {
                    return;
                }
            }
            let next = by.cursor + by.workers;
            let next_tags = self.buckets.get(next).map(BucketTags::load);
            for position in 0..BUCKET_SLOTS {
                // Entries of the next bucket are loaded while this one is examined, so that the sweep does
                // not wait for each.
                if next_tags.is_some_and(|tags| tags.tag(position) > TOMBSTONE) {
                    self.entry(Slot::at(next, position)).prefetch(true, true);
                }
                let slot = Slot::at(by.cursor, position);
                if !self.holds_flow(slot) {
                    continue;
                }
                self.count_offloaded(slot, now_ms);
                if self.is_idle(slot, now_ms) {
                    self.remove(slot, Some(FlowEnd::Idle), by);
                } else if is_ended(self.entry(slot)) {
                    self.remove(slot, Some(FlowEnd::PodGone), by);
                } else if self.entry(slot).idle_ms(now_ms) >= ASSURED_IDLE_MAX_MS {
                    self.unassure(self.entry(slot));
                } else {
                    self.update_class(self.entry(slot));
                }
            }
            by.cursor = next;
        }
    }

    /// Number of buckets in each worker's share.
    pub(crate) fn buckets_per_worker(&self, by: &WorkerState) -> usize {
        self.buckets.len().div_ceil(by.workers)
    }
}
