//! Stored objects.

use std::collections::{BTreeMap, BTreeSet};

use super::slots::{NamespaceSlot, PodSlot};
use crate::policy::objects::{
    ClusterNetworkPolicy, ClusterPort, Labels, NetworkPolicy, Pod, PortMatch, Ports, Tier,
};
use crate::tables::PolicyKind;

/// The label that names a namespace, on every namespace.
pub(crate) const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// The order in which cluster-wide policies are asked.
pub(crate) type Rank = (Tier, u32, String, PolicyKind);

/// A pod, and where it belongs.
#[derive(Debug)]
pub(crate) struct StoredPod {
    /// The object.
    pub(crate) pod: Pod,
    /// Its namespace.
    pub(crate) namespace: NamespaceSlot,
}

/// A namespace: declared by an object, or only mentioned by others.
#[derive(Debug, Default)]
pub(crate) struct StoredNamespace {
    /// Its name.
    pub(crate) name: String,
    /// Its labels, the one with its name included.
    pub(crate) labels: Labels,
    /// Its live pods, sorted.
    pub(crate) pods: Vec<PodSlot>,
    /// Its policies, by name.
    pub(crate) policies: BTreeMap<String, Versioned<NetworkPolicy>>,
    pub(super) declared: bool,
    pub(super) pods_of_any_kind: usize,
}

/// A policy, with a number that changes whenever it does.
#[derive(Debug)]
pub(crate) struct Versioned<P> {
    /// The number; never used twice.
    pub(crate) version: u64,
    /// The object.
    pub(crate) policy: P,
    /// Names by which its rules for traffic in ask for ports: those of the pods that it selects. Sorted.
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
