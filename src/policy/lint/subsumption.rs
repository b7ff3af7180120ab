//! Subsumption of rules by their text: a selector with more requirements selects less, a longer prefix
//! contains less. Returns `false` if the text does not suffice.

mod prefixes;

use ipnet::IpNet;

pub(super) use prefixes::Prefixes;

use crate::policy::objects::{
    ClusterPeer, ClusterPort, IpBlock, LabelSelector, NetworkPolicyRule, Peer, Peers, PodScope, PortMatch,
    Ports,
};

/// Tests whether `outer` matches every flow that `inner` matches. Both rules belong to policies of one
/// namespace.
pub(super) fn network_rule(inner: &NetworkPolicyRule, outer: &NetworkPolicyRule) -> bool {
    // The comparison of ports is cheaper than that of long lists of exceptions.
    ports(&inner.ports, &outer.ports) && peers(&inner.peers, &outer.peers)
}

/// Tests whether `outer` selects every object that `inner` selects.
pub(super) fn selector(inner: &LabelSelector, outer: &LabelSelector) -> bool {
    outer.requirements.iter().all(|requirement| inner.requirements.contains(requirement))
}

/// Tests whether every peer of `inner` is covered by a peer of `outer`.
pub(super) fn cluster_peers(inner: &[ClusterPeer], outer: &[ClusterPeer]) -> bool {
    inner.iter().all(|inner| outer.iter().any(|outer| cluster_peer(inner, outer)))
}

/// Tests whether every port of `inner` is covered by a port of `outer`.
pub(super) fn cluster_ports(inner: Option<&[ClusterPort]>, outer: Option<&[ClusterPort]>) -> bool {
    let (Some(inner), Some(outer)) = (inner, outer) else { return outer.is_none() };
    inner.iter().all(|inner| outer.iter().any(|outer| cluster_port(inner, outer)))
}

/// Tests whether the scope `outer` contains `inner`.
pub(super) fn scope(inner: &PodScope, outer: &PodScope) -> bool {
    selector(&inner.namespaces, &outer.namespaces) && selector(&inner.pods, &outer.pods)
}

fn peers(inner: &Peers, outer: &Peers) -> bool {
    match (inner, outer) {
        (_, Peers::Everyone) => true,
        (Peers::Everyone, Peers::Any(_)) => false,
        (Peers::Any(inner), Peers::Any(outer)) => {
            inner.iter().all(|inner| outer.iter().any(|outer| peer(inner, outer)))
        }
    }
}

fn peer(inner: &Peer, outer: &Peer) -> bool {
    match (inner, outer) {
        (Peer::IpBlock(inner), Peer::IpBlock(outer)) => block(inner, outer),
        (
            Peer::Pods { namespaces: inner_namespaces, pods: inner },
            Peer::Pods { namespaces: outer_namespaces, pods: outer },
        ) => {
            let namespaces = match (inner_namespaces, outer_namespaces) {
                (None, None) => true,
                (Some(inner), Some(outer)) => selector(inner, outer),
                // The namespace of the policy is one of all namespaces.
                (None, Some(outer)) => outer.is_everything(),
                (Some(_), None) => false,
            };
            namespaces && selector(inner, outer)
        }
        _ => false,
    }
}

/// Tests whether a block contains another. The inner block must not contain an address that the outer one
/// excepts.
fn block(inner: &IpBlock, outer: &IpBlock) -> bool {
    if !outer.cidr.contains(&inner.cidr) || outer.except.is_empty() {
        return outer.cidr.contains(&inner.cidr);
    }
    let own = Prefixes::of(&inner.except);
    outer.except.iter().all(|except| !overlap(*except, inner.cidr) || own.hold(*except))
}

/// Tests whether two prefixes overlap: one contains the other, or they are disjoint.
fn overlap(a: IpNet, b: IpNet) -> bool {
    a.contains(&b) || b.contains(&a)
}

/// Tests whether every port of `inner` is covered by a port of `outer`.
pub(super) fn ports(inner: &Ports, outer: &Ports) -> bool {
    match (inner, outer) {
        (_, Ports::All) => true,
        (Ports::All, Ports::Any(_)) => false,
        (Ports::Any(inner), Ports::Any(outer)) => {
            inner.iter().all(|inner| outer.iter().any(|outer| port(inner, outer)))
        }
    }
}

fn port(inner: &PortMatch, outer: &PortMatch) -> bool {
    match (inner, outer) {
        (
            PortMatch::Range { protocol: a, first, last },
            PortMatch::Range { protocol: b, first: lowest, last: highest },
        ) => a == b && lowest <= first && last <= highest,
        (
            PortMatch::Named { protocol: a, .. },
            PortMatch::Range { protocol: b, first: 0 | 1, last: u16::MAX },
        ) => a == b,
        (inner, outer) => inner == outer,
    }
}

fn cluster_peer(inner: &ClusterPeer, outer: &ClusterPeer) -> bool {
    match (inner, outer) {
        (_, ClusterPeer::Everyone) => true,
        (ClusterPeer::Pods(inner), ClusterPeer::Pods(outer)) => scope(inner, outer),
        (ClusterPeer::Network(inner), ClusterPeer::Network(outer)) => outer.contains(inner),
        (ClusterPeer::Nodes(inner), ClusterPeer::Nodes(outer)) => selector(inner, outer),
        (inner, outer) => inner == outer,
    }
}

fn cluster_port(inner: &ClusterPort, outer: &ClusterPort) -> bool {
    match (inner, outer) {
        (
            ClusterPort::Range { protocol: a, first, last },
            ClusterPort::Range { protocol: b, first: lowest, last: highest },
        ) => a == b && lowest <= first && last <= highest,
        (inner, outer) => inner == outer,
    }
}
