//! Changes to the store.

use super::affected::Affected;
use super::change::{Change, ObjectName};
use super::entries::{StoredNamespace, StoredPod, Versioned};
use super::lookup::Store;
use super::slots::{NamespaceSlot, PodSlot};
use super::sorted;
use crate::policy::objects::{
    ClusterNetworkPolicy, Labels, NAMESPACE_NAME_LABEL, Namespace, NetworkPolicy, Node, Object, Pod,
    Readiness,
};
use crate::tables::{PodName, PolicyKind};

impl Store {
    /// Applies a change and adds the slots that it affects to `affected`.
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
            // Policy is asked about the backends of a Service.
            Change::Upsert(Object::Service(_) | Object::EndpointSlice(_))
            | Change::Remove(ObjectName::Service { .. } | ObjectName::EndpointSlice { .. }) => {}
        }
    }

    fn put_pod(&mut self, pod: Pod, affected: &mut Affected) {
        // Readiness of a pod is about Services: a change of it affects no slot.
        let pod = Pod { readiness: Readiness::default(), ..pod };
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

    /// Slot of a namespace; creates the namespace if an object only mentions it.
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

    /// Removes a namespace that no object declares or mentions.
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

    /// Marks the local pods that a policy selects.
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
