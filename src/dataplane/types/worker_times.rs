//! Time that a worker spends, as the control side sees it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::WorkerId;

/// Durations by bucket: the longest one of each bucket that has counts, nanoseconds, and its count, in order.
pub type TimeCounts = Vec<(u64, u64)>;

/// Work and times of one worker since its start. Differences of two such reports describe the time between them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerTimes {
    /// Number of the worker.
    pub worker: WorkerId,
    /// Core that the worker is pinned to.
    pub core: usize,
    /// Nanoseconds since the start of the switch.
    pub clock_ns: u64,
    /// Frames taken from receive queues.
    pub received: u64,
    /// Batches with at least one frame.
    pub batches: u64,
    /// Turns of the worker's loop.
    pub turns: u64,
    /// Times that the worker went to sleep in the kernel.
    pub sleeps: u64,
    /// Nanoseconds of batches with received frames, or with frames that other workers have handed over.
    pub busy_ns: u64,
    /// Nanoseconds for which the worker was ready and another thread had its core (second field of
    /// `/proc/PID/task/TID/schedstat`); `None` if the kernel does not tell.
    pub waited_ns: Option<u64>,
    /// Nanoseconds of each part of the batches that were measured, one in 64.
    pub stages: Vec<StageTime>,
    /// Frames of those batches.
    pub stage_frames: u64,
    /// Time of received frames: from the reception of their batch to its end, at which they are in transmit rings, or
    /// handed over to another worker.
    pub latency: TimeCounts,
    /// Time of turns between which the worker did not sleep.
    pub turn_times: TimeCounts,
}

impl WorkerTimes {
    /// Work and times since an earlier report on the same worker.
    #[must_use]
    pub fn since(&self, earlier: &WorkerTimes) -> WorkerTimes {
        let stages = self.stages.iter().zip(&earlier.stages);
        WorkerTimes {
            clock_ns: self.clock_ns.saturating_sub(earlier.clock_ns),
            received: self.received.saturating_sub(earlier.received),
            batches: self.batches.saturating_sub(earlier.batches),
            turns: self.turns.saturating_sub(earlier.turns),
            sleeps: self.sleeps.saturating_sub(earlier.sleeps),
            busy_ns: self.busy_ns.saturating_sub(earlier.busy_ns),
            waited_ns: self.waited_ns.zip(earlier.waited_ns).map(|(now, then)| now.saturating_sub(then)),
            stages: stages
                .map(|(now, then)| StageTime { ns: now.ns.saturating_sub(then.ns), ..now.clone() })
                .collect(),
            stage_frames: self.stage_frames.saturating_sub(earlier.stage_frames),
            latency: counts_since(&self.latency, &earlier.latency),
            turn_times: counts_since(&self.turn_times, &earlier.turn_times),
            ..*self
        }
    }
}

fn counts_since(now: &TimeCounts, then: &TimeCounts) -> TimeCounts {
    let earlier: BTreeMap<u64, u64> = then.iter().copied().collect();
    let counts =
        now.iter().map(|(ns, count)| (*ns, count.saturating_sub(earlier.get(ns).copied().unwrap_or(0))));
    counts.filter(|(_, count)| *count > 0).collect()
}

/// Time of one part of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageTime {
    /// Name of the part.
    pub stage: String,
    /// Nanoseconds.
    pub ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_since_an_earlier_report_leave_out_what_it_had() {
        let (then, now) = (vec![(10, 4), (30, 1)], vec![(10, 4), (20, 2), (30, 6)]);
        assert_eq!(counts_since(&now, &then), [(20, 2), (30, 5)]);
        assert_eq!(counts_since(&now, &vec![]), now);
    }
}
