//! `ClusterNetworkPolicy`, `policy.networking.k8s.io/v1alpha2`; older cluster-wide policies are mapped to it.

use ipnet::IpNet;

use super::selector::LabelSelector;
use crate::net::flow::Protocol;
use crate::tables::PolicyKind;

/// A `ClusterNetworkPolicy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterNetworkPolicy {
    /// The kind it was written as: decisions name it so.
    pub kind: PolicyKind,
    /// Its name.
    pub name: String,
    /// `spec.tier`.
    pub tier: Tier,
    /// `spec.priority`, lower first; ties go by name, then kind.
    pub priority: u32,
    /// `spec.subject`.
    pub subject: PodScope,
    /// `spec.ingress`, in order.
    pub ingress: Vec<ClusterRule>,
    /// `spec.egress`, in order.
    pub egress: Vec<ClusterRule>,
}

/// Where a policy stands relative to `NetworkPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Before.
    Admin,
    /// After, and only for pods that no `NetworkPolicy` isolates.
    Baseline,
}

/// Pods by namespace and label. Pods on the host's network are never among them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodScope {
    /// Namespaces by label.
    pub namespaces: LabelSelector,
    /// Pods in them by label: every pod for the `namespaces` form.
    pub pods: LabelSelector,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterRule {
    /// `name`.
    pub name: Option<String>,
    /// `action`.
    pub action: ClusterAction,
    /// `from` or `to`, at least one. A peer of a kind that is not known here makes an Accept rule
    /// match nothing for that peer, and a Deny or Pass rule a Deny of everything (fail closed): the reader of objects
    /// writes it so.
    pub peers: Vec<ClusterPeer>,
    /// `protocols`; `None` is all traffic.
    pub ports: Option<Vec<ClusterPort>>,
}

/// What a matching rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClusterAction {
    /// Allow, final.
    Accept,
    /// Drop, final.
    Deny,
    /// Skip the rest of the tier.
    Pass,
}

/// One peer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClusterPeer {
    /// `namespaces` or `pods`.
    Pods(PodScope),
    /// One of `networks`: every address in it, pods included.
    Network(IpNet),
    /// `nodes`: the addresses of nodes with these labels.
    Nodes(LabelSelector),
    /// `domainNames` entry, lower case: `example.com`, or `*.example.com`. Addresses are learned elsewhere; none known
    /// means that nothing matches.
    DomainName(String),
    /// Every address: what a peer of an unknown kind becomes in a rule that then denies.
    Everyone,
}

/// One entry of `protocols`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClusterPort {
    /// `tcp`, `udp` or `sctp`.
    Range {
        /// The protocol.
        protocol: Protocol,
        /// First port, 0 where absent.
        first: u16,
        /// Last port, 65535 where absent.
        last: u16,
    },
    /// `destinationNamedPort`: container ports with this name on the destination pod, with their own protocol, or the
    /// given one (older kinds name one).
    Named {
        /// `None` is the container port's own.
        protocol: Option<Protocol>,
        /// The name.
        name: String,
    },
}
