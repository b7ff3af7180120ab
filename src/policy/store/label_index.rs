//! Index from labels to the objects that carry them. It limits a selector to the objects that it can match.

use std::collections::HashMap;

use super::slots::Slot;
use super::sorted;
use crate::policy::objects::{LabelSelector, Labels, Requirement};

type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// Objects by label key and value.
#[derive(Debug, Clone)]
pub(crate) struct LabelIndex<S> {
    keys: Map<String, Map<String, Vec<S>>>,
}

/// Objects that can meet one requirement of a selector.
pub(crate) struct Candidates<'a, S> {
    lists: Vec<&'a [S]>,
}

impl<'a, S: Slot> Candidates<'a, S> {
    /// Number of objects.
    pub(crate) fn len(&self) -> usize {
        self.lists.iter().map(|list| list.len()).sum()
    }

    /// Lists of objects, each object once.
    pub(crate) fn into_lists(self) -> Vec<&'a [S]> {
        self.lists
    }

    /// Objects, each once.
    pub(crate) fn iter(&self) -> impl Iterator<Item = S> {
        self.lists.iter().flat_map(|list| list.iter().copied())
    }
}

impl<S> Default for LabelIndex<S> {
    fn default() -> LabelIndex<S> {
        LabelIndex { keys: Map::default() }
    }
}

impl<S: Slot> LabelIndex<S> {
    /// Adds an object.
    pub(crate) fn insert(&mut self, slot: S, labels: &Labels) {
        for (key, value) in labels {
            if !self.keys.contains_key(key) {
                self.keys.insert(key.clone(), Map::default());
            }
            let values = self.keys.get_mut(key).expect("just inserted");
            match values.get_mut(value) {
                Some(carriers) => {
                    sorted::insert(carriers, slot);
                }
                None => {
                    values.insert(value.clone(), vec![slot]);
                }
            }
        }
    }

    /// Removes an object with the labels that it was added with.
    pub(crate) fn remove(&mut self, slot: S, labels: &Labels) {
        for (key, value) in labels {
            let Some(values) = self.keys.get_mut(key) else { continue };
            if let Some(carriers) = values.get_mut(value) {
                sorted::remove(carriers, &slot);
                if carriers.is_empty() {
                    values.remove(value);
                }
            }
            if values.is_empty() {
                self.keys.remove(key);
            }
        }
    }

    /// Smallest set of candidates that contains all objects that the selector matches. `None` if the selector
    /// requires no label to be present.
    pub(crate) fn candidates(&self, selector: &LabelSelector) -> Option<Candidates<'_, S>> {
        let requirements = selector.requirements.iter().filter_map(|requirement| self.carriers(requirement));
        requirements.min_by_key(Candidates::len)
    }

    fn carriers(&self, requirement: &Requirement) -> Option<Candidates<'_, S>> {
        let lists = match requirement {
            Requirement::In { key, values } => {
                let index = self.keys.get(key);
                let mut values: Vec<&String> = values.iter().collect();
                values.sort_unstable();
                values.dedup();
                let found = values.into_iter().filter_map(|value| index?.get(value));
                found.map(Vec::as_slice).collect()
            }
            Requirement::Exists { key } => {
                self.keys.get(key).into_iter().flat_map(|values| values.values().map(Vec::as_slice)).collect()
            }
            Requirement::NotIn { .. } | Requirement::DoesNotExist { .. } => return None,
        };
        Some(Candidates { lists })
    }
}
