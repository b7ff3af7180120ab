//! Pods by namespace and label: a selector is tested on those alone that it can select.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use super::near_labels::LabelValues;
use crate::policy::evaluate::{ReferenceEvaluator, selectors};
use crate::policy::objects::{LabelSelector, Labels, Peer, Peers, Pod, PodScope};
use crate::policy::store::{LabelIndex, PodSlot, Slot};

/// Pods to which policy applies, with or without an address.
#[derive(Default)]
pub(super) struct PodIndex<'a> {
    /// In the order of the manifests.
    all: Vec<&'a Pod>,
    labels: LabelIndex<PodSlot>,
    namespaces: BTreeMap<&'a str, PodsOfNamespace>,
    label_values: OnceCell<LabelValues<'a>>,
}

struct PodsOfNamespace {
    labels: Labels,
    pods: Vec<PodSlot>,
}

impl<'a> PodIndex<'a> {
    /// Index of these pods. The evaluator knows the labels of their namespaces.
    pub(super) fn new(all: Vec<&'a Pod>, evaluator: &ReferenceEvaluator<'_>) -> PodIndex<'a> {
        let mut pods = PodIndex { all, ..PodIndex::default() };
        for (index, pod) in pods.all.iter().enumerate() {
            let slot = PodSlot::at(index as u32);
            pods.labels.insert(slot, &pod.labels);
            let name = pod.name.namespace.as_str();
            let of_namespace = pods.namespaces.entry(name).or_insert_with(|| PodsOfNamespace {
                labels: evaluator.namespace_labels(name),
                pods: Vec::new(),
            });
            of_namespace.pods.push(slot);
        }
        pods
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Pods in the order of the manifests.
    pub(super) fn all(&self) -> impl Iterator<Item = &'a Pod> {
        self.all.iter().copied()
    }

    /// Values of the labels of all pods.
    pub(super) fn label_values(&self) -> &LabelValues<'a> {
        self.label_values.get_or_init(|| LabelValues::of(self.all()))
    }

    /// Pods of a namespace that a selector can select: each that it selects, and perhaps others.
    pub(super) fn of_namespace<'s>(
        &'s self,
        namespace: &str,
        selector: &LabelSelector,
    ) -> impl Iterator<Item = &'a Pod> + use<'s, 'a> {
        let found = self.namespaces.get(namespace);
        self.candidates(found.map(|found| found.pods.as_slice()).into_iter().collect(), selector)
    }

    /// Pods of selected namespaces that a selector can select.
    fn of_namespaces<'s>(
        &'s self,
        namespaces: &LabelSelector,
        selector: &LabelSelector,
    ) -> impl Iterator<Item = &'a Pod> + use<'s, 'a> {
        let selected = self.namespaces.values().filter(|found| selectors::selects(namespaces, &found.labels));
        self.candidates(selected.map(|found| found.pods.as_slice()).collect(), selector)
    }

    /// Pods that a scope can contain.
    pub(super) fn of_scope(&self, scope: &PodScope) -> impl Iterator<Item = &'a Pod> {
        self.of_namespaces(&scope.namespaces, &scope.pods)
    }

    /// Pods that the peers of a rule of a namespace can match, some more than once.
    pub(super) fn of_peers<'s>(
        &'s self,
        namespace: &str,
        peers: &Peers,
    ) -> Box<dyn Iterator<Item = &'a Pod> + 's> {
        match peers {
            Peers::Any(peers) if peers.iter().all(|peer| matches!(peer, Peer::Pods { .. })) => {
                let found: Vec<_> = peers.iter().map(|peer| self.of_peer(namespace, peer)).collect();
                Box::new(found.into_iter().flatten())
            }
            _ => Box::new(self.all()),
        }
    }

    /// Pods that a peer of a rule of a namespace can match.
    pub(super) fn of_peer<'s>(
        &'s self,
        namespace: &str,
        peer: &Peer,
    ) -> Box<dyn Iterator<Item = &'a Pod> + 's> {
        match peer {
            Peer::IpBlock(_) => Box::new(self.all()),
            Peer::Pods { namespaces: None, pods } => Box::new(self.of_namespace(namespace, pods)),
            Peer::Pods { namespaces: Some(namespaces), pods } => {
                Box::new(self.of_namespaces(namespaces, pods))
            }
        }
    }

    /// Pods of the namespaces, or those with a label that the selector asks for, if these are fewer.
    fn candidates<'s>(
        &'s self,
        namespaces: Vec<&'s [PodSlot]>,
        selector: &LabelSelector,
    ) -> impl Iterator<Item = &'a Pod> + use<'s, 'a> {
        let of_namespaces: usize = namespaces.iter().map(|pods| pods.len()).sum();
        let labelled = self.labels.candidates(selector).filter(|labelled| labelled.len() < of_namespaces);
        let lists = match labelled {
            Some(labelled) => labelled.into_lists(),
            None => namespaces,
        };
        lists.into_iter().flatten().map(|slot| self.all[slot.position()])
    }
}

#[cfg(test)]
mod tests;
