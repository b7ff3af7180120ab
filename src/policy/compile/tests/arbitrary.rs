//! Random objects of a small cluster.

use std::net::IpAddr;

use ipnet::IpNet;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;

use crate::net::flow::Protocol;
use crate::policy::objects::{
    AssignedMetadata, ClusterAction, ClusterNetworkPolicy, ClusterPeer, ClusterPort, ClusterRule,
    ContainerPort, IpBlock, LabelSelector, Labels, NAMESPACE_NAME_LABEL, Namespace, NetworkPolicy,
    NetworkPolicyRule, Node, Object, Peer, Peers, Pod, PodScope, PortMatch, Ports, Readiness, Requirement,
    Tier,
};
use crate::policy::store::{Change, ObjectName};
use crate::tables::{PodName, PolicyKind};

pub(super) fn name(names: &'static [&'static str]) -> impl Strategy<Value = String> {
    select(names).prop_map(str::to_owned)
}

pub(super) fn namespace_name() -> impl Strategy<Value = String> {
    name(&["x", "y", "z"])
}

pub(super) fn labels() -> impl Strategy<Value = Labels> {
    btree_map(name(&["app", "team"]), name(&["a", "b"]), 0..3)
}

pub(super) fn requirement() -> impl Strategy<Value = Requirement> {
    (name(&["app", "team"]), vec(name(&["a", "b", "c"]), 1..3), 0..6).prop_map(
        |(key, mut values, operator)| {
            values.sort_unstable();
            values.dedup();
            match operator {
                0 => Requirement::NotIn { key, values },
                1 => Requirement::Exists { key },
                2 => Requirement::DoesNotExist { key },
                _ => Requirement::In { key, values },
            }
        },
    )
}

pub(super) fn selector() -> impl Strategy<Value = LabelSelector> {
    vec(requirement(), 0..3).prop_map(|mut requirements| {
        requirements.sort_unstable();
        requirements.dedup();
        LabelSelector { requirements }
    })
}

/// Generates selectors of namespaces by label and by name. Namespaces without an object have a name label
/// too.
pub(super) fn namespace_selector() -> impl Strategy<Value = LabelSelector> {
    let named = namespace_name().prop_map(|name| {
        let key = NAMESPACE_NAME_LABEL.to_owned();
        LabelSelector { requirements: vec![Requirement::In { key, values: vec![name] }] }
    });
    prop_oneof![4 => selector(), 1 => named]
}

pub(super) fn prefix() -> impl Strategy<Value = IpNet> {
    let address = prop_oneof![address(), Just("192.0.2.1".parse().unwrap())];
    (address, select(&[0_u8, 8, 29, 30, 31, 32][..])).prop_map(|(address, length)| {
        let length = if address.is_ipv6() && length > 8 { length + 96 } else { length };
        IpNet::new_assert(address, length).trunc()
    })
}

pub(super) fn block() -> impl Strategy<Value = IpBlock> {
    (prefix(), vec(prefix(), 0..3)).prop_map(|(cidr, mut except)| {
        except.retain(|except| cidr.contains(except) && *except != cidr);
        IpBlock { cidr, except }
    })
}

pub(super) fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        4 => (0..12_u8).prop_map(|last| IpAddr::from([10, 0, 0, last])),
        1 => (0..6_u16).prop_map(|last| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last])),
    ]
}

pub(super) fn protocol() -> impl Strategy<Value = Protocol> {
    select(&[Protocol::TCP, Protocol::TCP, Protocol::UDP, Protocol::SCTP][..])
}

pub(super) fn range() -> impl Strategy<Value = (u16, u16)> {
    prop_oneof![
        3 => select(&[53_u16, 80, 81, 443][..]).prop_map(|port| (port, port)),
        1 => Just((80, 443)),
        1 => Just((0, u16::MAX)),
    ]
}

pub(super) fn container_port() -> impl Strategy<Value = ContainerPort> {
    (prop::option::weighted(0.8, name(&["http", "dns"])), protocol(), select(&[53_u16, 80, 81][..]))
        .prop_map(|(name, protocol, port)| ContainerPort { name, protocol, port })
}

pub(super) fn pod() -> impl Strategy<Value = Pod> {
    let identity = (namespace_name(), name(&["p", "q", "r", "s"]));
    let node = (prop::option::weighted(0.8, name(&["n1", "n2"])), vec(address(), 0..2));
    let fate = (node, 0..12_u8);
    let what = (labels(), vec(address(), 0..3), vec(container_port(), 0..3));
    (identity, fate, what).prop_map(
        |((namespace, name), ((node, host_ips), fate), (labels, addresses, ports))| Pod {
            name: PodName::new(namespace, name),
            labels,
            addresses,
            placeholder: fate == 2,
            node,
            host_ips,
            host_network: fate == 0,
            finished: fate == 1,
            readiness: Readiness::default(),
            ports,
        },
    )
}

pub(super) fn peer() -> impl Strategy<Value = Peer> {
    prop_oneof![
        2 => (prop::option::of(namespace_selector()), selector()).prop_map(|(namespaces, pods)| Peer::Pods { namespaces, pods }),
        1 => block().prop_map(Peer::IpBlock),
    ]
}

pub(super) fn port_match() -> impl Strategy<Value = PortMatch> {
    prop_oneof![
        2 => (protocol(), range()).prop_map(|(protocol, (first, last))| PortMatch::Range { protocol, first, last }),
        1 => (protocol(), name(&["http", "dns"])).prop_map(|(protocol, name)| PortMatch::Named { protocol, name }),
    ]
}

pub(super) fn rule() -> impl Strategy<Value = NetworkPolicyRule> {
    let peers = prop_oneof![1 => Just(Peers::Everyone), 3 => vec(peer(), 1..3).prop_map(Peers::Any)];
    let ports = prop_oneof![1 => Just(Ports::All), 2 => vec(port_match(), 1..3).prop_map(Ports::Any)];
    (peers, ports).prop_map(|(peers, ports)| NetworkPolicyRule { peers, ports })
}

pub(super) fn network_policy() -> impl Strategy<Value = NetworkPolicy> {
    let rules = || prop::option::of(vec(rule(), 0..3));
    (namespace_name(), name(&["a", "b", "c"]), selector(), rules(), rules()).prop_map(
        |(namespace, name, pod_selector, ingress, egress)| NetworkPolicy {
            namespace,
            name,
            pod_selector,
            ingress,
            egress,
            ignored: Vec::new(),
            audited: false,
            assigned: AssignedMetadata::default(),
        },
    )
}

pub(super) fn scope() -> impl Strategy<Value = PodScope> {
    (namespace_selector(), selector()).prop_map(|(namespaces, pods)| PodScope { namespaces, pods })
}

pub(super) fn cluster_rule() -> impl Strategy<Value = ClusterRule> {
    let peer = prop_oneof![
        3 => scope().prop_map(ClusterPeer::Pods),
        1 => prefix().prop_map(ClusterPeer::Network),
        1 => selector().prop_map(ClusterPeer::Nodes),
        1 => Just(ClusterPeer::DomainName("example.com".to_owned())),
        1 => Just(ClusterPeer::Everyone),
    ];
    let port = prop_oneof![
        2 => (protocol(), range()).prop_map(|(protocol, (first, last))| ClusterPort::Range { protocol, first, last }),
        1 => (prop::option::of(protocol()), name(&["http", "dns"]))
            .prop_map(|(protocol, name)| ClusterPort::Named { protocol, name }),
    ];
    let action = select(&[ClusterAction::Accept, ClusterAction::Deny, ClusterAction::Pass][..]);
    let rule_name = prop::option::of(name(&["one", "two"]));
    (rule_name, action, vec(peer, 1..3), prop::option::of(vec(port, 1..3)))
        .prop_map(|(name, action, peers, ports)| ClusterRule { name, action, peers, ports })
}

pub(super) fn cluster_policy() -> impl Strategy<Value = ClusterNetworkPolicy> {
    let kind = select(&[PolicyKind::ClusterNetworkPolicy, PolicyKind::AdminNetworkPolicy][..]);
    let tier = select(&[Tier::Admin, Tier::Baseline][..]);
    let rules = || vec(cluster_rule(), 0..3);
    (kind, name(&["a", "b"]), tier, 0..2_u32, scope(), rules(), rules()).prop_map(
        |(kind, name, tier, priority, subject, ingress, egress)| ClusterNetworkPolicy {
            kind,
            name,
            tier,
            priority,
            subject,
            ingress,
            egress,
            audited: false,
        },
    )
}

pub(super) fn object() -> impl Strategy<Value = Object> {
    let namespace = (namespace_name(), labels()).prop_map(|(name, mut labels)| {
        labels.insert(NAMESPACE_NAME_LABEL.to_owned(), name.clone());
        Object::Namespace(Namespace { name, labels })
    });
    let node = (name(&["n1", "n2"]), labels(), vec(address(), 0..3))
        .prop_map(|(name, labels, addresses)| Object::Node(Node { name, labels, addresses }));
    prop_oneof![
        6 => pod().prop_map(Object::Pod),
        1 => namespace,
        1 => node,
        4 => network_policy().prop_map(Object::NetworkPolicy),
        2 => cluster_policy().prop_map(Object::ClusterNetworkPolicy),
    ]
}

pub(super) fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => object().prop_map(Change::Upsert),
        1 => object().prop_map(|object| Change::Remove(ObjectName::of(&object))),
    ]
}
