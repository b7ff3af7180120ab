//! The conntrack table without a dataplane around it, for benchmarks that compare tables.

use super::ConntrackSettings;
use super::conntrack::{Conntrack, FlowState, InsertOutcome, Key, NewFlow, WorkerState};
use crate::ids::{Generation, PortId, WorkerId};
use crate::net::flow::FlowKey;

/// The table, with one worker.
pub struct FlowTable {
    table: Conntrack,
    worker_state: WorkerState,
}

impl FlowTable {
    /// Makes an empty table for `flows_max` flows. Panics when there is no memory, as a `Vec` of that size
    /// does.
    pub fn new(flows_max: usize) -> FlowTable {
        let settings =
            ConntrackSettings { flows_max, pod_quota_percent: 100, ..ConntrackSettings::default() };
        let table = Conntrack::new(&settings, true).expect("memory for the flows");
        FlowTable { table, worker_state: WorkerState::new(WorkerId(0), 1) }
    }

    /// Inserts flows. Returns the number of those that found a slot.
    pub fn insert(&mut self, flows: &[FlowKey]) -> usize {
        let insert = |flow: &FlowKey| {
            let (key, opened_by_low) = Key::of_flow(flow);
            let new = NewFlow {
                opened_by_low,
                by_node_socket: false,
                pods: [false; 2],
                owner_port: PortId(0),
                policy_epoch: Generation(0),
                state: FlowState::UdpTwoWay,
                tcp: None,
                virtual_end: None,
                hops: [None; 2],
            };
            let hash = self.table.hash(&key);
            let outcome = self.table.insert(&key, hash, &new, 0, &mut self.worker_state);
            if let InsertOutcome::Inserted(slot) = outcome {
                // Assured flows are not evicted.
                self.table.on_state_change(slot, FlowState::UdpOneWay, FlowState::UdpTwoWay);
            }
            outcome
        };
        let outcomes = flows.iter().map(insert);
        outcomes.filter(|outcome| matches!(outcome, InsertOutcome::Inserted(_))).count()
    }

    /// Counts one packet of `bytes` bytes for each key, by a lookup that compares tags first. Returns the
    /// number of packets of known flows.
    pub fn count(&self, batch: &[FlowKey], bytes: usize) -> usize {
        self.table.lookup_tags_first(batch, Key::of_flow, |entry, from_low| entry.count(from_low, bytes, 0))
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::net::flow::Protocol;

    fn flow(family: [&str; 2], protocol: Protocol, dst_port: u16) -> FlowKey {
        let [src, dst] = family.map(|address| address.parse().unwrap());
        FlowKey { src, dst, protocol, src_port: 1024, dst_port }
    }

    #[test]
    fn inserted_flows_are_found_by_packets_of_both_directions_and_no_others_are() {
        let (v4, v6) = (["10.0.0.1", "10.0.0.2"], ["fd00::2", "fd00::1"]);
        let kinds = [(v4, Protocol::UDP), (v4, Protocol::TCP), (v6, Protocol::UDP), (v6, Protocol::TCP)];
        let flows = |ports: Range<u16>| -> Vec<FlowKey> {
            ports.flat_map(|port| kinds.map(|(family, protocol)| flow(family, protocol, port))).collect()
        };
        // Two thirds of the slots are taken, so that a third of the flows are not in their primary slots.
        let (known, others) = (flows(0..250), flows(250..500));
        let mut table = FlowTable::new(1500);
        assert_eq!(table.insert(&known), known.len());
        let answers: Vec<FlowKey> = known.iter().map(|flow| flow.reversed()).collect();
        assert_eq!([&known, &answers, &others].map(|flows| table.count(flows, 64)), [1000, 1000, 0]);
        assert!(known.iter().all(|flow| table.count(&[*flow, flow.reversed()], 64) == 2));
    }
}
