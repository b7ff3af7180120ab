//! Removal of flows, and reclamation of their slots when no worker can hold their numbers
//! (quiescent-state-based reclamation).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::super::entry::Entry;
use super::super::key::Key;
use super::super::parts::fence;
use super::super::state::{QuotaClass, Side};
use super::layout::Conntrack;
use super::slot::Slot;
use super::tags::{FREE, TOMBSTONE};
use crate::dataplane::stats::FlowEventQueue;
use crate::dataplane::{EndedFlow, FlowEnd, FlowEvent, FlowEventKind};
use crate::ids::{PortId, WorkerId};
use crate::limits::RETIRED_FLOWS_MAX;

/// State of one worker in the table: the slots that it has retired, and its position in the sweep.
pub(crate) struct WorkerState {
    pub(super) worker: usize,
    pub(super) workers: usize,
    /// Slots of removed flows, with the epoch of their removal.
    pub(super) retired: VecDeque<(u64, Slot)>,
    /// The bucket that the worker sweeps next.
    pub(super) cursor: usize,
    /// Number of flows that this worker inserted.
    pub inserted: u64,
    /// Number of flows that this worker removed.
    pub ended: u64,
    /// Of those, evicted before their timeout.
    pub evicted: u64,
    /// Queue of events, if somebody follows flows.
    pub events: Option<Arc<FlowEventQueue>>,
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
            events: None,
        }
    }
}

impl Conntrack {
    /// Ends the flow in a slot. Those who follow flows learn the reason; without one they learn nothing.
    pub(crate) fn remove(&self, slot: Slot, reason: Option<FlowEnd>, by: &mut WorkerState) {
        let entry = self.entry(slot);
        self.end_offload(slot);
        if by.retired.len() == RETIRED_FLOWS_MAX {
            return; // The sweep ends it a little later: its timeout has passed by then, or its policy denies it again.
        }
        let Some(key) = entry.key() else { return };
        self.end_cached_hop(slot);
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
        if let Some(events) = &by.events {
            self.note_end(events, (slot, &key), owner.port, reason);
        }
    }

    /// Ends the flow in a slot if it has this key. Returns false if it goes on for now, because the worker has retired as
    /// many flows as it may.
    pub(crate) fn remove_key(&self, slot: Slot, key: &Key, by: &mut WorkerState) -> bool {
        let has_key = || self.entry(slot).key() == Some(*key);
        if has_key() {
            self.remove(slot, Some(FlowEnd::Flushed), by);
        }
        !has_key()
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
        self.advance_epoch(by, epoch);
        while let Some(&(retired, slot)) = by.retired.front()
            && retired + 2 <= epoch
        {
            self.set_tag(slot, FREE);
            by.retired.pop_front();
        }
    }

    /// Begins the next epoch if every worker has seen `epoch`, the current one.
    fn advance_epoch(&self, by: &WorkerState, epoch: u64) {
        if self.seen_epochs[..by.workers].iter().all(|seen| seen.load(SeqCst) >= epoch) {
            let _ = self.reclaim_epoch.compare_exchange(epoch, epoch + 1, SeqCst, Relaxed);
        }
    }

    /// Epoch in which every worker has ended the batch that it is in now.
    pub(crate) fn epoch_after_batches(&self) -> u64 {
        self.reclaim_epoch.load(Acquire) + 2
    }

    /// Whether an epoch has begun. Waits for no worker: the caller asks again in its next batch.
    pub(crate) fn has_begun(&self, epoch: u64, by: &WorkerState) -> bool {
        let current = self.reclaim_epoch.load(Acquire);
        if current < epoch {
            self.advance_epoch(by, current);
        }
        current >= epoch
    }

    /// Takes a worker offline, which goes to sleep and holds no slot number: reclamation does not wait for
    /// it.
    pub(crate) fn offline(&self, by: &WorkerState) {
        self.seen_epochs[by.worker].store(u64::MAX, Release);
    }

    /// Tells those who want to know that the flow in a slot has ended. Those who follow flows know already of a connection
    /// that its ends have closed.
    #[cold]
    #[inline(never)]
    fn note_end(
        &self,
        events: &FlowEventQueue,
        (slot, key): (Slot, &Key),
        port: PortId,
        reason: Option<FlowEnd>,
    ) {
        let Some(reason) = reason else { return };
        let entry = self.entry(slot);
        let is_closed = entry.state().class() == QuotaClass::Ended;
        if !is_closed {
            events.add(event(FlowEventKind::Closed(reason), key, entry));
        }
        let reason = if is_closed { FlowEnd::Finished } else { reason };
        events.add_ended(EndedFlow { flow: self.count_of(slot, key, port, events.now_ms()), reason });
    }

    /// Describes the flow in a slot, which gives way to another connection on the same ports.
    #[cold]
    #[inline(never)]
    pub(crate) fn before_restart(&self, slot: Slot, key: &Key, now_ms: u32) -> EndedFlow {
        let port = self.entry(slot).quota_owner().map(|owner| owner.port).unwrap_or_default();
        EndedFlow { flow: self.count_of(slot, key, port, now_ms), reason: FlowEnd::Finished }
    }
}

/// Describes an event of the flow in an entry.
pub(crate) fn event(kind: FlowEventKind, key: &Key, entry: &Entry) -> FlowEvent {
    let key = key.flow(entry.sender(true) == Side::Initiator);
    FlowEvent { at_ms: 0, kind, key, state: entry.state().name(), counts: entry.counts() }
}
