//! Counters with one writer, a worker, and any number of readers.

mod counter;
mod drop_sampler;
mod flow_events;
mod stage_clock;
mod time_histogram;

pub(crate) use self::counter::Counter;
pub(crate) use self::drop_sampler::DropSampler;
pub(crate) use self::flow_events::{FlowEventQueue, FlowEventQueues};
pub(crate) use self::stage_clock::{PARTS, StageTimes};
pub(crate) use self::time_histogram::TimeHistogram;

use crate::dataplane::{DropReason, PortCounters};
use crate::ids::PortId;
use crate::limits::PORTS_MAX;

const REASONS: usize = DropReason::ALL.len();

/// Counters of one worker for one port.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct PortStats {
    pub received: Counter,
    pub received_bytes: Counter,
    /// Segments of received packets beyond the first of each.
    pub received_segments: Counter,
    pub forwarded: Counter,
    pub consumed: Counter,
    pub transmitted: Counter,
    pub transmitted_bytes: Counter,
    /// Segments of transmitted packets beyond the first of each.
    pub transmitted_segments: Counter,
    pub drops: [Counter; REASONS],
}

impl Default for PortStats {
    fn default() -> PortStats {
        PortStats {
            received: Counter::new(),
            received_bytes: Counter::new(),
            received_segments: Counter::new(),
            forwarded: Counter::new(),
            consumed: Counter::new(),
            transmitted: Counter::new(),
            transmitted_bytes: Counter::new(),
            transmitted_segments: Counter::new(),
            drops: [const { Counter::new() }; REASONS],
        }
    }
}

/// Counters of one worker.
pub(crate) struct WorkerStats {
    ports: Box<[PortStats]>,
    /// Iterations of the worker's loop. The count rises while the worker is not stuck, several times between
    /// two sleeps.
    pub turns: Counter,
    pub received: Counter,
    pub batches: Counter,
    pub sleeps: Counter,
    pub flows_entered: Counter,
    pub flows_ended: Counter,
    pub flows_evicted: Counter,
    pub frames: Counter,
    pub frames_free: Counter,
    pub frames_in_rings: Counter,
    pub fragments_waiting: Counter,
    /// Nanoseconds of batches with received or handed-over frames.
    pub busy_nanos: Counter,
    /// Id of the worker's thread, zero before it runs.
    pub thread: Counter,
    /// Time of received frames: from the reception of their batch to its end.
    pub latency: TimeHistogram,
    /// Time of turns between which the worker did not sleep.
    pub turn_times: TimeHistogram,
    /// Time of the stages.
    pub stages: StageTimes,
    /// Samples of dropped frames.
    pub drop_samples: DropSampler,
}

impl WorkerStats {
    pub(crate) fn new() -> WorkerStats {
        WorkerStats {
            ports: (0..PORTS_MAX).map(|_| PortStats::default()).collect(),
            turns: Counter::default(),
            received: Counter::default(),
            batches: Counter::default(),
            sleeps: Counter::default(),
            flows_entered: Counter::default(),
            flows_ended: Counter::default(),
            flows_evicted: Counter::default(),
            frames: Counter::default(),
            frames_free: Counter::default(),
            frames_in_rings: Counter::default(),
            fragments_waiting: Counter::default(),
            busy_nanos: Counter::default(),
            thread: Counter::default(),
            latency: TimeHistogram::new(),
            turn_times: TimeHistogram::new(),
            stages: StageTimes::default(),
            drop_samples: DropSampler::new(),
        }
    }

    /// Counters of a port.
    #[inline]
    pub(crate) fn port(&self, port: PortId) -> &PortStats {
        &self.ports[port.index()]
    }
}

impl PortStats {
    /// Counts a drop.
    #[inline]
    pub(crate) fn drop(&self, reason: DropReason) {
        self.drops[reason as usize].add(1);
    }

    /// Resets all counters: the port number is given to another interface.
    pub(crate) fn clear(&self) {
        let all = [&self.received, &self.received_bytes, &self.forwarded, &self.consumed];
        let sent = [&self.transmitted, &self.transmitted_bytes];
        let segments = [&self.received_segments, &self.transmitted_segments];
        all.into_iter().chain(sent).chain(segments).chain(&self.drops).for_each(|counter| counter.set(0));
    }

    /// Adds these counters to a sum over workers.
    pub(crate) fn add_to(&self, sum: &mut PortCounters) {
        sum.received += self.received.get();
        sum.received_bytes += self.received_bytes.get();
        sum.received_on_wire += self.received.get() + self.received_segments.get();
        sum.forwarded += self.forwarded.get();
        sum.consumed += self.consumed.get();
        sum.transmitted += self.transmitted.get();
        sum.transmitted_bytes += self.transmitted_bytes.get();
        sum.transmitted_on_wire += self.transmitted.get() + self.transmitted_segments.get();
        for (reason, counter) in DropReason::ALL.iter().zip(&self.drops) {
            if counter.get() != 0 {
                *sum.drops.entry(reason.name().to_owned()).or_default() += counter.get();
            }
        }
    }
}
