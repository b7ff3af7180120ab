//! Random histories of random clusters. After every change, tables and reference evaluator agree on random
//! packets, verdict and reason; the tables are evaluated through the classifier that followed the
//! differences.
//!
//! `PALISADE_HISTORIES` sets the number of histories, `PALISADE_SEED` the seed of the first one. A failure is
//! shrunk.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;

use ipnet::IpNet;
use palisade::net::flow::{FlowKey, Protocol};
use palisade::policy::evaluate::{ObjectIndex, ReferenceEvaluator};
use palisade::policy::objects::{ClusterPeer, IpBlock, Object, Peer, Peers};
use palisade::policy::{Change, Compiler, ObjectName, Options};
use palisade::tables::{Classifier, Decision, PodName, RuleTables};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseError, TestError, TestRunner};

use crate::random::histories;

/// Number of histories, unless the environment sets it.
const HISTORIES: u64 = 60;
/// Seeds that are always played.
const SEEDS: Range<u64> = 0..30;
/// Number of packets after each change.
const PACKETS: usize = 24;

/// Random numbers that select source, destination, protocol and port.
pub(crate) type Pick = [u16; 4];

const PROTOCOLS: [Protocol; 6] =
    [Protocol::TCP, Protocol::UDP, Protocol::SCTP, Protocol::ICMP, Protocol::ICMPV6, Protocol(47)];
const PORTS: [u16; 11] = [0, 1, 2, 77, 78, 79, 80, 81, 82, 84, u16::MAX];

/// State of a history: the objects, and everything that followed their changes.
pub(crate) struct History {
    pub(crate) objects: BTreeMap<ObjectName, Object>,
    compiler: Compiler,
    pub(crate) tables: RuleTables,
    pub(crate) classifier: Classifier,
}

impl History {
    pub(crate) fn new() -> History {
        let tables = RuleTables::default();
        History {
            objects: BTreeMap::new(),
            compiler: Compiler::new(Options::default()),
            classifier: Classifier::new(&tables).unwrap(),
            tables,
        }
    }

    pub(crate) fn apply(&mut self, changes: Vec<Change>) {
        for change in &changes {
            match change {
                Change::Upsert(object) => drop(self.objects.insert(ObjectName::of(object), object.clone())),
                Change::Remove(name) => drop(self.objects.remove(name)),
            }
        }
        let difference = self.compiler.apply_all(changes);
        self.tables.apply(&difference);
        self.classifier = self.classifier.update(&difference, &self.tables);
    }

    /// Compares tables and reference evaluator on one packet.
    fn compare(&self, reference: &ReferenceEvaluator<'_>, flow: &FlowKey) -> Result<(), TestCaseError> {
        let judgement = self.classifier.decide_flow(flow);
        let answer = reference.evaluate(flow);
        for (compiled, naive, peer) in
            [(judgement.egress, &answer.egress, flow.dst), (judgement.ingress, &answer.ingress, flow.src)]
        {
            prop_assert_eq!(
                compiled.map(Decision::verdict),
                naive.as_ref().map(|naive| naive.verdict),
                "{}",
                flow
            );
            // If several objects claim the peer's address, any of them may give the reason.
            if self.claims(peer) <= 1 {
                let origin = compiled.map(|decision| &self.tables.rules[&decision.rule()]);
                prop_assert_eq!(origin, naive.as_ref().map(|naive| &naive.origin), "{}", flow);
            }
        }
        prop_assert_eq!(judgement.is_allow(), answer.verdict() == palisade::tables::Verdict::Allow);
        for owners in self.owners(flow) {
            let certain = self.with_owners(flow, owners);
            let verdict = ReferenceEvaluator::new(&certain).evaluate(flow).verdict();
            prop_assert!(
                verdict == palisade::tables::Verdict::Allow || !judgement.is_allow(),
                "{} if {:?} own the ends",
                flow,
                owners
            );
        }
        Ok(())
    }

    /// Pairs of pods that may own the two addresses (clause L4), each once; empty if only one pod claims each
    /// address.
    fn owners(&self, flow: &FlowKey) -> Vec<[Option<&PodName>; 2]> {
        let claimants = |address| -> Vec<Option<&PodName>> {
            let claims = self.objects.values().filter_map(|object| match object {
                Object::Pod(pod) if ObjectIndex::is_live(pod) && pod.addresses.contains(&address) => {
                    Some(Some(&pod.name))
                }
                _ => None,
            });
            let pods: Vec<_> = claims.collect();
            if pods.is_empty() { vec![None] } else { pods }
        };
        let (sources, destinations) = (claimants(flow.src), claimants(flow.dst));
        if sources.len() < 2 && destinations.len() < 2 {
            return Vec::new();
        }
        let pairs = sources
            .iter()
            .flat_map(|&source| destinations.iter().map(move |&destination| [source, destination]));
        pairs.filter(|[source, destination]| flow.src != flow.dst || source == destination).collect()
    }

    /// Copies the objects so that only these pods have the two addresses. Nodes keep theirs.
    fn with_owners(&self, flow: &FlowKey, owners: [Option<&PodName>; 2]) -> Vec<Object> {
        let mut objects: Vec<Object> = self.objects.values().cloned().collect();
        for object in &mut objects {
            let Object::Pod(pod) = object else { continue };
            for (address, owner) in [flow.src, flow.dst].into_iter().zip(owners) {
                let is_owner = owner == Some(&pod.name);
                pod.addresses.retain(|own| *own != address || is_owner);
            }
        }
        objects
    }

    fn claims(&self, address: IpAddr) -> usize {
        let claims = self.objects.values().filter(|object| match object {
            Object::Pod(pod) => ObjectIndex::is_live(pod) && pod.addresses.contains(&address),
            Object::Node(node) => node.addresses.contains(&address),
            _ => false,
        });
        claims.count()
    }

    /// Addresses of pods and nodes, and both sides of every border of a block, by family. Addresses of pods
    /// come again, as often as all others together.
    pub(crate) fn addresses(&self) -> [Vec<IpAddr>; 2] {
        let mut found = BTreeSet::from(["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()]);
        for object in self.objects.values() {
            match object {
                Object::Pod(pod) => found.extend(pod.addresses.iter().copied()),
                Object::Node(node) => found.extend(node.addresses.iter().copied()),
                Object::NetworkPolicy(policy) => {
                    let rules = policy.ingress.iter().chain(&policy.egress).flatten();
                    for peer in rules.flat_map(|rule| match &rule.peers {
                        Peers::Everyone => &[][..],
                        Peers::Any(peers) => peers,
                    }) {
                        if let Peer::IpBlock(IpBlock { cidr, except }) = peer {
                            except.iter().chain([cidr]).for_each(|cidr| borders(*cidr, &mut found));
                        }
                    }
                }
                Object::ClusterNetworkPolicy(policy) => {
                    for peer in policy.ingress.iter().chain(&policy.egress).flat_map(|rule| &rule.peers) {
                        if let ClusterPeer::Network(cidr) = peer {
                            borders(*cidr, &mut found);
                        }
                    }
                }
                Object::Namespace(_) | Object::Service(_) | Object::EndpointSlice(_) => {}
            }
        }
        let pods = self.objects.values().filter_map(|object| match object {
            Object::Pod(pod) if ObjectIndex::is_live(pod) => Some(&pod.addresses),
            _ => None,
        });
        let again = pods.flatten().copied().cycle().take(found.len());
        let (v4, v6) = found.iter().copied().chain(again).partition(IpAddr::is_ipv4);
        [v4, v6]
    }
}

/// Adds the first and last address of a prefix and their neighbours outside.
fn borders(cidr: IpNet, found: &mut BTreeSet<IpAddr>) {
    let step = |address: IpAddr, by: i128| match address {
        IpAddr::V4(address) => IpAddr::from(address.to_bits().wrapping_add_signed(by as i32).to_be_bytes()),
        IpAddr::V6(address) => IpAddr::from(address.to_bits().wrapping_add_signed(by).to_be_bytes()),
    };
    let (first, last) = (cidr.network(), cidr.broadcast());
    found.extend([first, last, step(first, -1), step(last, 1)]);
}

pub(crate) fn flow(addresses: &[Vec<IpAddr>; 2], [src, dst, protocol, port]: Pick) -> FlowKey {
    let pick = |list: &[IpAddr], number: u16| list[number as usize % list.len()];
    let family = &addresses[usize::from(src % 4 == 3)];
    let (src, dst) = (pick(family, src / 4), pick(family, dst));
    // One draw in three is TCP, as one rule in three is.
    let protocol = PROTOCOLS[(protocol as usize % 9).saturating_sub(3)];
    FlowKey { src, dst, protocol, src_port: 40_000, dst_port: PORTS[port as usize % PORTS.len()] }
}

fn replay(steps: Vec<(Vec<Change>, Vec<Pick>)>) -> Result<(), TestCaseError> {
    let mut history = History::new();
    for (changes, picks) in steps {
        history.apply(changes);
        let reference = ReferenceEvaluator::new(history.objects.values());
        let addresses = history.addresses();
        for pick in picks {
            history.compare(&reference, &flow(&addresses, pick))?;
        }
    }
    Ok(())
}

/// Strategy for a history: a whole cluster, then one or two changes at a time.
pub(crate) fn history() -> impl Strategy<Value = Vec<(Vec<Change>, Vec<Pick>)>> {
    let packets = || vec(any::<Pick>(), PACKETS);
    let start = (vec(crate::arbitrary::change(), 6..=14), packets());
    let later = vec((vec(crate::arbitrary::change(), 1..=2), packets()), 0..=3);
    (start, later).prop_map(|(start, later)| std::iter::once(start).chain(later).collect())
}

#[test]
fn tables_and_reference_agree_after_every_change_of_random_histories() {
    for seed in histories("policies", SEEDS, HISTORIES) {
        let config = ProptestConfig {
            cases: 1,
            failure_persistence: None,
            max_shrink_iters: 20_000,
            ..ProptestConfig::default()
        };
        match TestRunner::new_with_rng(config, seed.rng()).run(&history(), replay) {
            Ok(()) => {}
            Err(TestError::Fail(why, history)) => {
                let changes: Vec<_> = history.iter().map(|(changes, _)| changes).collect();
                panic!("{why}\nafter: {changes:#?}")
            }
            Err(TestError::Abort(why)) => panic!("{why}"),
        }
    }
}

#[test]
fn the_random_histories_see_every_kind_of_reason() {
    let mut runner = TestRunner::deterministic();
    let mut seen = BTreeMap::new();
    for _ in 0..300 {
        let mut replayed = History::new();
        for (changes, picks) in history().new_tree(&mut runner).unwrap().current() {
            replayed.apply(changes);
            let addresses = replayed.addresses();
            for pick in picks {
                let flow = flow(&addresses, pick);
                let judgement = replayed.classifier.decide_flow(&flow);
                for decision in judgement.egress.into_iter().chain(judgement.ingress) {
                    let kind = match &replayed.tables.rules[&decision.rule()] {
                        palisade::tables::RuleOrigin::NotIsolated { .. } => "not isolated".to_owned(),
                        palisade::tables::RuleOrigin::DefaultDeny { .. } => "default deny".to_owned(),
                        palisade::tables::RuleOrigin::OwnNode => "own node".to_owned(),
                        palisade::tables::RuleOrigin::Rule { policy, .. } => {
                            format!("{} {:?}", policy.kind, decision.verdict())
                        }
                    };
                    *seen.entry(kind).or_insert(0) += 1;
                }
            }
        }
    }
    let rare: Vec<_> = seen.iter().filter(|(_, times)| **times < 5).collect();
    assert!(seen.len() == 10 && rare.is_empty(), "{seen:#?}");
}
