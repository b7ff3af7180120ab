//! Policies in audit mode (`palisade.dev/mode: audit`): judged, and not enforced.
//!
//! Enforced tables are compiled from all objects without the audited policies. Tables for the audit are compiled from all
//! objects, so that they decide as if every audited policy were enforced.

use super::objects::Object;
use super::store::{Change, ObjectName};
use crate::tables::{PolicyKind, PolicyRef};

impl Change {
    /// The change for enforced tables: an audited policy is not among their objects.
    #[must_use]
    pub fn enforced(self) -> Change {
        match self {
            Change::Upsert(object) if object.is_audited() => Change::Remove(ObjectName::of(&object)),
            change => change,
        }
    }
}

/// Reference to a policy object; `None` for other objects.
pub fn policy_of(object: &Object) -> Option<PolicyRef> {
    match ObjectName::of(object) {
        ObjectName::NetworkPolicy { namespace, name } => {
            Some(PolicyRef { kind: PolicyKind::NetworkPolicy, namespace, name })
        }
        ObjectName::ClusterNetworkPolicy { kind, name } => {
            Some(PolicyRef { kind, namespace: String::new(), name })
        }
        _ => None,
    }
}

/// References to the audited policies among objects, sorted.
pub fn audited_policies<'a>(objects: impl IntoIterator<Item = &'a Object>) -> Vec<PolicyRef> {
    let audited = objects.into_iter().filter(|object| object.is_audited());
    let mut policies: Vec<PolicyRef> = audited.filter_map(policy_of).collect();
    policies.sort();
    policies.dedup();
    policies
}
