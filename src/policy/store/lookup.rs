//! Lookups in the store of objects.

use std::collections::{BTreeMap, BTreeSet};

use super::entries::{Rank, StoredNamespace, StoredPod, Versioned};
use super::label_index::LabelIndex;
use super::slots::{NamespaceSlot, NodeSlot, PodSlot, Slots};
use crate::policy::objects::{ClusterNetworkPolicy, LabelSelector, NetworkPolicy, Node, Pod};
use crate::tables::{PodName, PolicyKind};

/// Objects by slot, name and label.
#[derive(Debug, Clone, Default)]
pub(crate) struct Store {
    pub(super) node: Option<String>,
    pub(super) pods: Slots<PodSlot, StoredPod>,
    pub(super) pod_slots: BTreeMap<PodName, PodSlot>,
    pub(super) pod_labels: LabelIndex<PodSlot>,
    pub(super) local_pods: BTreeSet<PodSlot>,
    pub(super) namespaces: Slots<NamespaceSlot, StoredNamespace>,
    pub(super) namespace_slots: BTreeMap<String, NamespaceSlot>,
    pub(super) namespace_labels: LabelIndex<NamespaceSlot>,
    pub(super) nodes: Slots<NodeSlot, Node>,
    pub(super) node_slots: BTreeMap<String, NodeSlot>,
    pub(super) cluster_policies: BTreeMap<Rank, Versioned<ClusterNetworkPolicy>>,
    pub(super) ranks: BTreeMap<(PolicyKind, String), Rank>,
    pub(super) versions: u64,
}

impl Store {
    /// Empty store. With a node name only pods of that node are local.
    pub(crate) fn new(node: Option<String>) -> Store {
        Store { node, ..Store::default() }
    }

    /// Tests whether the store is empty.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.pods.len() + self.nodes.len() + self.namespaces.len() + self.ranks.len() == 0
    }

    /// Tests whether policy applies to a pod: it has an address, is not on the host's network, and has not
    /// finished.
    pub(crate) fn is_live(pod: &Pod) -> bool {
        !pod.host_network && !pod.finished && !pod.addresses.is_empty()
    }

    /// Tests whether the switch enforces policy for a pod.
    pub(crate) fn is_local(&self, pod: &Pod) -> bool {
        Store::is_live(pod) && (self.node.is_none() || self.node == pod.node)
    }

    /// Live pod in a slot.
    pub(crate) fn live_pod(&self, slot: PodSlot) -> Option<&StoredPod> {
        self.pods.get(slot).filter(|stored| Store::is_live(&stored.pod))
    }

    /// Slot of a pod.
    pub(crate) fn pod_slot(&self, name: &PodName) -> Option<PodSlot> {
        self.pod_slots.get(name).copied()
    }

    /// Tests whether the switch enforces policy for the pod of this name.
    pub(crate) fn enforces(&self, name: &PodName) -> bool {
        self.pod_slot(name)
            .and_then(|slot| self.pods.get(slot))
            .is_some_and(|stored| self.is_local(&stored.pod))
    }

    /// Pods, by name.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pod_slots.values().filter_map(|&slot| Some(&self.pods.get(slot)?.pod))
    }

    /// Node in a slot.
    pub(crate) fn node(&self, slot: NodeSlot) -> Option<&Node> {
        self.nodes.get(slot)
    }

    /// Nodes, by slot.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (NodeSlot, &Node)> {
        self.nodes.iter()
    }

    /// Slot of a node.
    pub(crate) fn node_slot(&self, name: &str) -> Option<NodeSlot> {
        self.node_slots.get(name).copied()
    }

    /// Namespace in a slot.
    pub(crate) fn namespace(&self, slot: NamespaceSlot) -> Option<&StoredNamespace> {
        self.namespaces.get(slot)
    }

    /// Slot of a namespace.
    pub(crate) fn namespace_slot(&self, name: &str) -> Option<NamespaceSlot> {
        self.namespace_slots.get(name).copied()
    }

    /// Namespaces whose labels match, sorted.
    pub(crate) fn namespaces_matching(&self, selector: &LabelSelector) -> Vec<NamespaceSlot> {
        let matching = |slot: &NamespaceSlot| {
            self.namespaces.get(*slot).is_some_and(|namespace| selector.matches(&namespace.labels))
        };
        let mut found: Vec<NamespaceSlot> = match self.namespace_labels.candidates(selector) {
            Some(candidates) => candidates.iter().filter(matching).collect(),
            None => self.namespaces.iter().map(|(slot, _)| slot).filter(matching).collect(),
        };
        found.sort_unstable();
        found
    }

    /// Live pods in some namespaces (sorted) whose labels match, in no order.
    pub(crate) fn pods_matching(
        &self,
        namespaces: &[NamespaceSlot],
        selector: &LabelSelector,
    ) -> Vec<PodSlot> {
        let in_namespaces = || namespaces.iter().filter_map(|&slot| self.namespaces.get(slot));
        let matches =
            |slot: &PodSlot| self.pods.get(*slot).is_some_and(|stored| selector.matches(&stored.pod.labels));
        let inside = |slot: &PodSlot| {
            self.pods.get(*slot).is_some_and(|stored| namespaces.binary_search(&stored.namespace).is_ok())
        };
        let population: usize = in_namespaces().map(|namespace| namespace.pods.len()).sum();
        if let Some(few) = self.pod_labels.candidates(selector).filter(|few| few.len() < population) {
            return few.iter().filter(|slot| inside(slot) && matches(slot)).collect();
        }
        let pods = in_namespaces().flat_map(|namespace| namespace.pods.iter().copied());
        pods.filter(matches).collect()
    }

    /// `NetworkPolicies` that select a pod in either direction, by name.
    pub(crate) fn policies_of<'a>(
        &'a self,
        stored: &'a StoredPod,
    ) -> impl Iterator<Item = &'a Versioned<NetworkPolicy>> {
        let namespace = self.namespaces.get(stored.namespace);
        let policies = namespace.into_iter().flat_map(|namespace| namespace.policies.values());
        policies.filter(|entry| entry.policy.pod_selector.matches(&stored.pod.labels))
    }

    /// Cluster-wide policies that select a pod in either direction, in the order of evaluation.
    pub(crate) fn cluster_policies_of<'a>(
        &'a self,
        stored: &'a StoredPod,
    ) -> impl Iterator<Item = &'a Versioned<ClusterNetworkPolicy>> {
        self.cluster_policies.values().filter(|entry| self.is_subject(&entry.policy, stored))
    }

    pub(super) fn is_subject(&self, policy: &ClusterNetworkPolicy, stored: &StoredPod) -> bool {
        policy.subject.pods.matches(&stored.pod.labels)
            && self
                .namespaces
                .get(stored.namespace)
                .is_some_and(|namespace| policy.subject.namespaces.matches(&namespace.labels))
    }
}
