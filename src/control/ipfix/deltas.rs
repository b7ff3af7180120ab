//! Counters of flows since the record before.

use std::collections::HashMap;

use crate::dataplane::{EndedFlow, FlowCount, FlowEnd};
use crate::limits::EXPORTED_FLOWS_MAX;
use crate::net::flow::FlowKey;

/// Packets and bytes of both directions.
type Counts = [(u64, u64); 2];

/// Walks that a flow may be missed by before its end counts as lost: its end may be on its way.
const MISSED_WALKS_MAX: u32 = 1;

/// Reason for the end of a record's time: values of flowEndReason (RFC 7012).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndReason {
    /// "idle timeout".
    Idle = 1,
    /// "active timeout": the flow goes on.
    Active = 2,
    /// "end of Flow detected".
    Detected = 3,
    /// "forced end".
    Forced = 4,
    /// "lack of resources".
    Resources = 5,
}

/// Flows that go on, with the counters that the collector has.
pub(super) struct FlowDeltas {
    /// Milliseconds after which a flow that goes on gets a record.
    active_ms: u32,
    /// By key and time of insertion: a key is used again.
    flows: HashMap<(FlowKey, Option<u32>), Exported>,
    /// Number of the current walk.
    walk: u32,
    /// Flows of the current walk without a place.
    untracked: u64,
}

struct Exported {
    /// Counters of the last walk.
    seen: FlowCount,
    /// Counters that the collector has.
    counts: Counts,
    /// Time of these counters, or else of the insertion.
    since_ms: u32,
    /// Last walk that has met the flow.
    walk: u32,
}

/// Counters of a flow since its record before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlowDelta {
    pub(super) flow: FlowCount,
    /// Packets and bytes of the original direction and of the replies.
    pub(super) counts: Counts,
    /// Time at which they begin.
    pub(super) since_ms: u32,
    pub(super) reason: EndReason,
}

impl FlowDeltas {
    pub(super) fn new(active_ms: u32) -> FlowDeltas {
        FlowDeltas { active_ms, flows: HashMap::new(), walk: 0, untracked: 0 }
    }

    /// Takes the counters of a restored flow as known to the collector: the process before has reported them.
    pub(super) fn assume_exported(&mut self, flow: &FlowCount, now_ms: u32) {
        if flow.opened_ms.is_none() && self.flows.len() < EXPORTED_FLOWS_MAX {
            let exported = Exported { seen: *flow, counts: flow.counts, since_ms: now_ms, walk: self.walk };
            self.flows.insert((flow.key, None), exported);
        }
    }

    /// Begins a walk over all flows.
    pub(super) fn begin_walk(&mut self) {
        self.walk = self.walk.wrapping_add(1);
        self.untracked = 0;
    }

    /// Notes a flow of the walk. Returns the record that is due.
    pub(super) fn see(&mut self, flow: &FlowCount, now_ms: u32) -> Option<FlowDelta> {
        let id = (flow.key, flow.opened_ms);
        if self.flows.len() >= EXPORTED_FLOWS_MAX && !self.flows.contains_key(&id) {
            self.untracked += 1;
            return None;
        }
        let since_ms = flow.opened_ms.unwrap_or(now_ms);
        let exported = self.flows.entry(id).or_insert_with(|| Exported::new(flow, since_ms));
        (exported.seen, exported.walk) = (*flow, self.walk);
        let age_ms = now_ms.wrapping_sub(exported.since_ms);
        let is_due = age_ms >= self.active_ms && age_ms <= u32::MAX / 2 && exported.counts != flow.counts;
        is_due.then(|| {
            let delta = exported.delta(EndReason::Active);
            (exported.counts, exported.since_ms) = (flow.counts, now_ms);
            delta
        })
    }

    /// Returns the last record of a flow that has ended.
    pub(super) fn end(&mut self, ended: &EndedFlow) -> FlowDelta {
        let EndedFlow { flow, reason } = ended;
        let since_ms = flow.opened_ms.unwrap_or(flow.last_seen_ms);
        let exported = self.flows.remove(&(flow.key, flow.opened_ms));
        let exported = exported.unwrap_or_else(|| Exported::new(flow, since_ms));
        Exported { seen: *flow, ..exported }.delta(match reason {
            FlowEnd::Finished => EndReason::Detected,
            FlowEnd::Idle => EndReason::Idle,
            FlowEnd::Evicted => EndReason::Resources,
            FlowEnd::Policy | FlowEnd::PodGone | FlowEnd::Flushed => EndReason::Forced,
        })
    }

    /// Returns the last records of flows that the walk and the one before have missed: their ends are lost.
    pub(super) fn take_missed(&mut self) -> impl Iterator<Item = FlowDelta> + '_ {
        let walk = self.walk;
        let missed = self.flows.extract_if(move |_, flow| walk.wrapping_sub(flow.walk) > MISSED_WALKS_MAX);
        missed.map(|(_, flow)| flow.delta(EndReason::Resources))
    }

    /// Returns the last record of a flow at the end of the export, if it has new packets.
    pub(super) fn finish(&mut self, flow: &FlowCount) -> Option<FlowDelta> {
        let ended = EndedFlow { flow: *flow, reason: FlowEnd::Flushed };
        Some(self.end(&ended)).filter(|delta| delta.counts != Counts::default())
    }

    /// Flows that are remembered.
    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Flows of the current walk that are not remembered.
    pub(super) fn untracked(&self) -> u64 {
        self.untracked
    }
}

impl Exported {
    /// A flow that is not remembered. The process before has reported the packets of a restored one, up to a number that is
    /// not known: too few are reported of it, never some twice.
    fn new(flow: &FlowCount, since_ms: u32) -> Exported {
        let counts = if flow.opened_ms.is_none() { flow.counts } else { Counts::default() };
        Exported { seen: *flow, counts, since_ms, walk: 0 }
    }

    fn delta(&self, reason: EndReason) -> FlowDelta {
        let since = |now: (u64, u64), before: (u64, u64)| {
            (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1))
        };
        let [first, reply] = self.seen.counts;
        let counts = [since(first, self.counts[0]), since(reply, self.counts[1])];
        FlowDelta { flow: self.seen, counts, since_ms: self.since_ms, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PortId;
    use crate::net::flow::Protocol;

    fn flow(port: u16, opened_ms: Option<u32>, packets: u64) -> FlowCount {
        let [src, dst] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(Into::into);
        let key = FlowKey { src, dst, protocol: Protocol::UDP, src_port: port, dst_port: 53 };
        let counts = [(packets, 100 * packets), (packets / 2, 50 * packets)];
        FlowCount { key, port: PortId(0), opened_ms, last_seen_ms: 0, counts }
    }

    fn ended(flow: FlowCount, reason: FlowEnd) -> EndedFlow {
        EndedFlow { flow, reason }
    }

    #[test]
    fn the_sum_of_the_records_of_a_flow_is_its_final_count() {
        let mut deltas = FlowDeltas::new(1000);
        deltas.begin_walk();
        assert_eq!(deltas.see(&flow(1, Some(10), 4), 1009), None, "its time has not come");
        let first = deltas.see(&flow(1, Some(10), 6), 1010).unwrap();
        assert_eq!(
            (first.counts, first.since_ms, first.reason),
            ([(6, 600), (3, 300)], 10, EndReason::Active)
        );
        assert_eq!(deltas.see(&flow(1, Some(10), 8), 2009), None);
        assert_eq!(deltas.see(&flow(1, Some(10), 6), 9000), None, "nothing is new");
        let second = deltas.see(&flow(1, Some(10), 9), 9001).unwrap();
        assert_eq!((second.counts, second.since_ms), ([(3, 300), (1, 150)], 1010));
        let last = deltas.end(&ended(flow(1, Some(10), 11), FlowEnd::Finished));
        assert_eq!((last.counts[0], last.since_ms, last.reason), ((2, 200), 9001, EndReason::Detected));
        assert_eq!(deltas.len(), 0);
        let short = deltas.end(&ended(flow(2, Some(70), 5), FlowEnd::Idle));
        assert_eq!((short.counts[0], short.since_ms, short.reason), ((5, 500), 70, EndReason::Idle));
    }

    #[test]
    fn a_flow_whose_end_is_lost_gets_a_last_record_after_two_walks() {
        let mut deltas = FlowDeltas::new(1000);
        deltas.begin_walk();
        deltas.see(&flow(1, Some(10), 4), 500);
        deltas.see(&flow(2, Some(10), 4), 500);
        deltas.begin_walk();
        // The same key again: another flow.
        deltas.see(&flow(1, Some(600), 1), 700);
        deltas.see(&flow(2, Some(10), 5), 700);
        assert_eq!(deltas.take_missed().count(), 0, "its end may be on its way");
        deltas.begin_walk();
        deltas.see(&flow(1, Some(600), 2), 900);
        deltas.see(&flow(2, Some(10), 5), 900);
        let missed: Vec<FlowDelta> = deltas.take_missed().collect();
        assert_eq!(missed.len(), 1);
        assert_eq!(missed[0].flow, flow(1, Some(10), 4));
        assert_eq!((missed[0].counts[0], missed[0].reason), ((4, 400), EndReason::Resources));
        assert_eq!(deltas.take_missed().count(), 0);
        assert_eq!(deltas.end(&ended(flow(1, Some(600), 3), FlowEnd::Evicted)).counts[0], (3, 300));
    }

    #[test]
    fn packets_of_the_process_before_are_not_told_again() {
        let mut deltas = FlowDeltas::new(1000);
        deltas.assume_exported(&flow(1, None, 100), 5);
        deltas.assume_exported(&flow(2, Some(1), 100), 5);
        assert_eq!(deltas.len(), 1);
        assert_eq!(deltas.end(&ended(flow(1, None, 103), FlowEnd::Flushed)).counts[0], (3, 300));
        let rest = deltas.finish(&flow(2, Some(1), 1)).unwrap();
        assert_eq!((rest.counts[0], rest.reason), ((1, 100), EndReason::Forced));
        assert_eq!(deltas.finish(&flow(2, Some(1), 0)), None);
        // A restored flow that found no place.
        assert_eq!(deltas.end(&ended(flow(3, None, 100), FlowEnd::Idle)).counts, Counts::default());
    }

    #[test]
    fn memory_is_bounded_and_a_flow_without_a_place_is_told_at_its_end() {
        let mut deltas = FlowDeltas::new(1);
        deltas.begin_walk();
        for opened in 1..=EXPORTED_FLOWS_MAX as u32 + 7 {
            deltas.see(&flow(1, Some(opened), 0), opened);
        }
        assert_eq!((deltas.len(), deltas.untracked()), (EXPORTED_FLOWS_MAX, 7));
        let beyond = flow(1, Some(EXPORTED_FLOWS_MAX as u32 + 3), 9);
        assert_eq!(deltas.end(&ended(beyond, FlowEnd::Idle)).counts[0], (9, 900));
    }
}
