//! `ClusterNetworkPolicy`, `policy.networking.k8s.io/v1alpha2`. Older cluster-wide policies are converted to
//! it.

use ipnet::IpNet;

use super::selector::LabelSelector;
use crate::net::flow::Protocol;
use crate::tables::PolicyKind;

/// `ClusterNetworkPolicy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterNetworkPolicy {
    /// Kind of the manifest. Decisions name this kind.
    pub kind: PolicyKind,
    /// Name.
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
    /// Whether the policy has the annotation `palisade.dev/mode: audit`: it is judged and not enforced.
    pub audited: bool,
}

/// Tier of a policy, relative to `NetworkPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Evaluated before `NetworkPolicy`.
    Admin,
    /// Evaluated after `NetworkPolicy`, and only for pods that none isolates.
    Baseline,
}

/// Pods by namespace and label, without pods on the host's network.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodScope {
    /// Namespaces by label.
    pub namespaces: LabelSelector,
    /// Labels of pods in these namespaces; every pod for the `namespaces` form.
    pub pods: LabelSelector,
}

/// Rule of a direction.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterRule {
    /// `name`.
    pub name: Option<String>,
    /// `action`.
    pub action: ClusterAction,
    /// `from` or `to`, at least one. A peer of an unknown kind fails closed: an Accept rule matches nothing
    /// for that peer, and the parser turns a Deny or Pass rule into a Deny of everything.
    pub peers: Vec<ClusterPeer>,
    /// `protocols`; `None` is all traffic.
    pub ports: Option<Vec<ClusterPort>>,
}

/// Action of a matching rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClusterAction {
    /// Allows the flow, final.
    Accept,
    /// Denies the flow, final.
    Deny,
    /// Skips the rest of the tier.
    Pass,
}

/// Peer of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClusterPeer {
    /// `namespaces` or `pods`.
    Pods(PodScope),
    /// Entry of `networks`: every address in it, those of pods included.
    Network(IpNet),
    /// `nodes`: the addresses of nodes with these labels.
    Nodes(LabelSelector),
    /// Entry of `domainNames`, lower case: `example.com`, or `*.example.com`. Matches nothing, because the
    /// compiler knows no addresses of names.
    DomainName(String),
    /// Every address. The parser uses it for a peer of an unknown kind in a rule that denies.
    Everyone,
}

/// Entry of `protocols`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClusterPort {
    /// `tcp`, `udp` or `sctp`.
    Range {
        /// Protocol.
        protocol: Protocol,
        /// First port, 0 if absent.
        first: u16,
        /// Last port, 65535 if absent.
        last: u16,
    },
    /// `destinationNamedPort`: container ports with this name on the destination pod. The protocol is that of
    /// the container port, or the given one of older kinds.
    Named {
        /// `None` is the protocol of the container port.
        protocol: Option<Protocol>,
        /// Name.
        name: String,
    },
}
