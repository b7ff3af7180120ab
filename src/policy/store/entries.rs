//! Entries of the store.

use std::collections::{BTreeMap, BTreeSet};

use super::slots::{NamespaceSlot, PodSlot};
use crate::policy::objects::{
    ClusterNetworkPolicy, ClusterPort, Labels, NetworkPolicy, Pod, PortMatch, Ports, Tier,
};
use crate::tables::PolicyKind;

/// Evaluation order of cluster-wide policies.
pub(crate) type Rank = (Tier, u32, String, PolicyKind);

/// Pod and the slot of its namespace.
#[derive(Debug, Clone)]
pub(crate) struct StoredPod {
    /// Object.
    pub(crate) pod: Pod,
    /// Slot of the namespace.
    pub(crate) namespace: NamespaceSlot,
}

/// Namespace that an object declares or that other objects mention.
#[derive(Debug, Clone, Default)]
pub(crate) struct StoredNamespace {
    /// Name.
    pub(crate) name: String,
    /// Labels, including the one with the name.
    pub(crate) labels: Labels,
    /// Live pods, sorted.
    pub(crate) pods: Vec<PodSlot>,
    /// Policies, by name.
    pub(crate) policies: BTreeMap<String, Versioned<NetworkPolicy>>,
    pub(super) declared: bool,
    pub(super) pods_of_any_kind: usize,
}

/// Policy with a version.
#[derive(Debug, Clone)]
pub(crate) struct Versioned<P> {
    /// Version; never reused.
    pub(crate) version: u64,
    /// Object.
    pub(crate) policy: P,
    /// Port names of ingress rules, which refer to the ports of the selected pods. Sorted.
    pub(crate) own_port_names: Vec<String>,
}

impl Versioned<NetworkPolicy> {
    pub(super) fn network(version: u64, policy: NetworkPolicy) -> Versioned<NetworkPolicy> {
        let ports = policy.ingress.iter().flatten().filter_map(|rule| match &rule.ports {
            Ports::Any(ports) => Some(ports),
            Ports::All => None,
        });
        let names = ports.flatten().filter_map(|port| match port {
            PortMatch::Named { name, .. } => Some(name),
            PortMatch::Range { .. } => None,
        });
        let own_port_names = distinct(names);
        Versioned { version, policy, own_port_names }
    }
}

impl Versioned<ClusterNetworkPolicy> {
    pub(super) fn cluster(version: u64, policy: ClusterNetworkPolicy) -> Versioned<ClusterNetworkPolicy> {
        let ports = policy.ingress.iter().filter_map(|rule| rule.ports.as_ref());
        let names = ports.flatten().filter_map(|port| match port {
            ClusterPort::Named { name, .. } => Some(name),
            ClusterPort::Range { .. } => None,
        });
        let own_port_names = distinct(names);
        Versioned { version, policy, own_port_names }
    }
}

fn distinct<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let names: BTreeSet<&String> = names.collect();
    names.into_iter().cloned().collect()
}
