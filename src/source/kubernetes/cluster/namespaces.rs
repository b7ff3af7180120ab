//! Namespaces whose labels the compiler has, and pods that wait for theirs.
//!
//! A rule with `NotIn` or `DoesNotExist` matches an object without labels. So the compiler gets no pod of a namespace
//! whose labels are unknown, and a namespace keeps its labels as long as it has pods.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::source::kubernetes::object::Entry;
use crate::source::kubernetes::parse::Key;

/// Namespaces of a cluster.
#[derive(Default)]
pub(super) struct Namespaces {
    labelled: BTreeSet<String>,
    /// Removed namespaces that may have pods yet.
    leaving: BTreeSet<String>,
    /// Pods of other namespaces than the labelled ones.
    waiting: BTreeMap<Key, Entry>,
    /// Whether a namespace or a pod has been removed since the last look for pods.
    has_removals: bool,
}

impl Namespaces {
    /// Tests whether the compiler has the labels of a namespace.
    pub(super) fn has(&self, namespace: &str) -> bool {
        self.labelled.contains(namespace)
    }

    /// Notes that a namespace exists.
    pub(super) fn found(&mut self, namespace: &str) {
        self.leaving.remove(namespace);
    }

    /// Notes that the compiler has the labels of a namespace. Returns the pods that have waited for them.
    pub(super) fn labelled(&mut self, namespace: &str) -> Vec<Entry> {
        if !self.labelled.insert(namespace.to_owned()) {
            return Vec::new();
        }
        let first = Key { namespace: namespace.to_owned(), name: String::new() };
        let pods = self.waiting.range(first..).take_while(|(key, _)| key.namespace == namespace);
        let pods: Vec<Key> = pods.map(|(key, _)| key.clone()).collect();
        pods.iter().filter_map(|key| self.waiting.remove(key)).collect()
    }

    /// Lets a pod wait for the labels of its namespace.
    pub(super) fn hold(&mut self, pod: Entry) {
        self.waiting.insert(pod.key.clone(), pod);
    }

    /// Notes that a namespace has been removed.
    pub(super) fn removed(&mut self, namespace: &str) {
        if self.labelled.contains(namespace) {
            self.leaving.insert(namespace.to_owned());
            self.has_removals = true;
        }
    }

    /// Notes that a pod has been removed.
    pub(super) fn pod_removed(&mut self, key: &Key) {
        self.waiting.remove(key);
        self.has_removals = true;
    }

    /// Forgets removed namespaces without pods. Returns their names.
    pub(super) fn gone<'k>(&mut self, pods: impl Iterator<Item = &'k Key>) -> Vec<String> {
        if !std::mem::take(&mut self.has_removals) || self.leaving.is_empty() {
            return Vec::new();
        }
        let used: HashSet<&str> = pods.map(|key| key.namespace.as_str()).collect();
        let gone: Vec<String> =
            self.leaving.iter().filter(|name| !used.contains(name.as_str())).cloned().collect();
        for name in &gone {
            self.leaving.remove(name);
            self.labelled.remove(name);
        }
        gone
    }
}
