//! Overview of a running switch: sums of its counters, times of its workers, and the last denied packets.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::control::protocol::{DropRecord, Status};
use crate::control::{DropQuery, Switch};
use crate::dataplane::{DropReason, LOSSES, TimeCounts, WorkerTimes};
use crate::ids::WorkerId;
use crate::net::flow::FlowKey;
use crate::tables::PodName;

/// Denied packets of an overview, at most.
const DENIALS_MAX: usize = 100;

/// State of a switch at one moment. Differences of two overviews give rates.
#[derive(Serialize)]
pub(super) struct Overview {
    /// Milliseconds since 1970.
    at_unix_ms: u64,
    status: Status,
    /// Workers that do not run, and conditions that keep the switch from forwarding, one sentence each.
    not_ready: Vec<String>,
    totals: Totals,
    /// Frames by reason of their drop, for each reason that has occurred.
    drops: Vec<Count>,
    /// Frames that the kernel lost before the switch, by place.
    lost: Vec<Count>,
    workers: Vec<Work>,
    /// Time of frames in the switch, of all workers.
    latency: TimeCounts,
    /// Samples of packets that policy denied, the last one first.
    denials: Vec<Denial>,
    /// Number of the last recorded drop, denied by policy or not.
    recorded: u64,
}

/// Sums over all ports that are open.
#[derive(Default, Serialize)]
struct Totals {
    ports: usize,
    received: u64,
    received_bytes: u64,
    forwarded: u64,
    consumed: u64,
    transmitted: u64,
    transmitted_bytes: u64,
    dropped: u64,
    lost: u64,
    flows: u64,
}

/// Frames with a common fate.
#[derive(Serialize)]
struct Count {
    name: String,
    meaning: &'static str,
    frames: u64,
}

/// Work of one worker since its start.
#[derive(Serialize)]
struct Work {
    worker: WorkerId,
    core: usize,
    clock_ns: u64,
    busy_ns: u64,
    waited_ns: Option<u64>,
    received: u64,
    batches: u64,
}

/// Packet that policy denied.
#[derive(Serialize)]
struct Denial {
    at_unix_ms: u64,
    reason: DropReason,
    port: String,
    flow: Option<FlowKey>,
    source_pod: Option<PodName>,
    destination_pod: Option<PodName>,
    decided_by: Option<String>,
}

impl Overview {
    pub(super) fn of(switch: &Switch) -> Overview {
        let counters = switch.counters();
        let (mut totals, mut drops, mut lost) = (Totals::default(), BTreeMap::new(), BTreeMap::new());
        for port in counters.ports.values() {
            totals.ports += 1;
            totals.received += port.received;
            totals.received_bytes += port.received_bytes;
            totals.forwarded += port.forwarded;
            totals.consumed += port.consumed;
            totals.transmitted += port.transmitted;
            totals.transmitted_bytes += port.transmitted_bytes;
            totals.flows += port.flows_assured + port.flows_unassured;
            add(&mut drops, &port.drops);
            add(&mut lost, &port.lost);
        }
        (totals.dropped, totals.lost) = (drops.values().sum(), lost.values().sum());
        let times = switch.worker_times();
        let (denials, recorded) = denials(switch);
        let mut not_ready = switch.unhealthy();
        not_ready.extend(switch.not_ready());
        Overview {
            at_unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
            status: switch.status(),
            not_ready,
            totals,
            drops: named(drops, drop_meaning),
            lost: named(lost, loss_meaning),
            latency: latency(&times),
            workers: times.iter().map(work).collect(),
            denials,
            recorded,
        }
    }
}

fn add(sums: &mut BTreeMap<String, u64>, counts: &BTreeMap<String, u64>) {
    for (name, frames) in counts {
        *sums.entry(name.clone()).or_default() += frames;
    }
}

fn named(sums: BTreeMap<String, u64>, meaning: impl Fn(&str) -> &'static str) -> Vec<Count> {
    let count = |(name, frames): (String, u64)| Count { meaning: meaning(&name), name, frames };
    sums.into_iter().map(count).collect()
}

fn drop_meaning(name: &str) -> &'static str {
    let reason = DropReason::ALL.iter().find(|reason| reason.name() == name);
    reason.map_or("", |reason| reason.meaning())
}

fn loss_meaning(name: &str) -> &'static str {
    LOSSES.iter().find(|(known, _)| *known == name).map_or("", |(_, meaning)| meaning)
}

fn latency(times: &[WorkerTimes]) -> TimeCounts {
    let mut sums = BTreeMap::new();
    for (ns, count) in times.iter().flat_map(|worker| &worker.latency) {
        *sums.entry(*ns).or_default() += count;
    }
    sums.into_iter().collect()
}

fn work(times: &WorkerTimes) -> Work {
    Work {
        worker: times.worker,
        core: times.core,
        clock_ns: times.clock_ns,
        busy_ns: times.busy_ns,
        waited_ns: times.waited_ns,
        received: times.received,
        batches: times.batches,
    }
}

/// The last packets that policy denied, and the number of the last recorded drop.
fn denials(switch: &Switch) -> (Vec<Denial>, u64) {
    let mut records = Vec::new();
    let mut recorded = 0;
    for reason in [DropReason::PolicyEgress, DropReason::PolicyIngress] {
        let filter = DropQuery { reason: Some(reason), max: Some(DENIALS_MAX), ..DropQuery::default() };
        // A filter without a port is never refused.
        let report = switch.drops(&filter).unwrap_or_default();
        recorded = report.last;
        records.extend(report.drops);
    }
    records.sort_by_key(|record| std::cmp::Reverse(record.number));
    records.truncate(DENIALS_MAX);
    (records.into_iter().map(denial).collect(), recorded)
}

fn denial(record: DropRecord) -> Denial {
    Denial {
        at_unix_ms: record.at_unix_ms,
        reason: record.reason,
        port: record.port,
        flow: record.flow,
        source_pod: record.source_pod,
        destination_pod: record.destination_pod,
        decided_by: record.decided_by.map(|origin| origin.to_string()),
    }
}
