//! Strategies for clusters, policies and changes, drawn from few values so that rules match often and miss by
//! little.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use palisade::net::flow::Protocol;
use palisade::policy::objects::{
    AssignedMetadata, ClusterAction, ClusterNetworkPolicy, ClusterPeer, ClusterPort, ClusterRule,
    ContainerPort, IpBlock, LabelSelector, Labels, Namespace, NetworkPolicy, NetworkPolicyRule, Node, Object,
    Peer, Peers, Pod, PodScope, PortMatch, Ports, Readiness, Requirement, Tier,
};
use palisade::policy::{Change, ObjectName};
use palisade::tables::{PodName, PolicyKind};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

const NAMESPACES: &[&str] = &["east", "west"];
const NODES: &[&str] = &["n1", "n2"];
const KEYS: &[&str] = &["app", "env"];
const VALUES: &[&str] = &["", "db", "web"];
const PORT_NAMES: &[&str] = &["http", "admin"];
const PROTOCOLS: &[Protocol] = &[Protocol::TCP, Protocol::UDP, Protocol::SCTP];
/// Blocks that cut across the two /29s and the /125 of pods and nodes.
const BLOCKS: &[&str] = &[
    "0.0.0.0/0",
    "10.0.0.0/8",
    "10.0.0.0/29",
    "10.0.0.0/30",
    "10.0.0.4/31",
    "10.0.0.4/32",
    "10.0.0.5/32",
    "10.0.1.0/29",
    "10.0.1.2/31",
    "198.51.100.0/24",
    "198.51.100.128/25",
    "::/0",
    "fd00::/64",
    "fd00::/126",
    "fd00::2/128",
];

/// Strategy for one object that is added, changed or removed.
pub(crate) fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => object().prop_map(Change::Upsert),
        1 => object().prop_map(|object| Change::Remove(ObjectName::of(&object))),
    ]
}

fn object() -> impl Strategy<Value = Object> {
    prop_oneof![
        6 => pod().prop_map(Object::Pod),
        1 => namespace().prop_map(Object::Namespace),
        2 => node().prop_map(Object::Node),
        3 => network_policy().prop_map(Object::NetworkPolicy),
        6 => cluster_policy().prop_map(Object::ClusterNetworkPolicy),
    ]
}

fn text(from: &'static [&'static str]) -> impl Strategy<Value = String> {
    select(from).prop_map(str::to_owned)
}

fn labels() -> impl Strategy<Value = Labels> {
    btree_map(text(KEYS), text(VALUES), 0..=2)
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        3 => (0..8_u8).prop_map(|host| IpAddr::from([10, 0, 0, host])),
        2 => (0..8_u8).prop_map(|host| IpAddr::from([10, 0, 1, host])),
        2 => (0..8_u16).prop_map(|host| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, host])),
    ]
}

fn pod() -> impl Strategy<Value = Pod> {
    let state = prop_oneof![8 => Just((false, false)), 1 => Just((true, false)), 1 => Just((false, true))];
    let port = (option::weighted(0.8, text(PORT_NAMES)), select(PROTOCOLS), port_number());
    let ports = vec(port.prop_map(|(name, protocol, port)| ContainerPort { name, protocol, port }), 0..=3);
    let name = (text(NAMESPACES), text(&["a", "b", "c"]));
    let addresses = vec(address(), 0..=2).prop_map(|mut list| {
        list.dedup();
        list
    });
    let node = (option::weighted(0.8, text(NODES)), vec(address(), 0..=1));
    let addresses = (addresses, prop::bool::weighted(0.1));
    (name, labels(), addresses, node, state, ports).prop_map(
        |(
            (namespace, name),
            labels,
            (addresses, placeholder),
            (node, host_ips),
            (host_network, finished),
            ports,
        )| Pod {
            name: PodName::new(namespace, name),
            labels,
            addresses,
            placeholder,
            node,
            host_ips,
            host_network,
            finished,
            readiness: Readiness::default(),
            ports,
        },
    )
}

fn namespace() -> impl Strategy<Value = Namespace> {
    (text(NAMESPACES), labels()).prop_map(|(name, mut labels)| {
        labels.insert("kubernetes.io/metadata.name".to_owned(), name.clone());
        Namespace { name, labels }
    })
}

fn node() -> impl Strategy<Value = Node> {
    (text(NODES), labels(), vec(address(), 0..=2)).prop_map(|(name, labels, addresses)| Node {
        name,
        labels,
        addresses,
    })
}

fn requirement() -> impl Strategy<Value = Requirement> {
    let values = || {
        vec(text(VALUES), 1..=2)
            .prop_map(|values| values.into_iter().collect::<BTreeSet<_>>().into_iter().collect())
    };
    let namespace = text(NAMESPACES).prop_map(|name| Requirement::In {
        key: "kubernetes.io/metadata.name".to_owned(),
        values: vec![name],
    });
    prop_oneof![
        4 => (text(KEYS), values()).prop_map(|(key, values)| Requirement::In { key, values }),
        2 => (text(KEYS), values()).prop_map(|(key, values)| Requirement::NotIn { key, values }),
        1 => text(KEYS).prop_map(|key| Requirement::Exists { key }),
        1 => text(KEYS).prop_map(|key| Requirement::DoesNotExist { key }),
        1 => namespace,
    ]
}

/// Strategy for a selector, mostly of one requirement, so that joined selectors still select a pod.
fn selector() -> impl Strategy<Value = LabelSelector> {
    let count = prop_oneof![4 => Just(0), 4 => Just(1), 1 => Just(2)];
    count.prop_flat_map(|count| vec(requirement(), count)).prop_map(|requirements| {
        let sorted: BTreeSet<_> = requirements.into_iter().collect();
        LabelSelector { requirements: sorted.into_iter().collect() }
    })
}

fn network() -> impl Strategy<Value = IpNet> {
    // Every entry of the list parses as a prefix.
    select(BLOCKS).prop_map(|text| text.parse().unwrap())
}

fn block() -> impl Strategy<Value = IpBlock> {
    (network(), vec(network(), 0..=3)).prop_map(|(cidr, mut except)| {
        except.retain(|inside| cidr.contains(inside) && *inside != cidr);
        IpBlock { cidr, except }
    })
}

fn port_number() -> impl Strategy<Value = u16> {
    prop_oneof![6 => 78..84_u16, 1 => Just(1), 1 => Just(u16::MAX)]
}

fn port_range() -> impl Strategy<Value = (u16, u16)> {
    prop_oneof![
        3 => port_number().prop_map(|port| (port, port)),
        3 => (port_number(), port_number()).prop_map(|(a, b)| (a.min(b), a.max(b))),
        1 => Just((0, u16::MAX)),
    ]
}

fn network_rule() -> impl Strategy<Value = NetworkPolicyRule> {
    let pods =
        (option::of(selector()), selector()).prop_map(|(namespaces, pods)| Peer::Pods { namespaces, pods });
    let peer = prop_oneof![3 => pods, 2 => block().prop_map(Peer::IpBlock)];
    let peers = prop_oneof![1 => Just(Peers::Everyone), 4 => vec(peer, 1..=2).prop_map(Peers::Any)];
    let range = (select(PROTOCOLS), port_range()).prop_map(|(protocol, (first, last))| PortMatch::Range {
        protocol,
        first,
        last,
    });
    let named = (select(PROTOCOLS), text(PORT_NAMES))
        .prop_map(|(protocol, name)| PortMatch::Named { protocol, name });
    let port = prop_oneof![2 => range, 1 => named];
    let ports = prop_oneof![2 => Just(Ports::All), 3 => vec(port, 1..=2).prop_map(Ports::Any)];
    (peers, ports).prop_map(|(peers, ports)| NetworkPolicyRule { peers, ports })
}

fn network_policy() -> impl Strategy<Value = NetworkPolicy> {
    let rules = || option::weighted(0.7, vec(network_rule(), 0..=2));
    (text(NAMESPACES), text(&["p", "q"]), selector(), rules(), rules()).prop_map(
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

fn scope() -> impl Strategy<Value = PodScope> {
    (selector(), selector()).prop_map(|(namespaces, pods)| PodScope { namespaces, pods })
}

fn cluster_rule() -> impl Strategy<Value = ClusterRule> {
    let action = select(&[ClusterAction::Accept, ClusterAction::Deny, ClusterAction::Pass][..]);
    let peer = prop_oneof![
        6 => scope().prop_map(ClusterPeer::Pods),
        3 => network().prop_map(ClusterPeer::Network),
        2 => selector().prop_map(ClusterPeer::Nodes),
        1 => Just(ClusterPeer::DomainName("*.example.com".to_owned())),
        1 => Just(ClusterPeer::Everyone),
    ];
    let range = (select(PROTOCOLS), port_range()).prop_map(|(protocol, (first, last))| ClusterPort::Range {
        protocol,
        first,
        last,
    });
    let named = (option::of(select(PROTOCOLS)), text(PORT_NAMES))
        .prop_map(|(protocol, name)| ClusterPort::Named { protocol, name });
    let ports = option::weighted(0.5, vec(prop_oneof![2 => range, 1 => named], 1..=2));
    (option::of(text(&["rule"])), action, vec(peer, 1..=2), ports)
        .prop_map(|(name, action, peers, ports)| ClusterRule { name, action, peers, ports })
}

fn cluster_policy() -> impl Strategy<Value = ClusterNetworkPolicy> {
    let kinds = prop_oneof![
        2 => (Just(PolicyKind::ClusterNetworkPolicy), select(&[Tier::Admin, Tier::Baseline][..])),
        1 => Just((PolicyKind::AdminNetworkPolicy, Tier::Admin)),
        1 => Just((PolicyKind::BaselineAdminNetworkPolicy, Tier::Baseline)),
    ];
    let rules = || vec(cluster_rule(), 0..=3);
    (kinds, text(&["k", "l"]), 0..3_u32, scope(), rules(), rules()).prop_map(
        |((kind, tier), name, priority, subject, ingress, egress)| ClusterNetworkPolicy {
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
