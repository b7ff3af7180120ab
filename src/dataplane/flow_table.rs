//! The conntrack table without a dataplane around it: to be measured and compared.

use super::ConntrackSettings;
use super::batch::Lines;
use super::conntrack::{Admission, Candidate, Conntrack, FlowState, Key, LineId, NewFlow, Slot, Tracker};
use super::follow::needs_both_ends;
use super::packet::{Packet, pack};
use crate::ids::{Generation, PortId, WorkerId};
use crate::limits::BATCH_FRAMES_MAX;
use crate::net::flow::FlowKey;

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
            let (key, opened_by_low) = Key::of(&packet(flow));
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

    /// Counts one packet of `bytes` for each key, as the packet path does for a batch; returns how many are of known flows.
    ///
    /// Panics on more keys than a batch has frames.
    pub fn count(&self, batch: &[FlowKey], bytes: usize) -> usize {
        assert!(batch.len() <= BATCH_FRAMES_MAX, "{} keys are more than a batch", batch.len());
        let mut keys = [(Key::default(), false, 0); BATCH_FRAMES_MAX];
        let keys = &mut keys[..batch.len()];
        for (place, flow) in keys.iter_mut().zip(batch) {
            let (key, from_low) = Key::of(&packet(flow));
            let hash = self.table.hash(&key);
            self.table.prefetch_home(hash, from_low, needs_both_ends(key.protocol()));
            *place = (key, from_low, hash);
        }
        let mut strays = [(0, Slot::NONE); BATCH_FRAMES_MAX];
        let (mut strays_len, mut found) = (0, 0);
        let mut count = |slot: Slot, from_low| {
            self.table.entry(slot).count(from_low, bytes, 0);
            found += 1;
        };
        for (i, (key, from_low, hash)) in keys.iter().enumerate() {
            if let Some(slot) = self.table.at_home(key, *from_low, *hash) {
                count(slot, *from_low);
            } else {
                strays[strays_len].0 = i;
                strays_len += 1;
            }
        }
        let strays = &mut strays[..strays_len];
        self.table.load_tags(strays.iter().map(|(i, _)| keys[*i].2));
        let mut lines = Lines::new();
        for (i, candidate) in &mut *strays {
            let (key, from_low, hash) = &keys[*i];
            if let Candidate::Slot(slot) = self.table.candidate(*hash, false) {
                lines.add(LineId::new(slot, *from_low), needs_both_ends(key.protocol()));
                *candidate = slot;
            }
        }
        self.table.load_lines(lines.as_slice());
        for (i, candidate) in strays {
            let (key, from_low, hash) = &keys[*i];
            if let Some(slot) = self.table.find(key, *from_low, *hash, *candidate) {
                count(slot, *from_low);
            }
        }
        found
    }
}

fn packet(flow: &FlowKey) -> Packet {
    Packet {
        is_v4: flow.src.is_ipv4(),
        protocol: flow.protocol,
        src: pack(flow.src),
        dst: pack(flow.dst),
        src_port: flow.src_port,
        dst_port: flow.dst_port,
        ..Packet::default()
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
