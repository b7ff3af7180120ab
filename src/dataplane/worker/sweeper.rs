//! Removal of idle flows, and of flows of removed pods, a share of the flow table in each batch.

use crate::dataplane::conntrack::{Conntrack, Entry, WorkerState};
use crate::dataplane::fib::snapshot::Snapshot;

/// Time in which a worker checks each of its flows once.
const PERIOD_MS: u32 = 2000;
/// Most buckets in one batch, except in tables that take longer than the period with as many: no batch waits long for the sweep,
/// not even after a sleep.
const BUCKETS_MAX: u64 = 64;
/// Longest time that the sweep may be behind when the worker goes to sleep.
const LAG_MAX_MS: u32 = 1;

/// Progress of one worker's sweep.
pub(super) struct Sweeper {
    /// Time up to which the sweep has kept pace.
    swept_ms: u32,
}

/// Result of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Swept {
    /// It was not due.
    Nothing,
    /// A share of the table was swept.
    Share,
    /// A share of the table was swept, and a period has ended since the last one.
    LastOfPeriod,
}

impl Sweeper {
    pub(super) fn new() -> Sweeper {
        Sweeper { swept_ms: 0 }
    }

    /// Whether the sweep is behind. Sleep delays it further.
    pub(super) fn is_behind(&self, now_ms: u32) -> bool {
        now_ms.wrapping_sub(self.swept_ms) > LAG_MAX_MS
    }

    /// Sweeps the share that is due.
    pub(super) fn sweep(
        &mut self,
        now_ms: u32,
        conntrack: &Conntrack,
        worker_state: &mut WorkerState,
        snapshot: &Snapshot,
    ) -> Swept {
        let elapsed = now_ms.wrapping_sub(self.swept_ms);
        if elapsed == 0 {
            return Swept::Nothing;
        }
        let buckets = conntrack.buckets_per_worker(worker_state) as u64;
        let due = buckets * u64::from(elapsed.min(PERIOD_MS)) / u64::from(PERIOD_MS) + 1;
        let share = due.min(BUCKETS_MAX.max(buckets / u64::from(PERIOD_MS) + 1));
        // The rest is due in the next batch.
        let left = ((due - share) * u64::from(PERIOD_MS) / buckets) as u32;
        let swept_ms = now_ms.wrapping_sub(left.min(elapsed - 1));
        let period_ended = swept_ms / PERIOD_MS != self.swept_ms / PERIOD_MS;
        self.swept_ms = swept_ms;
        // A worker that is a generation ahead may have evaluated a flow of a pod that this snapshot does not have yet.
        conntrack.sweep(share as usize, now_ms, worker_state, |entry| {
            entry.policy_epoch_is_before(snapshot.pod_removed) && is_of_removed_pod(entry, snapshot, now_ms)
        });
        if period_ended { Swept::LastOfPeriod } else { Swept::Share }
    }
}

/// Whether an end of a flow was a pod of this node when the flow was evaluated, and that pod has left its address. Not while the pod may
/// still be attached again after a restart of the switch.
fn is_of_removed_pod(entry: &Entry, snapshot: &Snapshot, now_ms: u32) -> bool {
    let flow_word = entry.flow_word(true);
    let epoch = flow_word.policy_epoch();
    let is_removed = |end, was_pod| was_pod && !snapshot.is_same_endpoint(end, was_pod, epoch);
    let [low_was_pod, high_was_pod] = flow_word.pods();
    (low_was_pod || high_was_pod)
        && entry.key().is_some_and(|key| {
            let ends = [(key.low(), low_was_pod), (key.high(), high_was_pod)];
            ends.into_iter().any(|(end, was_pod)| is_removed(end, was_pod))
                && !snapshot.awaits_endpoints(ends, epoch, now_ms)
        })
}
