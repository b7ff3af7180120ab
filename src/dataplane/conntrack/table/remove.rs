//! Removal of flows, and reclamation of their slots when no worker can hold their numbers
//! (quiescent-state-based reclamation).

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::super::parts::fence;
use super::layout::Conntrack;
use super::slot::Slot;
use super::tags::{FREE, TOMBSTONE};
use crate::ids::WorkerId;
use crate::limits::RETIRED_FLOWS_MAX;

/// State of one worker in the table: the slots that it has retired, and its position in the sweep.
pub(crate) struct WorkerState {
    pub(super) worker: usize,
    pub(super) workers: usize,
    /// Slots of removed flows, with the epoch of their removal.
    retired: VecDeque<(u64, Slot)>,
    /// The bucket that the worker sweeps next.
    pub(super) cursor: usize,
    /// Number of flows that this worker inserted.
    pub inserted: u64,
    /// Number of flows that this worker removed.
    pub ended: u64,
    /// Of those, evicted before their timeout.
    pub evicted: u64,
}

impl WorkerState {
    /// The state of worker `worker` of `workers`.
    pub(crate) fn new(worker: WorkerId, workers: usize) -> WorkerState {
        WorkerState {
            worker: worker.index(),
            workers,
            retired: VecDeque::with_capacity(RETIRED_FLOWS_MAX),
            cursor: worker.index(),
            inserted: 0,
            ended: 0,
            evicted: 0,
        }
    }
}

impl Conntrack {
    /// Ends the flow in a slot.
    pub(crate) fn remove(&self, slot: Slot, by: &mut WorkerState) {
        let entry = self.entry(slot);
        if by.retired.len() == RETIRED_FLOWS_MAX {
            return; // The sweep ends it a little later: its timeout has passed by then, or its policy denies it again.
        }
        let Some(key) = entry.key() else { return };
        let Some(owner) = entry.unpublish() else { return };
        self.quotas.remove(owner);
        let first = self.first_bucket(self.hash(&key));
        if slot.bucket() != first {
            self.add_overflow(first, -1);
        }
        self.set_tag(slot, TOMBSTONE);
        // A worker whose batch does not yet see the end of the flow has let its epoch be seen before: see
        // `start_batch`.
        fence(SeqCst);
        by.retired.push_back((self.reclaim_epoch.load(Acquire), slot));
        by.ended += 1;
    }

    /// Reports a quiescent state of a worker. A worker calls it before each batch.
    #[inline]
    pub(crate) fn start_batch(&self, by: &mut WorkerState) {
        let epoch = self.reclaim_epoch.load(Acquire);
        self.seen_epochs[by.worker].store(epoch, SeqCst);
        // The batch reads no slot number before the other workers can see that it has begun.
        fence(SeqCst);
        if by.retired.is_empty() {
            return;
        }
        if self.seen_epochs[..by.workers].iter().all(|seen| seen.load(SeqCst) >= epoch) {
            let _ = self.reclaim_epoch.compare_exchange(epoch, epoch + 1, SeqCst, Relaxed);
        }
        while let Some(&(retired, slot)) = by.retired.front()
            && retired + 2 <= epoch
        {
            self.set_tag(slot, FREE);
            by.retired.pop_front();
        }
    }

    /// Takes a worker offline, which goes to sleep and holds no slot number: reclamation does not wait for
    /// it.
    pub(crate) fn offline(&self, by: &WorkerState) {
        self.seen_epochs[by.worker].store(u64::MAX, Release);
    }
}
