//! `NetworkPolicy`, `networking.k8s.io/v1`.

use ipnet::IpNet;

use super::selector::LabelSelector;
use crate::net::flow::Protocol;
use crate::tables::Direction;

/// A `NetworkPolicy` with the API server's defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkPolicy {
    /// Its namespace: the pods it selects are here.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `spec.podSelector`.
    pub pod_selector: LabelSelector,
    /// Rules for traffic in; `None` where `policyTypes` lacks `Ingress`: the policy does not isolate.
    pub ingress: Option<Vec<NetworkPolicyRule>>,
    /// Rules for traffic out; `None` where `policyTypes` lacks `Egress`.
    pub egress: Option<Vec<NetworkPolicyRule>>,
    /// Directions that have rules and are not in `policyTypes`: these rules mean nothing.
    pub ignored: Vec<Direction>,
}

/// One entry of `spec.ingress` or `spec.egress`: matches where both its halves match.
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
    /// The list is absent or empty: every address, pod or not.
    Everyone,
    /// Any of these, at least one.
    Any(Vec<Peer>),
}

/// One peer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// `podSelector` and `namespaceSelector`.
    Pods {
        /// `namespaceSelector`; `None` is the policy's own namespace.
        namespaces: Option<LabelSelector>,
        /// `podSelector`; every pod where absent.
        pods: LabelSelector,
    },
    /// `ipBlock`.
    IpBlock(IpBlock),
}

/// Addresses of a prefix, less some.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpBlock {
    /// `cidr`, host bits cleared.
    pub cidr: IpNet,
    /// `except`, host bits cleared, each a strict subset of `cidr`. Narrows this block; never denies.
    pub except: Vec<IpNet>,
}

impl IpBlock {
    /// Whether the block holds every address of its family.
    pub fn is_whole(&self) -> bool {
        self.cidr.prefix_len() == 0 && self.except.is_empty()
    }
}

/// `ports` of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ports {
    /// The list is absent or empty: all ports of all protocols, ICMP included.
    All,
    /// Any of these, at least one.
    Any(Vec<PortMatch>),
}

/// One entry of `ports`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortMatch {
    /// Destination ports `first..=last` of a protocol: all ports where `port` is absent.
    Range {
        /// TCP where absent.
        protocol: Protocol,
        /// `port`.
        first: u16,
        /// `endPort`, or `port`.
        last: u16,
    },
    /// The container ports with this name and protocol on the destination pod of the flow.
    Named {
        /// TCP where absent.
        protocol: Protocol,
        /// `port`, a name.
        name: String,
    },
}
