//! Insertion of flows.

use std::sync::atomic::Ordering::SeqCst;

use super::super::entry::{NewFlow, QuotaOwner};
use super::super::key::Key;
use super::super::parts::fence;
use super::layout::Conntrack;
use super::placement::{SPARE_SLOTS, is_crowded};
use super::remove::{WorkerState, event};
use super::slot::Slot;
use super::tags::tag_of;
use crate::dataplane::FlowEventKind;
use crate::dataplane::stats::FlowEventQueue;

/// Outcome of an insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InsertOutcome {
    /// The flow is in this slot.
    Inserted(Slot),
    /// Another worker has inserted the same flow at the same time, into this slot.
    Exists(Slot),
    /// The table has no slot for the flow.
    Full,
}

impl Conntrack {
    /// Inserts a flow that a lookup has not found in this batch.
    pub(crate) fn insert(
        &self,
        key: &Key,
        hash: u64,
        flow: &NewFlow,
        now_ms: u32,
        by: &mut WorkerState,
    ) -> InsertOutcome {
        let (first, second) = (self.first_bucket(hash), self.second_bucket(hash));
        let mut buckets = [first, second];
        // Tags of the second bucket are another cache line: they are read only where the first one has no
        // slots to spare.
        if is_crowded(self.free_in(first)) {
            if self.is_crowded_beside(first, second) {
                buckets.reverse();
            }
            let free = self.free_in(first).count_ones() + self.free_in(second).count_ones();
            if free <= SPARE_SLOTS && !self.evict_for(buckets, free, flow.owner_port, now_ms, by) {
                return InsertOutcome::Full;
            }
        }
        let [preferred, other] = buckets;
        let at = self.primary_slot(hash).position();
        let claimed = self.claim(preferred, at, tag_of(hash)).or_else(|| self.claim(other, at, tag_of(hash)));
        let Some(slot) = claimed else {
            self.evict_for(buckets, 0, flow.owner_port, now_ms, by);
            return InsertOutcome::Full;
        };
        if slot.bucket() == second {
            self.add_overflow(first, 1);
        }
        self.quotas.add(QuotaOwner::unassured(flow.owner_port));
        self.note_opened(slot, now_ms);
        if let Some(virtual_end) = flow.virtual_end {
            self.virtual_ends[slot.0 as usize].set(virtual_end);
        }
        self.entry(slot).publish(key, flow, now_ms);
        by.inserted += 1;
        // Of a single worker no other one can have published the key since the lookup.
        let outcome = if by.workers == 1 {
            InsertOutcome::Inserted(slot)
        } else {
            self.resolve_duplicate(key, hash, slot, by)
        };
        if let Some(events) = &by.events {
            self.note_insert(events, key, outcome);
        }
        outcome
    }

    /// Tells those who follow flows of a new one.
    #[cold]
    #[inline(never)]
    fn note_insert(&self, events: &FlowEventQueue, key: &Key, outcome: InsertOutcome) {
        if let InsertOutcome::Inserted(slot) = outcome {
            events.add(event(FlowEventKind::Opened, key, self.entry(slot)));
        }
    }

    /// Restarts the flow in a slot, with a new evaluation: the port pair is used again, perhaps opened by its
    /// other side. The virtual end stays, which other workers may read.
    pub(crate) fn restart(&self, slot: Slot, flow: &NewFlow, now_ms: u32) {
        self.end_offload(slot);
        let entry = self.entry(slot);
        let owner = QuotaOwner::unassured(flow.owner_port);
        self.quotas.add(owner);
        // A flow that another worker has ended meanwhile counts against no port.
        self.quotas.remove(entry.replace_quota_owner(None, owner).unwrap_or(owner));
        self.note_opened(slot, now_ms);
        entry.restart(flow, now_ms);
    }

    fn claim(&self, bucket: usize, preferred: usize, tag: u8) -> Option<Slot> {
        Some(Slot::at(bucket, self.buckets[bucket].claim(preferred, tag)?))
    }

    /// Leaves one entry of a key that two workers have published at once: the one that comes first in lookup
    /// order.
    fn resolve_duplicate(&self, key: &Key, hash: u64, ours: Slot, by: &mut WorkerState) -> InsertOutcome {
        // The fence stands between our publication and our search: of two workers that publish at once, at
        // least one sees the other's flow.
        fence(SeqCst);
        let mut before = None;
        let mut passed_ours = false;
        for bucket in [self.first_bucket(hash), self.second_bucket(hash)] {
            for slot in self.slots_tagged(bucket, tag_of(hash)) {
                if slot == ours {
                    passed_ours = true;
                } else if self.entry(slot).matches(key, true) {
                    if passed_ours {
                        self.remove(slot, None, by);
                    } else {
                        before = Some(slot);
                    }
                }
            }
        }
        match before {
            None => InsertOutcome::Inserted(ours),
            Some(theirs) => {
                self.remove(ours, None, by);
                InsertOutcome::Exists(theirs)
            }
        }
    }
}
