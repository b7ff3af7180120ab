//! The store: the objects as they stand, and for each change what it can touch.
//!
//! A pod that can neither be isolated nor selected (on the host's network, finished, or without an address
//! yet) is kept, but stands in no index: see [`Store::is_live`].

mod change;
mod interner;
mod label_index;
mod slots;
pub(crate) mod sorted;

pub use change::{Change, ObjectName};
pub(crate) use interner::{Interner, Sweep};
pub(crate) use slots::{GroupId, NamespaceSlot, NodeSlot, PodSlot, PortUseId, RuleSetId, Slot, Slots};

use std::collections::{BTreeMap, BTreeSet};

use super::objects::{
    ClusterNetworkPolicy, ClusterPort, LabelSelector, Labels, Namespace, NetworkPolicy, Node, Object, Pod,
    PortMatch, Ports, Tier,
};
use crate::tables::{PodName, PolicyKind};
use label_index::LabelIndex;

/// The label that names a namespace, on every namespace.
pub(crate) const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// The objects as they stand.
#[derive(Debug, Default)]
pub(crate) struct Store {
    node: Option<String>,
    pods: Slots<PodSlot, StoredPod>,
    pod_slots: BTreeMap<PodName, PodSlot>,
    pod_labels: LabelIndex<PodSlot>,
    local_pods: BTreeSet<PodSlot>,
    namespaces: Slots<NamespaceSlot, StoredNamespace>,
    namespace_slots: BTreeMap<String, NamespaceSlot>,
    namespace_labels: LabelIndex<NamespaceSlot>,
    nodes: Slots<NodeSlot, Node>,
    node_slots: BTreeMap<String, NodeSlot>,
    cluster_policies: BTreeMap<Rank, Versioned<ClusterNetworkPolicy>>,
    ranks: BTreeMap<(PolicyKind, String), Rank>,
    versions: u64,
}

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
    declared: bool,
    pods_of_any_kind: usize,
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
    fn network(version: u64, policy: NetworkPolicy) -> Versioned<NetworkPolicy> {
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
    fn cluster(version: u64, policy: ClusterNetworkPolicy) -> Versioned<ClusterNetworkPolicy> {
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

/// What changes have affected.
#[derive(Debug, Default)]
pub(crate) struct Affected {
    /// Namespaces that came, went, or have other labels.
    pub(crate) namespaces: BTreeSet<NamespaceSlot>,
    /// Nodes that came, went, or changed.
    pub(crate) nodes: BTreeSet<NodeSlot>,
    /// Pods that came, went, or changed, or whose namespace has other labels.
    pub(crate) pods: BTreeSet<PodSlot>,
    /// Local pods that other policies may select than before.
    pub(crate) reselected_pods: BTreeSet<PodSlot>,
}

impl Store {
    /// An empty store. With a node's name only pods of that node are local.
    pub(crate) fn new(node: Option<String>) -> Store {
        Store { node, ..Store::default() }
    }

    /// Whether nothing is left in it.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.pods.len() + self.nodes.len() + self.namespaces.len() + self.ranks.len() == 0
    }

    /// Makes a change, and adds what it touches to `affected`.
    pub(crate) fn apply(&mut self, change: Change, affected: &mut Affected) {
        match change {
            Change::Upsert(Object::Pod(pod)) => self.put_pod(pod, affected),
            Change::Upsert(Object::Namespace(namespace)) => self.put_namespace(namespace, affected),
            Change::Upsert(Object::Node(node)) => self.put_node(node, affected),
            Change::Upsert(Object::NetworkPolicy(policy)) => self.put_policy(policy, affected),
            Change::Upsert(Object::ClusterNetworkPolicy(policy)) => self.put_cluster_policy(policy, affected),
            Change::Remove(ObjectName::Pod(name)) => self.remove_pod(&name, affected),
            Change::Remove(ObjectName::Namespace(name)) => self.remove_namespace(&name, affected),
            Change::Remove(ObjectName::Node(name)) => self.remove_node(&name, affected),
            Change::Remove(ObjectName::NetworkPolicy { namespace, name }) => {
                self.remove_policy(&namespace, &name, affected);
            }
            Change::Remove(ObjectName::ClusterNetworkPolicy { kind, name }) => {
                self.remove_cluster_policy(kind, name, affected);
            }
        }
    }

    /// Whether policy can see a pod: it has an address, is not on the host's network, and has not finished.
    pub(crate) fn is_live(pod: &Pod) -> bool {
        !pod.host_network && !pod.finished && !pod.addresses.is_empty()
    }

    /// Whether the tables judge a pod.
    pub(crate) fn is_local(&self, pod: &Pod) -> bool {
        Store::is_live(pod) && (self.node.is_none() || self.node == pod.node)
    }

    /// The pod in a slot, if policy can see it.
    pub(crate) fn live_pod(&self, slot: PodSlot) -> Option<&StoredPod> {
        self.pods.get(slot).filter(|stored| Store::is_live(&stored.pod))
    }

    /// The slot of a pod.
    pub(crate) fn pod_slot(&self, name: &PodName) -> Option<PodSlot> {
        self.pod_slots.get(name).copied()
    }

    /// Whether the tables judge a pod of this name.
    pub(crate) fn enforces(&self, name: &PodName) -> bool {
        self.pod_slot(name)
            .and_then(|slot| self.pods.get(slot))
            .is_some_and(|stored| self.is_local(&stored.pod))
    }

    /// Every pod, by name.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pod_slots.values().filter_map(|&slot| Some(&self.pods.get(slot)?.pod))
    }

    /// The node in a slot.
    pub(crate) fn node(&self, slot: NodeSlot) -> Option<&Node> {
        self.nodes.get(slot)
    }

    /// Every node, by slot.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (NodeSlot, &Node)> {
        self.nodes.iter()
    }

    /// The slot of a node.
    pub(crate) fn node_slot(&self, name: &str) -> Option<NodeSlot> {
        self.node_slots.get(name).copied()
    }

    /// The namespace in a slot.
    pub(crate) fn namespace(&self, slot: NamespaceSlot) -> Option<&StoredNamespace> {
        self.namespaces.get(slot)
    }

    /// The slot of a namespace.
    pub(crate) fn namespace_slot(&self, name: &str) -> Option<NamespaceSlot> {
        self.namespace_slots.get(name).copied()
    }

    /// The namespaces whose labels match, sorted.
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

    /// The live pods in some namespaces (sorted) whose labels match, in no order.
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

    /// The `NetworkPolicies` that select a pod, in either direction, by name.
    pub(crate) fn policies_of<'a>(
        &'a self,
        stored: &'a StoredPod,
    ) -> impl Iterator<Item = &'a Versioned<NetworkPolicy>> {
        let namespace = self.namespaces.get(stored.namespace);
        let policies = namespace.into_iter().flat_map(|namespace| namespace.policies.values());
        policies.filter(|entry| entry.policy.pod_selector.matches(&stored.pod.labels))
    }

    /// The cluster-wide policies that select a pod, in either direction, in the order they are asked.
    pub(crate) fn cluster_policies_of<'a>(
        &'a self,
        stored: &'a StoredPod,
    ) -> impl Iterator<Item = &'a Versioned<ClusterNetworkPolicy>> {
        self.cluster_policies.values().filter(|entry| self.is_subject(&entry.policy, stored))
    }

    fn is_subject(&self, policy: &ClusterNetworkPolicy, stored: &StoredPod) -> bool {
        policy.subject.pods.matches(&stored.pod.labels)
            && self
                .namespaces
                .get(stored.namespace)
                .is_some_and(|namespace| policy.subject.namespaces.matches(&namespace.labels))
    }

    fn put_pod(&mut self, pod: Pod, affected: &mut Affected) {
        let slot = if let Some(slot) = self.pod_slot(&pod.name) {
            if self.pods.get(slot).is_some_and(|stored| stored.pod == pod) {
                return;
            }
            self.unindex(slot);
            self.pods.get_mut(slot).expect("a named slot is taken").pod = pod;
            slot
        } else {
            let namespace = self.ensure_namespace(&pod.name.namespace, affected);
            self.namespaces.get_mut(namespace).expect("just mentioned").pods_of_any_kind += 1;
            let name = pod.name.clone();
            let slot = self.pods.insert(StoredPod { pod, namespace });
            self.pod_slots.insert(name, slot);
            slot
        };
        self.index(slot);
        affected.pods.insert(slot);
    }

    fn remove_pod(&mut self, name: &PodName, affected: &mut Affected) {
        let Some(slot) = self.pod_slots.remove(name) else { return };
        self.unindex(slot);
        let stored = self.pods.remove(slot).expect("a named slot is taken");
        self.namespaces.get_mut(stored.namespace).expect("a pod's namespace is there").pods_of_any_kind -= 1;
        self.collect_namespace(stored.namespace, affected);
        affected.pods.insert(slot);
    }

    fn index(&mut self, slot: PodSlot) {
        let Some(stored) = self.pods.get(slot).filter(|stored| Store::is_live(&stored.pod)) else { return };
        self.pod_labels.insert(slot, &stored.pod.labels);
        if self.is_local(&stored.pod) {
            self.local_pods.insert(slot);
        }
        let namespace = self.namespaces.get_mut(stored.namespace).expect("a pod's namespace is there");
        sorted::insert(&mut namespace.pods, slot);
    }

    fn unindex(&mut self, slot: PodSlot) {
        let Some(stored) = self.pods.get(slot).filter(|stored| Store::is_live(&stored.pod)) else { return };
        self.pod_labels.remove(slot, &stored.pod.labels);
        self.local_pods.remove(&slot);
        let namespace = self.namespaces.get_mut(stored.namespace).expect("a pod's namespace is there");
        sorted::remove(&mut namespace.pods, &slot);
    }

    fn put_namespace(&mut self, namespace: Namespace, affected: &mut Affected) {
        let slot = self.ensure_namespace(&namespace.name, affected);
        self.namespaces.get_mut(slot).expect("just mentioned").declared = true;
        self.label_namespace(slot, namespace.labels, affected);
    }

    fn remove_namespace(&mut self, name: &str, affected: &mut Affected) {
        let Some(slot) = self.namespace_slot(name) else { return };
        self.namespaces.get_mut(slot).expect("a named slot is taken").declared = false;
        self.label_namespace(slot, Labels::new(), affected);
        self.collect_namespace(slot, affected);
    }

    /// The slot of a namespace, which exists from now on, if only because it is spoken of.
    fn ensure_namespace(&mut self, name: &str, affected: &mut Affected) -> NamespaceSlot {
        if let Some(slot) = self.namespace_slot(name) {
            return slot;
        }
        let labels = Labels::from([(NAMESPACE_NAME_LABEL.to_owned(), name.to_owned())]);
        let namespace = StoredNamespace { name: name.to_owned(), labels, ..StoredNamespace::default() };
        let slot = self.namespaces.insert(namespace);
        self.namespace_slots.insert(name.to_owned(), slot);
        self.namespace_labels.insert(slot, &self.namespaces.get(slot).expect("just inserted").labels);
        affected.namespaces.insert(slot);
        slot
    }

    /// Frees a namespace that nothing declares or speaks of any more.
    fn collect_namespace(&mut self, slot: NamespaceSlot, affected: &mut Affected) {
        let in_use = |namespace: &StoredNamespace| {
            namespace.declared || namespace.pods_of_any_kind > 0 || !namespace.policies.is_empty()
        };
        if self.namespaces.get(slot).is_none_or(in_use) {
            return;
        }
        let namespace = self.namespaces.remove(slot).expect("just seen");
        self.namespace_labels.remove(slot, &namespace.labels);
        self.namespace_slots.remove(&namespace.name);
        affected.namespaces.insert(slot);
    }

    fn label_namespace(&mut self, slot: NamespaceSlot, mut labels: Labels, affected: &mut Affected) {
        let namespace = self.namespaces.get_mut(slot).expect("the caller found it");
        labels.insert(NAMESPACE_NAME_LABEL.to_owned(), namespace.name.clone());
        if namespace.labels == labels {
            return;
        }
        self.namespace_labels.remove(slot, &namespace.labels);
        self.namespace_labels.insert(slot, &labels);
        namespace.labels = labels;
        affected.namespaces.insert(slot);
        affected.pods.extend(namespace.pods.iter().copied());
    }

    fn put_node(&mut self, node: Node, affected: &mut Affected) {
        let slot = if let Some(slot) = self.node_slot(&node.name) {
            *self.nodes.get_mut(slot).expect("a named slot is taken") = node;
            slot
        } else {
            let name = node.name.clone();
            let slot = self.nodes.insert(node);
            self.node_slots.insert(name, slot);
            slot
        };
        affected.nodes.insert(slot);
    }

    fn remove_node(&mut self, name: &str, affected: &mut Affected) {
        if let Some(slot) = self.node_slots.remove(name) {
            self.nodes.remove(slot);
            affected.nodes.insert(slot);
        }
    }

    fn put_policy(&mut self, policy: NetworkPolicy, affected: &mut Affected) {
        let slot = self.ensure_namespace(&policy.namespace, affected);
        let known = self.namespaces.get(slot).and_then(|namespace| namespace.policies.get(&policy.name));
        if known.is_some_and(|known| known.policy == policy) {
            return;
        }
        self.mark_selected_pods(slot, &policy.name, affected);
        self.versions += 1;
        let entry = Versioned::network(self.versions, policy);
        let name = entry.policy.name.clone();
        self.namespaces.get_mut(slot).expect("just mentioned").policies.insert(name.clone(), entry);
        self.mark_selected_pods(slot, &name, affected);
    }

    fn remove_policy(&mut self, namespace: &str, name: &str, affected: &mut Affected) {
        let Some(slot) = self.namespace_slot(namespace) else { return };
        self.mark_selected_pods(slot, name, affected);
        self.namespaces.get_mut(slot).expect("a named slot is taken").policies.remove(name);
        self.collect_namespace(slot, affected);
    }

    /// Touches the local pods that a policy selects as it stands.
    fn mark_selected_pods(&self, slot: NamespaceSlot, policy: &str, affected: &mut Affected) {
        let Some(namespace) = self.namespaces.get(slot) else { return };
        let Some(entry) = namespace.policies.get(policy) else { return };
        let subjects = self.pods_matching(&[slot], &entry.policy.pod_selector);
        affected.reselected_pods.extend(subjects.into_iter().filter(|pod| self.local_pods.contains(pod)));
    }

    fn put_cluster_policy(&mut self, policy: ClusterNetworkPolicy, affected: &mut Affected) {
        let id = (policy.kind, policy.name.clone());
        if let Some(rank) = self.ranks.get(&id) {
            if self.cluster_policies[rank].policy == policy {
                return;
            }
            self.remove_cluster_policy(policy.kind, policy.name.clone(), affected);
        }
        self.mark_cluster_selected_pods(&policy, affected);
        self.versions += 1;
        let rank = (policy.tier, policy.priority, policy.name.clone(), policy.kind);
        self.ranks.insert(id, rank.clone());
        self.cluster_policies.insert(rank, Versioned::cluster(self.versions, policy));
    }

    fn remove_cluster_policy(&mut self, kind: PolicyKind, name: String, affected: &mut Affected) {
        let Some(rank) = self.ranks.remove(&(kind, name)) else { return };
        if let Some(entry) = self.cluster_policies.remove(&rank) {
            self.mark_cluster_selected_pods(&entry.policy, affected);
        }
    }

    fn mark_cluster_selected_pods(&self, policy: &ClusterNetworkPolicy, affected: &mut Affected) {
        let subjects = self
            .local_pods
            .iter()
            .filter(|&&slot| self.pods.get(slot).is_some_and(|stored| self.is_subject(policy, stored)));
        affected.reselected_pods.extend(subjects);
    }
}
