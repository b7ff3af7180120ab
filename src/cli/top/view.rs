//! View of the running switch: differences of two samples, as lines of tables.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use super::sample::Sample;
use crate::cli::output::times::{duration, histogram, ratio};
use crate::control::protocol::{CountersReport, DropRecord, FlowRecord};
use crate::dataplane::{FlowInfo, PortCounters, TimeCounts, WorkerTimes};
use crate::net::flow::Protocol;
use crate::printable;
use crate::tables::PodName;

/// Samples of the throughput that the view keeps.
const HISTORY_MAX: usize = 600;
/// Time for which a denied packet counts.
const DENIED_MS: u64 = 60_000;
/// Quantiles of latency, percent.
const QUANTILES: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 99.99];

/// Lines of one table.
#[derive(Default)]
pub(super) struct Lines {
    pub(super) title: String,
    pub(super) header: &'static [&'static str],
    pub(super) rows: Vec<Vec<String>>,
}

/// All that a frame shows.
#[derive(Default)]
pub(super) struct View {
    pub(super) last: Option<Sample>,
    pub(super) heading: String,
    /// Problems for the operator, in one line.
    pub(super) problems: Option<String>,
    pub(super) throughput: String,
    pub(super) latency: String,
    /// Received packets a second, the last one last.
    pub(super) history: Vec<u64>,
    pub(super) workers: Lines,
    pub(super) drops: Lines,
    pub(super) flows: Lines,
    pub(super) denied: Lines,
}

impl View {
    /// Adds a sample. Rates are those since the sample before.
    pub(super) fn add(&mut self, sample: Sample) {
        // The counters of another process begin at zero.
        let before = self.last.take().filter(|before| before.status.pid == sample.status.pid);
        let status = &sample.status;
        let policy = status.policy.as_ref();
        let policy = policy.map_or_else(
            || "no policy".to_owned(),
            |policy| format!("{} rules for {} pods", policy.rules, policy.pods),
        );
        self.heading = format!(
            "palisade {}   up {} s   generation {}   {policy}   {} ports",
            status.version,
            status.uptime_s,
            status.generation,
            sample.counters.ports.len()
        );
        let reload = status.rejected_reload.as_ref();
        let reload = reload.map(|rejected| format!("the reload of {} was rejected", rejected.path.display()));
        let problems: Vec<String> = status.problems.iter().cloned().chain(reload).collect();
        self.problems = problems.first().map(|first| match problems.len() {
            1 => safe(first),
            all => format!("{} (and {} more: palisade show status)", safe(first), all - 1),
        });
        let seconds = before.as_ref().map_or(f64::INFINITY, |before| (sample.at - before.at).as_secs_f64());
        let counters = before.as_ref().map_or(&sample.counters, |before| &before.counters);
        self.throughput = self.throughput(&sample.counters, counters, seconds);
        self.drops = drops(&sample.counters, counters, seconds);
        let times = since(&sample.times, before.as_ref().map_or(&[], |before| &before.times));
        self.latency = latency(&times);
        self.workers = workers(&times);
        self.flows = flows(&sample, before.as_ref(), seconds);
        self.denied = denied(&sample.denied);
        self.last = Some(sample);
    }

    fn throughput(&mut self, now: &CountersReport, then: &CountersReport, seconds: f64) -> String {
        let rate = |value: fn(&PortCounters) -> u64| {
            sum(now, value).saturating_sub(sum(then, value)) as f64 / seconds
        };
        let received = rate(|port| port.received);
        if seconds.is_finite() {
            self.history.push(received as u64);
            let beyond = self.history.len().saturating_sub(HISTORY_MAX);
            self.history.drain(..beyond);
        }
        format!(
            "received {}/s, {}   transmitted {}/s, {}   dropped {}/s   lost before {}/s",
            count(received),
            with_unit(8.0 * rate(|port| port.received_bytes), "bit/s"),
            count(rate(|port| port.transmitted)),
            with_unit(8.0 * rate(|port| port.transmitted_bytes), "bit/s"),
            count(rate(|port| port.drops.values().sum())),
            count(rate(|port| port.lost.values().sum())),
        )
    }
}

/// Text without control characters.
fn safe(text: &str) -> String {
    printable::line(text).into_owned()
}

/// Number with three digits and a prefix: `12.3 k`.
fn count(value: f64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.into_iter().find(|(unit, _)| value >= *unit) {
        Some((unit, name)) => {
            let value = value / unit;
            let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
            format!("{value:.digits$} {name}")
        }
        None => format!("{value:.0}"),
    }
}

/// Number with a prefix and a unit: `12.3 kB`, `7 B`.
fn with_unit(value: f64, unit: &str) -> String {
    let blank = if value < 1e3 { " " } else { "" };
    format!("{}{blank}{unit}", count(value))
}

fn sum(counters: &CountersReport, value: fn(&PortCounters) -> u64) -> u64 {
    counters.ports.values().map(value).sum()
}

fn drops(now: &CountersReport, then: &CountersReport, seconds: f64) -> Lines {
    let by_reason = |report: &CountersReport| {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for (reason, frames) in report.ports.values().flat_map(|port| &port.drops) {
            *sums.entry(reason.clone()).or_default() += frames;
        }
        sums
    };
    let (now, then) = (by_reason(now), by_reason(then));
    let new = |reason: &str, all: u64| all.saturating_sub(then.get(reason).copied().unwrap_or(0));
    let mut reasons: Vec<(String, u64, u64)> =
        now.into_iter().map(|(reason, all)| (reason.clone(), new(&reason, all), all)).collect();
    reasons.sort_by_key(|(_, new, all)| Reverse((*new, *all)));
    let row = |(reason, new, all): (String, u64, u64)| {
        vec![format!("{}/s", count(new as f64 / seconds)), all.to_string(), reason]
    };
    Lines {
        title: "drops by reason".to_owned(),
        header: &["rate", "in all", "reason"],
        rows: reasons.into_iter().map(row).collect(),
    }
}

fn since(now: &[WorkerTimes], then: &[WorkerTimes]) -> Vec<WorkerTimes> {
    let since = |now: &WorkerTimes| {
        let before = then.iter().find(|before| before.worker == now.worker);
        before.map_or_else(|| now.clone(), |before| now.since(before))
    };
    now.iter().map(since).collect()
}

fn latency(times: &[WorkerTimes]) -> String {
    let counts: TimeCounts = times.iter().flat_map(|worker| worker.latency.iter().copied()).collect();
    if counts.is_empty() {
        return "time in the switch: no packet has passed".to_owned();
    }
    let histogram = histogram(&counts);
    let texts =
        QUANTILES.map(|percent| format!("{percent} % {}", duration(histogram.value_at_percentile(percent))));
    format!("time in the switch: {}", texts.join("   "))
}

fn workers(times: &[WorkerTimes]) -> Lines {
    let row = |worker: &WorkerTimes| {
        let seconds = worker.clock_ns as f64 / 1e9;
        let share =
            |ns: u64| format!("{:.1} %", (100.0 * ns as f64 / worker.clock_ns.max(1) as f64).min(100.0));
        vec![
            worker.worker.to_string(),
            worker.core.to_string(),
            share(worker.busy_ns),
            format!("{}/s", count(worker.received as f64 / seconds.max(f64::MIN_POSITIVE))),
            ratio(worker.received, worker.batches),
            ratio(worker.busy_ns, worker.received),
            worker.waited_ns.map_or_else(|| "-".to_owned(), share),
        ]
    };
    Lines {
        title: "workers".to_owned(),
        header: &["worker", "core", "load", "packets", "a batch", "ns a packet", "without core"],
        rows: times.iter().map(row).collect(),
    }
}

/// Flows with most bytes since the sample before, or in all if there is none.
fn flows(sample: &Sample, before: Option<&Sample>, seconds: f64) -> Lines {
    let bytes = |flow: &FlowInfo| flow.bytes + flow.reply_bytes;
    let earlier = before.iter().flat_map(|before| &before.flows.flows).map(|record| &record.flow);
    let then: HashMap<_, u64> = earlier.map(|flow| (flow.key, bytes(flow))).collect();
    let new = |flow: &FlowInfo| bytes(flow).saturating_sub(then.get(&flow.key).copied().unwrap_or(0));
    let listed = sample.flows.flows.iter();
    let mut flows: Vec<(u64, &FlowRecord)> = listed.map(|record| (new(&record.flow), record)).collect();
    flows.sort_by_key(|(new, record)| Reverse((*new, bytes(&record.flow), record.flow.key)));
    let end = |pod: &Option<PodName>, address: IpAddr, port: u16, protocol: Protocol| {
        let name = pod.as_ref().map_or_else(|| address.to_string(), |pod| safe(&pod.to_string()));
        if protocol.has_ports() { format!("{name}:{port}") } else { name }
    };
    let row = |(new, record): &(u64, &FlowRecord)| {
        let FlowRecord { flow, source_pod, destination_pod } = record;
        let key = flow.key;
        vec![
            with_unit(8.0 * *new as f64 / seconds, "bit/s"),
            with_unit(bytes(flow) as f64, "B"),
            key.protocol.to_string(),
            safe(&flow.state),
            format!(
                "{} -> {}",
                end(source_pod, key.src, key.src_port, key.protocol),
                end(destination_pod, key.dst, key.dst_port, key.protocol)
            ),
        ]
    };
    let rows: Vec<_> = flows.iter().map(row).collect();
    let title = if rows.len() as u64 == sample.flows.matched {
        format!("flows: {}", rows.len())
    } else {
        format!("flows: {}, of which {} with most bytes", sample.flows.matched, rows.len())
    };
    Lines { title, header: &["rate", "in all", "protocol", "state", "flow"], rows }
}

/// Pairs with most denied packets.
fn denied(records: &[DropRecord]) -> Lines {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    let mut pairs: BTreeMap<Vec<String>, u64> = BTreeMap::new();
    for record in records.iter().filter(|record| now.saturating_sub(record.at_unix_ms) <= DENIED_MS) {
        let Some(flow) = record.flow else { continue };
        let end = |pod: &Option<_>, address: IpAddr| match pod {
            Some(pod) => safe(&format!("{pod}")),
            None => address.to_string(),
        };
        let port = if flow.protocol.has_ports() { format!(" {}", flow.dst_port) } else { String::new() };
        let pair =
            format!("{} -> {}", end(&record.source_pod, flow.src), end(&record.destination_pod, flow.dst));
        let decided_by = record.decided_by.as_ref();
        let decided_by = decided_by
            .map_or_else(|| "policy has changed since".to_owned(), |origin| safe(&origin.to_string()));
        *pairs.entry(vec![pair, format!("{}{port}", flow.protocol), decided_by]).or_default() += 1;
    }
    let mut pairs: Vec<_> = pairs.into_iter().collect();
    pairs.sort_by_key(|(_, packets)| Reverse(*packets));
    let row = |(mut texts, packets): (Vec<String>, u64)| {
        texts.insert(0, packets.to_string());
        texts
    };
    Lines {
        title: "denied in the last minute, by samples".to_owned(),
        header: &["samples", "pair", "packet", "decided by"],
        rows: pairs.into_iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let texts = [0.0, 7.4, 999.0, 1234.0, 56_700.0, 890_123.0, 2.5e6, 4e9].map(count);
        assert_eq!(texts, ["0", "7", "999", "1.23 k", "56.7 k", "890 k", "2.50 M", "4.00 G"]);
        assert_eq!([with_unit(7.0, "B"), with_unit(7e3, "B")], ["7 B", "7.00 kB"]);
    }
}
