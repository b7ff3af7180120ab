//! Policy objects as the compiler sees them: validated, defaulted, free of everything that does not matter.
//!
//! Absent and empty stay apart: an absent peer list is everyone ([`Peers::Everyone`]), an empty selector is
//! every pod ([`LabelSelector::default`]), no rules is nobody (an empty `Vec` of rules).

mod cluster_network_policy;
mod cluster_objects;
mod network_policy;
pub(in crate::policy) mod replicas;
mod selector;

pub use cluster_network_policy::{
    ClusterAction, ClusterNetworkPolicy, ClusterPeer, ClusterPort, ClusterRule, PodScope, Tier,
};
pub use cluster_objects::{ContainerPort, Labels, Namespace, Node, Pod};
pub use network_policy::{IpBlock, NetworkPolicy, NetworkPolicyRule, Peer, Peers, PortMatch, Ports};
pub use selector::{LabelSelector, Requirement};

/// Any object that policy depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// A pod.
    Pod(Pod),
    /// A namespace.
    Namespace(Namespace),
    /// A node.
    Node(Node),
    /// A `NetworkPolicy`.
    NetworkPolicy(NetworkPolicy),
    /// A `ClusterNetworkPolicy`, or an older cluster-wide policy mapped to one.
    ClusterNetworkPolicy(ClusterNetworkPolicy),
}
