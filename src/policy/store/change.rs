//! Changes to objects.

use crate::policy::objects::Object;
use crate::tables::{PodName, PolicyKind};

/// Change to one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Adds the object or replaces the one with its name.
    Upsert(Object),
    /// Removes the object. Removing an absent object has no effect.
    Remove(ObjectName),
}

/// Identity of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectName {
    /// Namespace.
    Namespace(String),
    /// Node.
    Node(String),
    /// `NetworkPolicy`.
    NetworkPolicy {
        /// Namespace.
        namespace: String,
        /// Name within the namespace.
        name: String,
    },
    /// Cluster-wide policy, by the kind of its manifest.
    ClusterNetworkPolicy {
        /// Kind.
        kind: PolicyKind,
        /// Name.
        name: String,
    },
    /// Pod.
    Pod(PodName),
    /// Service.
    Service {
        /// Namespace.
        namespace: String,
        /// Name within the namespace.
        name: String,
    },
    /// `EndpointSlice`.
    EndpointSlice {
        /// Namespace.
        namespace: String,
        /// Name within the namespace.
        name: String,
    },
}

impl ObjectName {
    /// Name of an object.
    pub fn of(object: &Object) -> ObjectName {
        match object {
            Object::Pod(pod) => ObjectName::Pod(pod.name.clone()),
            Object::Namespace(namespace) => ObjectName::Namespace(namespace.name.clone()),
            Object::Node(node) => ObjectName::Node(node.name.clone()),
            Object::NetworkPolicy(policy) => {
                ObjectName::NetworkPolicy { namespace: policy.namespace.clone(), name: policy.name.clone() }
            }
            Object::ClusterNetworkPolicy(policy) => {
                ObjectName::ClusterNetworkPolicy { kind: policy.kind, name: policy.name.clone() }
            }
            Object::Service(service) => {
                ObjectName::Service { namespace: service.namespace.clone(), name: service.name.clone() }
            }
            Object::EndpointSlice(slice) => {
                ObjectName::EndpointSlice { namespace: slice.namespace.clone(), name: slice.name.clone() }
            }
        }
    }
}
