//! `NetworkPolicy`, `networking.k8s.io/v1`.

use ipnet::IpNet;

use super::selector::LabelSelector;
use crate::net::flow::Protocol;
use crate::tables::Direction;

/// `NetworkPolicy` with the API server's defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkPolicy {
    /// Namespace. The policy selects pods of this namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// `spec.podSelector`.
    pub pod_selector: LabelSelector,
    /// Ingress rules; `None` if `policyTypes` lacks `Ingress`, so that the policy does not isolate for
    /// ingress.
    pub ingress: Option<Vec<NetworkPolicyRule>>,
    /// Egress rules; `None` if `policyTypes` lacks `Egress`.
    pub egress: Option<Vec<NetworkPolicyRule>>,
    /// Directions with rules that `policyTypes` lacks. The API ignores these rules.
    pub ignored: Vec<Direction>,
    /// Whether the policy has the annotation `palisade.dev/mode: audit`: it is judged and not enforced.
    pub audited: bool,
    /// Metadata that an API server has assigned.
    pub assigned: AssignedMetadata,
}

/// Fields of `metadata` that the API server assigns; manifests need none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AssignedMetadata {
    /// `uid`.
    pub uid: Option<String>,
    /// `generation`: number of the version of the `spec`.
    pub generation: Option<i64>,
}

/// Entry of `spec.ingress` or `spec.egress`. It matches a flow if peers and ports match.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetworkPolicyRule {
    /// `from` or `to`.
    pub peers: Peers,
    /// `ports`.
    pub ports: Ports,
}

/// `from` or `to` of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peers {
    /// List is absent or empty: every address, pod or not.
    Everyone,
    /// Alternatives, at least one.
    Any(Vec<Peer>),
}

/// One peer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// `podSelector` and `namespaceSelector`.
    Pods {
        /// `namespaceSelector`; `None` is the policy's own namespace.
        namespaces: Option<LabelSelector>,
        /// `podSelector`; every pod if absent.
        pods: LabelSelector,
    },
    /// `ipBlock`.
    IpBlock(IpBlock),
}

/// Prefix without its exceptions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpBlock {
    /// `cidr`, host bits cleared.
    pub cidr: IpNet,
    /// `except`, host bits cleared, each a strict subset of `cidr`. Exceptions narrow this block and never
    /// deny.
    pub except: Vec<IpNet>,
}

impl IpBlock {
    /// Tests whether the block contains every address of its family.
    pub fn is_whole(&self) -> bool {
        self.cidr.prefix_len() == 0 && self.except.is_empty()
    }
}

/// `ports` of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ports {
    /// List is absent or empty: all ports of all protocols, ICMP included.
    All,
    /// Alternatives, at least one.
    Any(Vec<PortMatch>),
}

/// One entry of `ports`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortMatch {
    /// Destination ports `first..=last` of a protocol: all ports if `port` is absent.
    Range {
        /// TCP if absent.
        protocol: Protocol,
        /// `port`.
        first: u16,
        /// `endPort`, or `port`.
        last: u16,
    },
    /// Container ports with this name and protocol on the destination pod of the flow.
    Named {
        /// TCP if absent.
        protocol: Protocol,
        /// `port`, a name.
        name: String,
    },
}
