//! Short constructors of policy objects.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};
use palisade::net::flow::Protocol;
use palisade::policy::objects::{
    AssignedMetadata, ContainerPort, LabelSelector, Labels, NetworkPolicy, NetworkPolicyRule, Peers, Pod,
    PortMatch, Ports, Requirement,
};
use palisade::tables::PodName;

/// Name of a node.
pub(crate) fn node(number: usize) -> String {
    format!("node-{number}")
}

pub(crate) fn pod(namespace: &str, name: &str, labels: Labels, address: u32, on_node: usize) -> Pod {
    let port =
        |name: &str, port| ContainerPort { name: Some(name.to_owned()), protocol: Protocol::TCP, port };
    Pod {
        addresses: vec![IpAddr::V4(Ipv4Addr::from_bits(address))],
        node: Some(node(on_node)),
        ports: vec![port("http", 8080), port("metrics", 9090)],
        ..Pod::new(PodName::new(namespace, name), labels)
    }
}

pub(crate) fn policy(
    namespace: &str,
    name: &str,
    pod_selector: LabelSelector,
    ingress: Option<Vec<NetworkPolicyRule>>,
    egress: Option<Vec<NetworkPolicyRule>>,
) -> NetworkPolicy {
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    NetworkPolicy {
        namespace,
        name,
        pod_selector,
        ingress,
        egress,
        ignored: Vec::new(),
        audited: false,
        assigned: AssignedMetadata::default(),
    }
}

pub(crate) fn rule(peers: Peers, ports: Vec<PortMatch>) -> NetworkPolicyRule {
    NetworkPolicyRule { peers, ports: Ports::Any(ports) }
}

pub(crate) fn tcp(first: u16, last: u16) -> PortMatch {
    PortMatch::Range { protocol: Protocol::TCP, first, last }
}

pub(crate) fn udp(port: u16) -> PortMatch {
    PortMatch::Range { protocol: Protocol::UDP, first: port, last: port }
}

pub(crate) fn named(name: &str) -> PortMatch {
    PortMatch::Named { protocol: Protocol::TCP, name: name.to_owned() }
}

pub(crate) fn everything() -> LabelSelector {
    LabelSelector::default()
}

pub(crate) fn label(key: &str, value: &str) -> LabelSelector {
    LabelSelector {
        requirements: vec![Requirement::In { key: key.to_owned(), values: vec![value.to_owned()] }],
    }
}

pub(crate) fn v4(bits: u32, length: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::from_bits(bits), length).trunc())
}
