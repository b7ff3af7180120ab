//! Objects of policies and Services: validated, with defaults, reduced to the fields that either depends on.
//!
//! Absent and empty differ: an absent peer list is every peer ([`Peers::Everyone`]), an empty selector is
//! every pod ([`LabelSelector::default`]), an empty list of rules allows nothing.

mod cluster_network_policy;
mod cluster_objects;
mod network_policy;
pub(in crate::policy) mod replicas;
mod selector;
mod service;

pub use cluster_network_policy::{
    ClusterAction, ClusterNetworkPolicy, ClusterPeer, ClusterPort, ClusterRule, PodScope, Tier,
};
pub use cluster_objects::{ContainerPort, Labels, NAMESPACE_NAME_LABEL, Namespace, Node, Pod, Readiness};
pub use network_policy::{
    AssignedMetadata, IpBlock, NetworkPolicy, NetworkPolicyRule, Peer, Peers, PortMatch, Ports,
};
pub use selector::{LabelSelector, Requirement};
pub use service::{
    AddressFamily, Endpoint, EndpointPort, EndpointSlice, PortOfService, Service, ServiceKind, ServiceName,
    TargetPort, TrafficDistribution, TrafficPolicy,
};

/// Object that policies or Services depend on.
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
    /// Service.
    Service(Service),
    /// `EndpointSlice`.
    EndpointSlice(EndpointSlice),
}

impl Object {
    /// Tests whether policy depends on objects of this kind.
    pub fn is_of_policy(&self) -> bool {
        !matches!(self, Object::Service(_) | Object::EndpointSlice(_))
    }

    /// Tests for a policy with the annotation `palisade.dev/mode: audit`.
    pub fn is_audited(&self) -> bool {
        match self {
            Object::NetworkPolicy(policy) => policy.audited,
            Object::ClusterNetworkPolicy(policy) => policy.audited,
            Object::Pod(_)
            | Object::Namespace(_)
            | Object::Node(_)
            | Object::Service(_)
            | Object::EndpointSlice(_) => false,
        }
    }
}
