//! Pods by namespace and label, for Services without `EndpointSlices`.

use std::collections::BTreeMap;

use crate::policy::objects::{LabelSelector, Pod};
use crate::policy::store::{LabelIndex, PodSlot, Slots};
use crate::tables::PodName;

/// Pods of all namespaces.
#[derive(Debug, Default)]
pub(super) struct PodIndex {
    namespaces: BTreeMap<String, PodsOfNamespace>,
}

#[derive(Debug)]
struct PodsOfNamespace {
    pods: Slots<PodSlot, Pod>,
    names: BTreeMap<String, PodSlot>,
    labels: LabelIndex<PodSlot>,
}

impl PodIndex {
    /// Adds or replaces a pod. Returns the former one.
    pub(super) fn put(&mut self, pod: Pod) -> Option<Pod> {
        let former = self.remove(&pod.name);
        let namespace = self.namespaces.entry(pod.name.namespace.clone()).or_insert_with(|| {
            PodsOfNamespace { pods: Slots::default(), names: BTreeMap::new(), labels: LabelIndex::default() }
        });
        let (name, labels) = (pod.name.name.clone(), pod.labels.clone());
        let slot = namespace.pods.insert(pod);
        namespace.labels.insert(slot, &labels);
        namespace.names.insert(name, slot);
        former
    }

    /// Removes a pod.
    pub(super) fn remove(&mut self, name: &PodName) -> Option<Pod> {
        let namespace = self.namespaces.get_mut(&name.namespace)?;
        let slot = namespace.names.remove(&name.name)?;
        let pod = namespace.pods.remove(slot)?;
        namespace.labels.remove(slot, &pod.labels);
        if namespace.names.is_empty() {
            self.namespaces.remove(&name.namespace);
        }
        Some(pod)
    }

    /// Pods of a namespace that a selector selects, by name.
    pub(super) fn selected(&self, namespace: &str, selector: &LabelSelector) -> Vec<&Pod> {
        let Some(namespace) = self.namespaces.get(namespace) else { return Vec::new() };
        let mut found: Vec<&Pod> = match namespace.labels.candidates(selector) {
            Some(candidates) => candidates.iter().filter_map(|slot| namespace.pods.get(slot)).collect(),
            None => namespace.pods.iter().map(|(_, pod)| pod).collect(),
        };
        found.retain(|pod| selector.matches(&pod.labels));
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }
}
