//! The last dropped frames: samples of the workers, with the names of ports, pods and policies.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime};

use serde::Deserialize;

use super::frame_summary::summarize;
use super::protocol::{DropRecord, DropsReport, EndFilter, PacketFilter};
use super::state::State;
use crate::dataplane::{DropReason, DropSample, FlowDecisions, FlowFilter};
use crate::limits::DROPS_KEPT_MAX;
use crate::net::flow::FlowKey;
use crate::tables::{PodName, RuleOrigin, Verdict};

/// The last drops of each reason.
#[derive(Default)]
pub(super) struct DropLog {
    /// Number of the last record.
    last: u64,
    /// Samples that found no place.
    pub(super) lost: u64,
    by_reason: BTreeMap<DropReason, VecDeque<DropRecord>>,
}

/// Selection of drops: those that have every property that is given.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DropQuery {
    /// Properties of the packet, which are parameters of the same request. A pod is that behind the port, or has the destination
    /// address.
    #[serde(skip)]
    pub filter: PacketFilter,
    /// Only records after the one with this number.
    pub after: u64,
    /// Most records: the latest ones.
    pub max: Option<usize>,
    /// Only this reason.
    pub reason: Option<DropReason>,
    /// Only frames from this port of the switch.
    pub interface: Option<String>,
    /// Only frames since this time: milliseconds since 1970.
    pub since_unix_ms: u64,
}

impl DropQuery {
    /// Parameters of the request: names and values, not encoded.
    pub(crate) fn parameters(&self) -> Vec<(&'static str, String)> {
        let DropQuery { filter, after, max, reason, interface, since_unix_ms } = self;
        let own = [
            Some(("after", after.to_string())),
            max.map(|max| ("max", max.to_string())),
            reason.map(|reason| ("reason", reason.name().to_owned())),
            interface.clone().map(|interface| ("interface", interface)),
            (*since_unix_ms > 0).then(|| ("since_unix_ms", since_unix_ms.to_string())),
        ];
        filter.parameters().into_iter().chain(own.into_iter().flatten()).collect()
    }

    /// `flows` has the properties of the filter that name no pod.
    fn selects(&self, record: &DropRecord, flows: &FlowFilter) -> bool {
        let PacketFilter { from, to, pod, .. } = &self.filter;
        let [source, destination] = [record.source_pod.as_ref(), record.destination_pod.as_ref()];
        let is_at = |end: &Option<EndFilter>, found: Option<&PodName>| match end {
            Some(EndFilter::Pod(pod)) => found == Some(pod),
            _ => true,
        };
        record.number > self.after
            && record.at_unix_ms >= self.since_unix_ms
            && self.reason.is_none_or(|reason| record.reason == reason)
            && self.interface.as_ref().is_none_or(|interface| record.port == *interface)
            && is_at(from, source)
            && is_at(to, destination)
            && pod.as_ref().is_none_or(|pod| [source, destination].contains(&Some(pod)))
            && record.flow.map_or(flows.is_any(), |flow| flows.selects(&flow))
    }
}

impl DropLog {
    /// Adds a record, in place of the oldest one of its reason if there are many.
    pub(super) fn add(&mut self, record: DropRecord) {
        self.last += 1;
        let records = self.by_reason.entry(record.reason).or_default();
        if records.len() == DROPS_KEPT_MAX {
            records.pop_front();
        }
        records.push_back(DropRecord { number: self.last, ..record });
    }

    /// Reports the records that a query selects, oldest first.
    pub(super) fn select(&self, query: &DropQuery) -> DropsReport {
        let flows = query.filter.without_pods();
        let records = self.by_reason.values().flatten().filter(|record| query.selects(record, &flows));
        let mut drops: Vec<DropRecord> = records.cloned().collect();
        drops.sort_by_key(|record| record.number);
        let beyond = drops.len().saturating_sub(query.max.unwrap_or(usize::MAX));
        drops.drain(..beyond);
        DropsReport { drops, last: self.last, lost: self.lost }
    }
}

/// Describes a sample with names of this state. `decisions_on` evaluates a flow under the policy in force.
pub(super) fn describe(
    sample: &DropSample,
    now_ms: u32,
    state: &State,
    decisions_on: impl FnOnce(&FlowKey) -> FlowDecisions,
) -> DropRecord {
    let summary = summarize(sample.head());
    let found = sample.evaluated.map(|flow| decisions_on(&flow));
    // Another generation may decide otherwise.
    let found = found.filter(|found| found.generation == sample.generation);
    let flow = sample.flow.or(summary.flow);
    let port = state.port_name(sample.port);
    let age = Duration::from_millis(now_ms.saturating_sub(sample.at_ms).into());
    let at = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
    DropRecord {
        number: 0,
        at_unix_ms: at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
        port: port.cloned().unwrap_or_else(|| format!("closed port {}", sample.port.0)),
        reason: sample.reason,
        frame_bytes: sample.frame_bytes,
        frame: frame_text(sample, summary.text),
        flow,
        source_pod: port.and_then(|port| state.pod_behind(port)).cloned(),
        destination_pod: flow.and_then(|flow| state.pod_with(flow.dst)).cloned(),
        decided_by: found.and_then(|found| denial(found, sample.reason)),
    }
}

/// Protocols of a frame in words. The text of the frame's bytes does not hold for every frame.
fn frame_text(sample: &DropSample, of_bytes: String) -> String {
    match sample.flow {
        _ if sample.reason == DropReason::Oversized => "too long, or cut by the kernel".to_owned(),
        // The frame holds the answer.
        Some(flow) if matches!(sample.reason, DropReason::TooBig | DropReason::TtlExceeded) => {
            format!("{} {}", if flow.src.is_ipv4() { "IPv4" } else { "IPv6" }, flow.protocol)
        }
        _ => of_bytes,
    }
}

/// Origin of the decision that denies the flow; the first policies where many isolate the pod.
fn denial(found: FlowDecisions, reason: DropReason) -> Option<RuleOrigin> {
    let side = if reason == DropReason::PolicyEgress { found.egress } else { found.ingress };
    Some(side.filter(|side| side.verdict == Verdict::Deny)?.decided_by.brief())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(reason: DropReason, port: &str) -> DropRecord {
        DropRecord {
            number: 0,
            at_unix_ms: 0,
            port: port.to_owned(),
            reason,
            frame_bytes: 64,
            frame: "a frame".to_owned(),
            flow: None,
            source_pod: port.starts_with("veth").then(|| PodName::new("default", port)),
            destination_pod: None,
            decided_by: None,
        }
    }

    fn numbers(log: &DropLog, filter: &DropQuery) -> Vec<u64> {
        log.select(filter).drops.iter().map(|record| record.number).collect()
    }

    #[test]
    fn a_flood_of_one_reason_hides_no_other() {
        let mut log = DropLog::default();
        log.add(record(DropReason::Malformed, "a"));
        (0..3 * DROPS_KEPT_MAX).for_each(|_| log.add(record(DropReason::PolicyIngress, "b")));
        let all = log.select(&DropQuery::default());
        assert_eq!(all.drops.len(), 1 + DROPS_KEPT_MAX);
        assert_eq!(all.last, 1 + 3 * DROPS_KEPT_MAX as u64);
        assert_eq!((all.drops[0].number, all.drops[0].reason), (1, DropReason::Malformed));
        assert!(all.drops.is_sorted_by_key(|record| record.number));
    }

    #[test]
    fn a_query_selects_by_number_time_reason_port_and_pod() {
        let mut log = DropLog::default();
        let ports = ["veth-a", "veth-b", "up", "veth-a"];
        let reasons = [DropReason::Spoofed, DropReason::NoRoute, DropReason::NoRoute, DropReason::NoRoute];
        reasons.into_iter().zip(ports).for_each(|(reason, port)| log.add(record(reason, port)));
        let none = DropQuery::default;
        assert_eq!(numbers(&log, &DropQuery { after: 2, ..none() }), [3, 4]);
        assert_eq!(numbers(&log, &DropQuery { max: Some(3), ..none() }), [2, 3, 4]);
        assert_eq!(numbers(&log, &DropQuery { reason: Some(DropReason::NoRoute), ..none() }), [2, 3, 4]);
        assert_eq!(numbers(&log, &DropQuery { interface: Some("veth-a".to_owned()), ..none() }), [1, 4]);
        assert_eq!(numbers(&log, &DropQuery { since_unix_ms: 1, ..none() }), [0; 0]);
        let of = |filter| DropQuery { filter, ..none() };
        let pod = PodName::new("default", "veth-b");
        assert_eq!(numbers(&log, &of(PacketFilter::of_pod(&pod))), [2]);
        let from = PacketFilter { from: Some(EndFilter::Pod(pod.clone())), ..PacketFilter::default() };
        let to = PacketFilter { to: Some(EndFilter::Pod(pod)), ..PacketFilter::default() };
        assert_eq!((numbers(&log, &of(from)), numbers(&log, &of(to))), (vec![2], vec![]));
        let address = PacketFilter { address: Some("::/0".parse().unwrap()), ..PacketFilter::default() };
        assert_eq!(numbers(&log, &of(address)), [0; 0], "frames without addresses");
    }
}
