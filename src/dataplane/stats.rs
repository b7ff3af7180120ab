//! Counters with one writer, a worker, and any number of readers.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::dataplane::{DropReason, PortCounters};
use crate::ids::PortId;
use crate::limits::PORTS_MAX;

const REASONS: usize = DropReason::ALL.len();

/// Counter with one writer: an increment is a load and a store, without a locked instruction.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds to the counter. Only the writer calls this.
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of one worker for one port.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct PortStats {
    pub received: Counter,
    pub received_bytes: Counter,
    pub forwarded: Counter,
    pub consumed: Counter,
    pub transmitted: Counter,
    pub transmitted_bytes: Counter,
    pub drops: [Counter; REASONS],
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
    pub fragments_waiting: Counter,
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
            fragments_waiting: Counter::default(),
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
        all.into_iter().chain(sent).chain(&self.drops).for_each(|counter| counter.set(0));
    }

    /// Adds these counters to a sum over workers.
    pub(crate) fn add_to(&self, sum: &mut PortCounters) {
        sum.received += self.received.get();
        sum.received_bytes += self.received_bytes.get();
        sum.forwarded += self.forwarded.get();
        sum.consumed += self.consumed.get();
        sum.transmitted += self.transmitted.get();
        sum.transmitted_bytes += self.transmitted_bytes.get();
        for (reason, counter) in DropReason::ALL.iter().zip(&self.drops) {
            if counter.get() != 0 {
                *sum.drops.entry(reason.name().to_owned()).or_default() += counter.get();
            }
        }
    }
}
