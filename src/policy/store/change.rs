//! One object comes, changes, or goes.

use crate::policy::objects::Object;
use crate::tables::{PodName, PolicyKind};

/// A change to one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The object is new, or takes the place of the one with its name.
    Upsert(Object),
    /// The object is removed. One that was never there changes nothing.
    Remove(ObjectName),
}

/// What tells one object from the others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectName {
    /// A namespace.
    Namespace(String),
    /// A node.
    Node(String),
    /// A `NetworkPolicy`.
    NetworkPolicy {
        /// Its namespace.
        namespace: String,
        /// Its name in there.
        name: String,
    },
    /// A cluster-wide policy, of the kind it was written as.
    ClusterNetworkPolicy {
        /// Its kind.
        kind: PolicyKind,
        /// Its name.
        name: String,
    },
    /// A pod.
    Pod(PodName),
}

impl ObjectName {
    /// The name of an object.
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
        }
    }
}
