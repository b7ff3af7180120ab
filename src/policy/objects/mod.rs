//! Policy objects: validated, with defaults, reduced to the fields that policy depends on.
//!
//! Absent and empty differ: an absent peer list is every peer ([`Peers::Everyone`]), an empty selector is
//! every pod ([`LabelSelector::default`]), an empty list of rules allows nothing.

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

/// Object that policy depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// Pod.
    Pod(Pod),
    /// Namespace.
    Namespace(Namespace),
    /// Node.
    Node(Node),
    /// `NetworkPolicy`.
    NetworkPolicy(NetworkPolicy),
    /// `ClusterNetworkPolicy`, or an older cluster-wide policy converted to one.
    ClusterNetworkPolicy(ClusterNetworkPolicy),
}
