//! The conntrack table without a dataplane around it: to be measured and compared.

use super::ConntrackSettings;
use super::conntrack::{Admission, Conntrack, Entry, FlowState, Key, NewFlow, Tracker};
use super::follow::needs_both_ends;
use crate::ids::{Generation, PortId, WorkerId};
use crate::net::flow::FlowKey;

/// Look-ups that wait for memory together.
const AT_ONCE: usize = 64;

/// A look-up.
#[derive(Clone, Copy)]
struct Sought<'a> {
    key: Key,
    from_low: bool,
    hash: u64,
    /// Where the flow is likely to be.
    entry: &'a Entry,
}

/// The table, with one worker.
pub struct FlowTable {
    table: Conntrack,
    tracker: Tracker,
}

impl FlowTable {
    /// An empty table with room for `flows_max` flows. Panics when there is no memory, as a `Vec` of that size would.
    pub fn new(flows_max: usize) -> FlowTable {
        let settings =
            ConntrackSettings { flows_max, pod_quota_percent: 100, ..ConntrackSettings::default() };
        let table = Conntrack::new(&settings, true).expect("memory for the flows");
        FlowTable { table, tracker: Tracker::new(WorkerId(0), 1) }
    }

    /// Enters flows, and returns how many found a place.
    pub fn enter(&mut self, flows: &[FlowKey]) -> usize {
        let enter = |flow: &FlowKey| {
            let (key, opened_by_low) = Key::of_flow(flow);
            let new = NewFlow {
                opened_by_low,
                pods: [false; 2],
                charged: PortId(0),
                judged: Generation(0),
                state: FlowState::first(flow.protocol),
                tcp: None,
                hops: [None; 2],
            };
            let hash = self.table.hash(&key);
            self.table.enter(&key, hash, &new, 0, &mut self.tracker)
        };
        let admissions = flows.iter().map(enter);
        admissions.filter(|admission| matches!(admission, Admission::Entered(_))).count()
    }

    /// Counts one packet of `bytes` for each key, by tags first, as the packet path does where flows are often not at home; returns
    /// how many are of known flows.
    pub fn count(&self, batch: &[FlowKey], bytes: usize) -> usize {
        let nothing = Sought { key: Key::default(), from_low: false, hash: 0, entry: self.table.likely(0) };
        let mut sought = [nothing; AT_ONCE];
        batch.chunks(AT_ONCE).map(|flows| self.count_some(flows, &mut sought[..flows.len()], bytes)).sum()
    }

    #[inline(always)]
    fn count_some<'a>(&'a self, flows: &[FlowKey], sought: &mut [Sought<'a>], bytes: usize) -> usize {
        for (sought, flow) in sought.iter_mut().zip(flows) {
            (sought.key, sought.from_low) = Key::of_flow(flow);
            sought.hash = self.table.hash(&sought.key);
            self.table.prefetch_tags(sought.hash);
        }
        for sought in &mut *sought {
            sought.entry = self.table.likely(sought.hash);
            sought.entry.prefetch(sought.from_low, needs_both_ends(sought.key.protocol()));
        }
        let mut found = 0;
        for Sought { key, from_low, hash, entry } in sought {
            if !entry.is(key, *from_low) {
                let Some(slot) = self.table.look_up(key, *hash) else { continue };
                *entry = self.table.entry(slot);
            }
            entry.count(*from_low, bytes, 0);
            found += 1;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::flow::Protocol;

    #[test]
    fn flows_that_were_entered_are_found_by_packets_of_both_directions_and_no_others_are() {
        let flow = |dst_port| FlowKey {
            src: "10.0.0.1".parse().unwrap(),
            dst: "10.0.0.2".parse().unwrap(),
            protocol: Protocol::UDP,
            src_port: 1024,
            dst_port,
        };
        let mut table = FlowTable::new(1024);
        assert_eq!(table.enter(&[flow(1), flow(2)]), 2);
        assert_eq!(table.count(&[flow(1), flow(2).reversed(), flow(3)], 64), 2);
    }
}
