//! Connections on which candidate tables and the tables in force differ, by their ends.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::time::SystemTime;

use super::ends::{Ends, pods_by_address};
use crate::control::protocol::{ShadowDisagreement, ShadowVerdict};
use crate::control::state::{State, unix_seconds};
use crate::dataplane::{Disagreement, Judgement};
use crate::limits::SHADOW_DISAGREEMENTS_MAX;
use crate::net::flow::FlowKey;
use crate::tables::PodName;

/// Most flows that the next walk knows again. A walk with more counts some of them twice.
const FLOWS_KNOWN_MAX: usize = 1 << 16;

/// All disagreements since the load of a candidate.
#[derive(Debug, Default)]
pub(super) struct Disagreements {
    by_ends: BTreeMap<Ends, ShadowDisagreement>,
    /// Flows of the last walk.
    known: HashSet<FlowKey>,
    left_out: u64,
}

/// Disagreements of one walk over the flow table.
pub(super) struct Seen<'a> {
    at: SystemTime,
    /// Attached pods by address.
    pods: HashMap<IpAddr, &'a PodName>,
    found: BTreeMap<Ends, (Disagreement, Vec<FlowKey>)>,
    /// Flows whose ends found no place.
    beyond: u64,
}

impl Seen<'_> {
    pub(super) fn at(at: SystemTime, state: &State) -> Seen<'_> {
        Seen { at, pods: pods_by_address(state), found: BTreeMap::new(), beyond: 0 }
    }

    /// Adds a flow.
    pub(super) fn add(&mut self, found: Disagreement) {
        let ends = Ends::of(&found.key, |address| self.pods.get(&address).copied());
        if let Some((_, keys)) = self.found.get_mut(&ends) {
            keys.push(found.key);
        } else if self.found.len() < SHADOW_DISAGREEMENTS_MAX {
            let key = found.key;
            self.found.insert(ends, (found, vec![key]));
        } else {
            self.beyond += 1;
        }
    }
}

impl Disagreements {
    /// Takes the flows of a complete walk.
    pub(super) fn end_walk(&mut self, seen: Seen<'_>) {
        self.by_ends.values_mut().for_each(|known| known.running = 0);
        let mut known = HashSet::new();
        let at = unix_seconds(seen.at);
        for (ends, (found, keys)) in seen.found {
            let new = keys.iter().filter(|key| !self.known.contains(key)).count() as u64;
            if let Some(entry) = self.entry(ends, &found, at) {
                entry.flows += new;
                entry.running = keys.len() as u64;
            } else {
                self.left_out += new;
            }
            let room = FLOWS_KNOWN_MAX - known.len();
            known.extend(keys.into_iter().take(room));
        }
        self.left_out += seen.beyond;
        self.known = known;
    }

    /// Notes a packet that the tables in force have denied.
    pub(super) fn note_denied(&mut self, found: &Disagreement, state: &State) {
        let ends = Ends::of(&found.key, |address| state.pod_with(address));
        match self.entry(ends, found, unix_seconds(SystemTime::now())) {
            Some(entry) => entry.denied += 1,
            None => self.left_out += 1,
        }
    }

    /// Entry of these ends with the latest decisions; `None` if there is no place for it.
    fn entry(&mut self, ends: Ends, found: &Disagreement, at_unix_s: u64) -> Option<&mut ShadowDisagreement> {
        if self.by_ends.len() >= SHADOW_DISAGREEMENTS_MAX && !self.by_ends.contains_key(&ends) {
            return None;
        }
        let verdict = |judgement: &Judgement| ShadowVerdict {
            verdict: judgement.verdict,
            decided_by: judgement.decided_by.clone(),
        };
        let (enforced, candidate) = (verdict(&found.enforced), verdict(&found.candidate));
        let entry = self.by_ends.entry(ends).or_insert_with_key(|ends| ShadowDisagreement {
            source: ends.source.clone(),
            destination: ends.destination.clone(),
            protocol: ends.protocol,
            port: ends.port,
            enforced: enforced.clone(),
            candidate: candidate.clone(),
            flows: 0,
            running: 0,
            denied: 0,
            last_seen_unix_s: 0,
        });
        (entry.enforced, entry.candidate, entry.last_seen_unix_s) = (enforced, candidate, at_unix_s);
        Some(entry)
    }

    /// The disagreements, the latest first, and the number of those left out.
    pub(super) fn report(&self) -> (Vec<ShadowDisagreement>, u64) {
        let mut listed: Vec<_> = self.by_ends.values().cloned().collect();
        listed.sort_by_key(|entry| std::cmp::Reverse((entry.last_seen_unix_s, entry.running)));
        (listed, self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::flow::Protocol;
    use crate::tables::{RuleOrigin, Verdict};

    fn found(source: u8, src_port: u16) -> Disagreement {
        let judgement =
            |verdict| Judgement { verdict, decided_by: Some(RuleOrigin::OwnNode).filter(|_| source < 9) };
        Disagreement {
            key: FlowKey {
                src: IpAddr::from([10, 0, 0, source]),
                dst: IpAddr::from([10, 0, 0, 1]),
                protocol: Protocol::TCP,
                src_port,
                dst_port: 80,
            },
            enforced: judgement(Verdict::Allow),
            candidate: judgement(Verdict::Deny),
        }
    }

    fn walk(all: &mut Disagreements, flows: &[(u8, u16)]) {
        let state = State::default();
        let mut seen = Seen::at(SystemTime::now(), &state);
        flows.iter().for_each(|(source, port)| seen.add(found(*source, *port)));
        all.end_walk(seen);
    }

    #[test]
    fn a_flow_of_several_walks_counts_once_and_one_that_ends_does_not_run() {
        let mut all = Disagreements::default();
        walk(&mut all, &[(2, 1000), (2, 1001), (3, 1000)]);
        walk(&mut all, &[(2, 1001), (2, 1002)]);
        let (listed, left_out) = all.report();
        let of = |source: &str| {
            let entry = listed.iter().find(|entry| entry.source == source).unwrap();
            (entry.flows, entry.running, entry.denied)
        };
        assert_eq!((of("10.0.0.2"), of("10.0.0.3"), left_out), ((3, 2, 0), (1, 0, 0), 0));
        assert_eq!((listed[0].destination.as_str(), listed[0].port), ("10.0.0.1", 80));
    }

    #[test]
    fn a_denied_packet_is_no_flow_and_a_flow_no_denied_packet() {
        let mut all = Disagreements::default();
        all.note_denied(&found(2, 1000), &State::default());
        walk(&mut all, &[(3, 1000)]);
        let (listed, _) = all.report();
        let mut counts: Vec<_> =
            listed.iter().map(|entry| (entry.source.as_str(), entry.flows, entry.denied)).collect();
        counts.sort_unstable();
        assert_eq!(counts, [("10.0.0.2", 0, 1), ("10.0.0.3", 1, 0)]);
    }

    #[test]
    fn a_walk_over_many_flows_finds_the_names_of_many_pods_at_once() {
        use crate::control::protocol::PodRequest;
        use crate::control::state::PodRecord;
        use crate::ids::AttachmentId;
        let mut state = State::default();
        for n in 0..1000_u32 {
            let addresses =
                (0..8).map(|address| IpAddr::from((11 << 24 | n << 8 | address).to_be_bytes())).collect();
            let port = format!("veth-{n}");
            let request = PodRequest { port, addresses, ..PodRequest::default() };
            let name = PodName::new("default", format!("pod-{n:04}"));
            state.pods.insert(name, PodRecord { attachment: AttachmentId(1), request, draining: false });
        }
        let mut seen = Seen::at(SystemTime::now(), &state);
        // A flow is a look-up in this map, not a search through all pods.
        assert_eq!(seen.pods.len(), 8000);
        for n in 0..50_000_u32 {
            let mut one = found(2, n as u16);
            (one.key.src, one.key.dst) = ([11, 3, 231, 7].into(), [203, 0, 113, 1].into());
            seen.add(one);
        }
        let mut all = Disagreements::default();
        all.end_walk(seen);
        let (listed, _) = all.report();
        assert_eq!((listed[0].source.as_str(), listed[0].running), ("default/pod-0999", 50_000));
        assert_eq!(listed[0].destination, "203.0.113.1");
    }

    #[test]
    fn entries_are_bounded_and_the_others_counted() {
        let mut all = Disagreements::default();
        for n in 0..SHADOW_DISAGREEMENTS_MAX as u32 + 5 {
            let mut one = found(2, 1000);
            one.key.src = IpAddr::from((10 << 24 | n).to_be_bytes());
            all.note_denied(&one, &State::default());
        }
        let (listed, left_out) = all.report();
        assert_eq!((listed.len(), left_out), (SHADOW_DISAGREEMENTS_MAX, 5));
    }
}
