//! The last dropped frames: samples of the workers, with the names of ports, pods and policies.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime};

use serde::Deserialize;

use super::frame_summary::summarize;
use super::protocol::{DropRecord, DropsReport};
use super::state::State;
use crate::dataplane::{DropReason, DropSample, FlowDecisions};
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

/// Selection of drops.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DropFilter {
    /// Only records after the one with this number.
    pub after: u64,
    /// Most records: the latest ones.
    pub max: Option<usize>,
    /// Only this reason.
    pub reason: Option<DropReason>,
    /// Only frames from this port.
    pub port: Option<String>,
    /// Only frames from or to this pod.
    pub pod: Option<PodName>,
}

impl DropFilter {
    fn selects(&self, record: &DropRecord) -> bool {
        let is_of_pod =
            |pod: &PodName| [&record.source_pod, &record.destination_pod].contains(&&Some(pod.clone()));
        record.number > self.after
            && self.reason.is_none_or(|reason| record.reason == reason)
            && self.port.as_ref().is_none_or(|port| record.port == *port)
            && self.pod.as_ref().is_none_or(is_of_pod)
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

    /// Reports the records that a filter selects, oldest first.
    pub(super) fn select(&self, filter: &DropFilter) -> DropsReport {
        let records = self.by_reason.values().flatten().filter(|record| filter.selects(record));
        let mut drops: Vec<DropRecord> = records.cloned().collect();
        drops.sort_by_key(|record| record.number);
        let beyond = drops.len().saturating_sub(filter.max.unwrap_or(usize::MAX));
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

    fn numbers(log: &DropLog, filter: &DropFilter) -> Vec<u64> {
        log.select(filter).drops.iter().map(|record| record.number).collect()
    }

    #[test]
    fn a_flood_of_one_reason_hides_no_other() {
        let mut log = DropLog::default();
        log.add(record(DropReason::Malformed, "a"));
        (0..3 * DROPS_KEPT_MAX).for_each(|_| log.add(record(DropReason::PolicyIngress, "b")));
        let all = log.select(&DropFilter::default());
        assert_eq!(all.drops.len(), 1 + DROPS_KEPT_MAX);
        assert_eq!(all.last, 1 + 3 * DROPS_KEPT_MAX as u64);
        assert_eq!((all.drops[0].number, all.drops[0].reason), (1, DropReason::Malformed));
        assert!(all.drops.is_sorted_by_key(|record| record.number));
    }

    #[test]
    fn a_filter_selects_by_number_reason_port_and_pod() {
        let mut log = DropLog::default();
        let ports = ["veth-a", "veth-b", "up", "veth-a"];
        let reasons = [DropReason::Spoofed, DropReason::NoRoute, DropReason::NoRoute, DropReason::NoRoute];
        reasons.into_iter().zip(ports).for_each(|(reason, port)| log.add(record(reason, port)));
        let none = DropFilter::default;
        assert_eq!(numbers(&log, &DropFilter { after: 2, ..none() }), [3, 4]);
        assert_eq!(numbers(&log, &DropFilter { max: Some(3), ..none() }), [2, 3, 4]);
        assert_eq!(numbers(&log, &DropFilter { reason: Some(DropReason::NoRoute), ..none() }), [2, 3, 4]);
        assert_eq!(numbers(&log, &DropFilter { port: Some("veth-a".to_owned()), ..none() }), [1, 4]);
        let pod = Some(PodName::new("default", "veth-b"));
        assert_eq!(numbers(&log, &DropFilter { pod, ..none() }), [2]);
    }
}
