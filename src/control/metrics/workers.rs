//! Metrics of the workers: what they did, and how long it took.

use std::collections::BTreeMap;

use super::exposition::Kind::{Counter, Gauge, Histogram};
use super::exposition::{Column, Exposition};
use crate::dataplane::{WorkerCounters, WorkerTimes};

/// Upper bounds of the buckets of latency: powers of two, nanoseconds. The workers' own buckets end there too.
const LATENCY_BOUNDS: [u64; 9] =
    [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26];

/// Describes the counters and times of the workers.
pub(super) fn describe(
    out: &mut Exposition,
    counters: &BTreeMap<String, WorkerCounters>,
    times: &[WorkerTimes],
) {
    out.columns(COUNTERS, "worker", counters);
    let mut busy = out.family(
        Counter,
        "palisade_worker_busy_seconds",
        "seconds",
        "Time of batches with packets. The rest is idle.",
    );
    for worker in times {
        busy.sample_nanos(&[("worker", &worker.worker.to_string())], worker.busy_ns);
    }
    let mut waited = out.family(
        Counter,
        "palisade_worker_waited_seconds",
        "seconds",
        "Time for which the worker was ready and another thread had its core.",
    );
    for (worker, ns) in times.iter().filter_map(|worker| Some((worker, worker.waited_ns?))) {
        waited.sample_nanos(&[("worker", &worker.worker.to_string())], ns);
    }
    let mut latency = out.family(
        Histogram,
        "palisade_worker_latency_seconds",
        "seconds",
        "Time of packets in the switch, from the reception of their batch to its transmission. The sum is exact to 7 %.",
    );
    for worker in times {
        latency.histogram("worker", &worker.worker.to_string(), &worker.latency, &LATENCY_BOUNDS);
    }
}

const COUNTERS: &[Column<WorkerCounters>] = &[
    Column {
        kind: Counter,
        name: "palisade_worker_received_packets",
        unit: "packets",
        help: "Packets that the worker has received.",
        value: |worker| worker.received,
    },
    Column {
        kind: Counter,
        name: "palisade_worker_batches",
        unit: "batches",
        help: "Batches with at least one packet.",
        value: |worker| worker.batches,
    },
    Column {
        kind: Counter,
        name: "palisade_worker_sleeps",
        unit: "sleeps",
        help: "Times that the worker went to sleep without packets.",
        value: |worker| worker.sleeps,
    },
    Column {
        kind: Gauge,
        name: "palisade_worker_umem_frames",
        unit: "frames",
        help: "Frames of the worker's UMEM.",
        value: |worker| worker.frames,
    },
    Column {
        kind: Gauge,
        name: "palisade_worker_free_frames",
        unit: "frames",
        help: "Frames of the UMEM that are neither in a ring nor in a batch.",
        value: |worker| worker.frames_free,
    },
    Column {
        kind: Gauge,
        name: "palisade_worker_waiting_fragments",
        unit: "fragments",
        help: "Fragments that wait for the first of their datagram.",
        value: |worker| worker.fragments_waiting,
    },
    Column {
        kind: Counter,
        name: "palisade_worker_entered_flows",
        unit: "flows",
        help: "Flows that the worker has inserted into the flow table.",
        value: |worker| worker.flows_entered,
    },
    Column {
        kind: Counter,
        name: "palisade_worker_ended_flows",
        unit: "flows",
        help: "Flows that the worker has removed from the flow table, evicted ones included.",
        value: |worker| worker.flows_ended,
    },
];
