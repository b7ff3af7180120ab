//! Mismatches: reasons for which a peer or a port of a rule does not match.

use std::net::IpAddr;

use serde::Serialize;

use crate::net::flow::Protocol;
use crate::policy::display;
use crate::policy::evaluate::{AddressOwner, PeerAddress, Query, ReferenceEvaluator, ports, selectors};
use crate::policy::objects::{
    ClusterAction, ClusterPeer, ClusterPort, IpBlock, LabelSelector, Labels, Peer, Pod, PodScope, PortMatch,
};

/// Subject of a mismatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MismatchKind {
    /// Address.
    Address,
    /// Peer is no pod.
    NotAPod,
    /// Namespace, by name.
    Namespace,
    /// Label of the namespace.
    NamespaceLabel,
    /// Label of the pod.
    PodLabel,
    /// Label of the node.
    NodeLabel,
    /// Protocol.
    Protocol,
    /// Destination port.
    Port,
}

/// Mismatch of a peer or a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// Subject.
    pub on: MismatchKind,
    /// Actual value and required value.
    pub text: String,
}

impl Mismatch {
    fn new(on: MismatchKind, text: String) -> Mismatch {
        Mismatch { on, text }
    }
}

/// Mismatch of a peer of a `NetworkPolicy`.
pub(super) fn network_peer(
    evaluator: &ReferenceEvaluator<'_>,
    namespace: &str,
    peer: &Peer,
    end: &PeerAddress<'_>,
) -> Mismatch {
    match peer {
        Peer::IpBlock(block) => address_mismatch(block, end),
        Peer::Pods { namespaces, pods } => match end.owner {
            AddressOwner::Pod(pod) => match namespaces {
                None if pod.name.namespace != namespace => Mismatch::new(
                    MismatchKind::Namespace,
                    format!("namespace {} is not the policy's own, {namespace}", pod.name.namespace),
                ),
                None => pod_label_mismatch(pods, pod),
                Some(namespaces) => pod_mismatch(evaluator, namespaces, pods, pod),
            },
            AddressOwner::Node(_) | AddressOwner::External => not_a_pod(evaluator, end.address),
        },
    }
}

/// Mismatch of a peer of a cluster-wide policy.
pub(super) fn cluster_peer(
    evaluator: &ReferenceEvaluator<'_>,
    peer: &ClusterPeer,
    end: &PeerAddress<'_>,
) -> Mismatch {
    match (peer, end.owner) {
        (ClusterPeer::Pods(PodScope { namespaces, pods }), AddressOwner::Pod(pod)) => {
            pod_mismatch(evaluator, namespaces, pods, pod)
        }
        (ClusterPeer::Pods(_), _) => not_a_pod(evaluator, end.address),
        (ClusterPeer::Network(cidr), _) => {
            address_mismatch(&IpBlock { cidr: *cidr, except: Vec::new() }, end)
        }
        (ClusterPeer::Nodes(selector), AddressOwner::Node(node)) => {
            let who = format!("node {}", node.name);
            Mismatch::new(MismatchKind::NodeLabel, label_mismatch(&who, selector, &node.labels))
        }
        (ClusterPeer::Nodes(_), _) => {
            Mismatch::new(MismatchKind::Address, format!("{} is no node's address", end.address))
        }
        (ClusterPeer::DomainName(name), _) => {
            Mismatch::new(MismatchKind::Address, format!("{} is not known to be {name}", end.address))
        }
        (ClusterPeer::Everyone, _) => unreachable!("everyone matches"),
    }
}

/// Text of an action.
pub(super) fn action(action: ClusterAction) -> &'static str {
    match action {
        ClusterAction::Accept => "accept",
        ClusterAction::Deny => "deny",
        ClusterAction::Pass => "pass",
    }
}

/// Mismatch of a port of a `NetworkPolicy`; `None` if the port matches.
pub(super) fn network_port(port: &PortMatch, query: &Query<'_>) -> Option<Mismatch> {
    match port {
        PortMatch::Range { protocol, first, last } => range_mismatch(*protocol, *first, *last, query),
        PortMatch::Named { protocol, name } => named_mismatch(Some(*protocol), name, query),
    }
}

/// Mismatch of a port of a cluster-wide policy; `None` if the port matches.
pub(super) fn cluster_port(port: &ClusterPort, query: &Query<'_>) -> Option<Mismatch> {
    match port {
        ClusterPort::Range { protocol, first, last } => range_mismatch(*protocol, *first, *last, query),
        ClusterPort::Named { protocol, name } => named_mismatch(*protocol, name, query),
    }
}

fn address_mismatch(block: &IpBlock, end: &PeerAddress<'_>) -> Mismatch {
    let (cidr, address) = (block.cidr, end.address);
    if let AddressOwner::Pod(pod) = end.owner
        && pod.placeholder
    {
        let text = format!(
            "pod {} has no address that could be in {cidr}: only a whole block is taken to hold it",
            pod.name
        );
        return Mismatch::new(MismatchKind::Address, text);
    }
    let text = match block.except.iter().find(|except| except.contains(&address)) {
        Some(except) => format!("{address} is excepted by {except} from {cidr}"),
        None if cidr.addr().is_ipv4() != address.is_ipv4() => {
            format!("{address} is not of the family of {cidr}")
        }
        None => format!("{address} is outside {cidr}"),
    };
    Mismatch::new(MismatchKind::Address, text)
}

fn not_a_pod(evaluator: &ReferenceEvaluator<'_>, address: IpAddr) -> Mismatch {
    Mismatch::new(MismatchKind::NotAPod, format!("{} is no pod", evaluator.display_owner(address)))
}

fn pod_mismatch(
    evaluator: &ReferenceEvaluator<'_>,
    namespaces: &LabelSelector,
    pods: &LabelSelector,
    pod: &Pod,
) -> Mismatch {
    let namespace = &pod.name.namespace;
    let labels = evaluator.namespace_labels(namespace);
    if selectors::selects(namespaces, &labels) {
        return pod_label_mismatch(pods, pod);
    }
    let who = format!("namespace {namespace}");
    Mismatch::new(MismatchKind::NamespaceLabel, label_mismatch(&who, namespaces, &labels))
}

fn pod_label_mismatch(pods: &LabelSelector, pod: &Pod) -> Mismatch {
    Mismatch::new(MismatchKind::PodLabel, label_mismatch(&format!("pod {}", pod.name), pods, &pod.labels))
}

/// First requirement that labels do not meet, and the actual label.
fn label_mismatch(who: &str, selector: &LabelSelector, labels: &Labels) -> String {
    let Some(unmet) = selectors::unmet(selector, labels) else {
        return format!("{who} is selected");
    };
    let wanted = display::requirement(unmet);
    match labels.get(unmet.key()) {
        Some(value) => format!("{who} has {}={value:?}, not {wanted}", unmet.key()),
        None => format!("{who} has no label {}, not {wanted}", unmet.key()),
    }
}

fn range_mismatch(protocol: Protocol, first: u16, last: u16, query: &Query<'_>) -> Option<Mismatch> {
    let wanted = display::ports(protocol, first, last);
    if query.protocol != protocol {
        return Some(Mismatch::new(MismatchKind::Protocol, format!("{} is not {wanted}", query.protocol)));
    }
    let port = query.dst_port;
    let is_inside = first <= port && port <= last;
    (!is_inside).then(|| Mismatch::new(MismatchKind::Port, format!("{protocol} {port} is not {wanted}")))
}

fn named_mismatch(protocol: Option<Protocol>, name: &str, query: &Query<'_>) -> Option<Mismatch> {
    let Some(pod) = ports::destination_pod(query) else {
        return Some(Mismatch::new(
            MismatchKind::Port,
            format!("{} has no ports with names", query.peer.address),
        ));
    };
    let is_asked = |own: Protocol| protocol.is_none_or(|protocol| protocol == own);
    let named: Vec<_> = pod
        .ports
        .iter()
        .filter(|port| port.name.as_deref() == Some(name) && is_asked(port.protocol))
        .collect();
    if named.is_empty() {
        let protocol = protocol.map(|protocol| format!("{protocol} ")).unwrap_or_default();
        return Some(Mismatch::new(
            MismatchKind::Port,
            format!("pod {} has no {protocol}port named {name}", pod.name),
        ));
    }
    if named.iter().any(|port| (port.protocol, port.port) == (query.protocol, query.dst_port)) {
        return None;
    }
    let numbers: Vec<String> = named.iter().map(|port| format!("{} {}", port.protocol, port.port)).collect();
    let kind = if named.iter().any(|port| port.protocol == query.protocol) {
        MismatchKind::Port
    } else {
        MismatchKind::Protocol
    };
    let numbers = numbers.join(", ");
    let text = format!(
        "{} {} is not {name} of pod {}, which is {numbers}",
        query.protocol, query.dst_port, pod.name
    );
    Some(Mismatch::new(kind, text))
}
