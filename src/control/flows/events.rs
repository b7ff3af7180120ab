//! Events of flows with the names of pods and policies.

use std::time::{Duration, SystemTime};

use super::selection::KeptNames;
use crate::control::protocol::{DropRecord, FlowEventLine, FlowEventRecord};
use crate::dataplane::{DropReason, FlowEvent, FlowEventKind, FlowEvents, Flows};

/// Describes the events of the workers, and the denied ones among these drops, in the order of their times.
pub(in crate::control) fn describe(
    events: &FlowEvents,
    drops: &[DropRecord],
    names: &KeptNames,
    flows: &dyn Flows,
) -> Vec<FlowEventLine> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let at = |event: &FlowEvent| {
        let age = Duration::from_millis(events.now_ms.saturating_sub(event.at_ms).into());
        now.saturating_sub(age).as_millis() as u64
    };
    let of_flows = events.events.iter().map(|event| of_flow(event, at(event), names, flows));
    let mut lines: Vec<FlowEventLine> = of_flows.chain(drops.iter().filter_map(denied)).collect();
    lines.sort_by_key(|line| line.record().map(|record| record.at_unix_ms));
    lines
}

fn of_flow(event: &FlowEvent, at_unix_ms: u64, names: &KeptNames, flows: &dyn Flows) -> FlowEventLine {
    let [source_pod, destination_pod] = names.ends(&event.key);
    let [(packets, bytes), (reply_packets, reply_bytes)] = event.counts;
    let mut record = FlowEventRecord {
        source_pod,
        destination_pod,
        state: event.state.to_owned(),
        packets,
        bytes,
        reply_packets,
        reply_bytes,
        ..FlowEventRecord::new(at_unix_ms, event.key)
    };
    if let FlowEventKind::Closed(reason) = event.kind {
        record.closed_by = Some(reason);
        return FlowEventLine::Closed(record);
    }
    record.decided_by = flows.origins(&event.key).into_iter().flatten().collect();
    match event.kind {
        FlowEventKind::Revalidated => FlowEventLine::Revalidated(record),
        _ => FlowEventLine::Opened(record),
    }
}

/// Event of a packet that policy denied.
fn denied(drop: &DropRecord) -> Option<FlowEventLine> {
    let is_by_policy = matches!(drop.reason, DropReason::PolicyEgress | DropReason::PolicyIngress);
    let record = FlowEventRecord {
        source_pod: drop.source_pod.clone(),
        destination_pod: drop.destination_pod.clone(),
        decided_by: drop.decided_by.iter().cloned().collect(),
        ..FlowEventRecord::new(drop.at_unix_ms, drop.flow.filter(|_| is_by_policy)?)
    };
    Some(FlowEventLine::Denied(record))
}
