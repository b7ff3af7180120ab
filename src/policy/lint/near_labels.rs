//! Labels of pods that come close to those of a selector: probably one of the two is misspelt.

use std::cell::Cell;
use std::collections::BTreeMap;

use crate::nearest::nearest;
use crate::policy::objects::{LabelSelector, Pod, Requirement};
use crate::tables::PodName;

/// Most keys, and most values of a label, to compare: more of them are generated, such as hashes.
const COMPARED_MAX: usize = 500;
/// Most comparisons of a run. Suggestions end then, and findings do not.
const COMPARISONS_MAX: usize = 2_000_000;

/// Values of each label, with a pod that has it.
pub(super) struct LabelValues<'a> {
    values: BTreeMap<&'a str, BTreeMap<&'a str, &'a PodName>>,
    /// Comparisons that are left.
    left: Cell<usize>,
}

impl<'a> LabelValues<'a> {
    /// Values of the labels of these pods.
    pub(super) fn of(pods: impl Iterator<Item = &'a Pod>) -> LabelValues<'a> {
        let mut labels: BTreeMap<&str, BTreeMap<&str, &PodName>> = BTreeMap::new();
        for pod in pods {
            for (key, value) in &pod.labels {
                labels.entry(key).or_default().entry(value).or_insert(&pod.name);
            }
        }
        LabelValues { values: labels, left: Cell::new(COMPARISONS_MAX) }
    }

    /// Names the label that comes close to one that the selector asks for and no pod has: `: did you mean app=web, a label of
    /// pod shop/web?`. Empty if there is none.
    pub(super) fn near(&self, selector: &LabelSelector) -> String {
        let near = selector.requirements.iter().find_map(|requirement| match requirement {
            Requirement::In { key, values } => self.near_value(key, values),
            Requirement::Exists { key } if !self.values.contains_key(key.as_str()) => self.near_key(key, &[]),
            _ => None,
        });
        near.map(|(key, value, pod)| format!(": did you mean {key}={value}, a label of pod {pod}?"))
            .unwrap_or_default()
    }

    fn near_value(&self, key: &str, wanted: &[String]) -> Option<(&str, &str, &PodName)> {
        let Some((key, values)) = self.values.get_key_value(key) else { return self.near_key(key, wanted) };
        if wanted.iter().any(|value| values.contains_key(value.as_str()))
            || !self.may_compare(values.len(), wanted)
        {
            return None;
        }
        let value = wanted.iter().find_map(|value| nearest(value, values.keys().copied()))?;
        Some((key, value, values.get(value)?))
    }

    /// Label with a key that comes close, and with one of the values if there are some.
    fn near_key(&self, key: &str, wanted: &[String]) -> Option<(&str, &str, &PodName)> {
        if !self.may_compare(self.values.len(), wanted) {
            return None;
        }
        let fitting = |key: &str| {
            let values = self.values.get(key)?;
            match wanted {
                [] => values.first_key_value(),
                wanted => wanted.iter().find_map(|value| values.get_key_value(value.as_str())),
            }
        };
        let key = nearest(key, self.values.keys().copied().filter(|key| fitting(key).is_some()))?;
        let (value, pod) = fitting(key)?;
        Some((key, value, pod))
    }

    /// Whether so many names may be compared with each wanted value.
    fn may_compare(&self, names: usize, wanted: &[String]) -> bool {
        let left = self.left.get().checked_sub(names * wanted.len().max(1)).filter(|_| names <= COMPARED_MAX);
        left.inspect(|left| self.left.set(*left)).is_some()
    }
}
