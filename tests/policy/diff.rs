//! Completeness of `palisade diff`. On random clusters before and after random changes, a flow is in the
//! difference exactly once, with the right direction of change, if and only if its verdict changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use palisade::net::flow::{FlowKey, Protocol};
use palisade::policy::connectivity::GroupNames;
use palisade::policy::connectivity::diff::{Change as FlowChange, ChangeKind, Endpoints, difference};
use palisade::policy::evaluate::TableEvaluator;
use palisade::policy::objects::Object;
use palisade::policy::{Change, Compiler, ObjectName, Options};
use palisade::tables::{PodName, Verdict};
use proptest::collection::vec;
use proptest::prelude::*;

type Objects = BTreeMap<ObjectName, Object>;

fn apply(objects: &mut Objects, changes: Vec<Change>) {
    for change in changes {
        match change {
            Change::Upsert(object) => drop(objects.insert(ObjectName::of(&object), object)),
            Change::Remove(name) => drop(objects.remove(&name)),
        }
    }
}

/// Gives each pod addresses of its own, the same before and after: a difference is between pods, not between
/// addresses.
fn assign_addresses(objects: &mut Objects, order: &BTreeMap<PodName, u8>) {
    for object in objects.values_mut() {
        match object {
            Object::Pod(pod) => {
                let host = order[&pod.name];
                pod.addresses = vec![IpAddr::from([10, 0, 0, host])];
                if host.is_multiple_of(2) {
                    pod.addresses.push(IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(host)]));
                }
            }
            Object::Node(node) => node.addresses.retain(|address| address.to_string().starts_with("10.0.1.")),
            _ => {}
        }
    }
}

fn evaluator(objects: &Objects) -> TableEvaluator {
    TableEvaluator::new(Compiler::from_objects(objects.values().cloned(), Options::default()).into_tables())
        .unwrap()
}

/// Tells whether an address is among the members, by its pod or by a prefix.
fn holds(members: &Endpoints, address: IpAddr, pods: &BTreeMap<IpAddr, PodName>) -> bool {
    if let Some(pod) = pods.get(&address) {
        return members.pods.contains(pod);
    }
    members.addresses.iter().any(|text| {
        let (cidr, except) = text.split_once(" except ").unwrap_or((text, ""));
        let within = |text: &str| text.parse::<IpNet>().unwrap().contains(&address);
        within(cidr) && !except.split(", ").filter(|text| !text.is_empty()).any(within)
    })
}

fn is_in(change: &FlowChange, flow: &FlowKey, pods: &BTreeMap<IpAddr, PodName>) -> bool {
    let family = if flow.src.is_ipv4() { "IPv4" } else { "IPv6" };
    change.family.is_none_or(|only| only == family)
        && change.traffic.contains(flow.protocol, flow.dst_port)
        && holds(&change.sources, flow.src, pods)
        && holds(&change.destinations, flow.dst, pods)
}

/// Verdict of a flow. A pod that does not exist has no flows; the tables decide on all others.
fn passes(evaluator: &TableEvaluator, flow: &FlowKey, pods: &BTreeMap<IpAddr, PodName>) -> bool {
    let is_there = |address| evaluator.classifier().pod_at(address).is_some() || !pods.contains_key(&address);
    is_there(flow.src) && is_there(flow.dst) && evaluator.verdict(flow) == Verdict::Allow
}

fn addresses(pods: &BTreeMap<IpAddr, PodName>, judges: [&TableEvaluator; 2]) -> [Vec<IpAddr>; 2] {
    let mut found: BTreeSet<IpAddr> = pods.keys().copied().collect();
    found.extend(["192.0.2.1", "2001:db8::1"].map(|text| text.parse::<IpAddr>().unwrap()));
    for net in judges.iter().flat_map(|evaluator| evaluator.tables().prefixes.keys()) {
        found.extend([net.network(), net.broadcast()]);
    }
    let (v4, v6) = found.into_iter().partition(IpAddr::is_ipv4);
    [v4, v6]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..crate::random::cases(25) })]

    #[test]
    fn a_flow_is_in_the_difference_exactly_if_its_verdict_changes(
        start in vec(crate::arbitrary::change(), 8..20),
        changes in vec(crate::arbitrary::change(), 0..5),
    ) {
        let mut old = Objects::new();
        apply(&mut old, start);
        let mut new = old.clone();
        apply(&mut new, changes);
        let names: BTreeSet<PodName> = old.values().chain(new.values()).filter_map(|object| match object {
            Object::Pod(pod) => Some(pod.name.clone()),
            _ => None,
        }).collect();
        let order: BTreeMap<PodName, u8> = names.into_iter().zip(0..).collect();
        assign_addresses(&mut old, &order);
        assign_addresses(&mut new, &order);
        let (before, after) = (evaluator(&old), evaluator(&new));
        let tables = [before.tables(), after.tables()];
        let pods: BTreeMap<IpAddr, PodName> = tables.iter().flat_map(|tables| &tables.pods).flat_map(|(name, pod)| {
            pod.addresses.iter().map(move |address| (*address, name.clone()))
        }).collect();
        let found = difference(&before, &after, &GroupNames::of(old.values()));
        let families = addresses(&pods, [&before, &after]);
        for family in &families {
            for (&src, &dst) in family.iter().flat_map(|src| family.iter().map(move |dst| (src, dst))) {
                let is_pod = pods.contains_key(&src) || pods.contains_key(&dst);
                if !is_pod || pods.get(&src).is_some_and(|pod| pods.get(&dst) == Some(pod)) {
                    continue;
                }
                for (protocol, port) in [(Protocol::TCP, 80), (Protocol::TCP, 81), (Protocol::UDP, 79), (Protocol::SCTP, 1), (Protocol::ICMP, 0)] {
                    let flow = FlowKey { src, dst, protocol, src_port: 9, dst_port: port };
                    let turns: Vec<ChangeKind> =
                        found.changes.iter().filter(|change| is_in(change, &flow, &pods)).map(|change| change.kind).collect();
                    let expected = match (passes(&before, &flow, &pods), passes(&after, &flow, &pods)) {
                        (false, true) => vec![ChangeKind::Opens],
                        (true, false) => vec![ChangeKind::Closes],
                        _ => vec![],
                    };
                    prop_assert_eq!(turns, expected, "{}", flow);
                }
            }
        }
    }

    #[test]
    fn a_cluster_does_not_differ_from_itself(changes in vec(crate::arbitrary::change(), 0..20)) {
        let mut objects = Objects::new();
        apply(&mut objects, changes);
        let evaluator = evaluator(&objects);
        prop_assert!(difference(&evaluator, &evaluator, &GroupNames::default()).is_empty());
    }
}
