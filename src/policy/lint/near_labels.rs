//! Labels of pods that come close to those of a selector: probably one of the two is misspelt.

use std::collections::BTreeMap;

use crate::policy::objects::{LabelSelector, Pod, Requirement};
use crate::tables::PodName;

/// Values of a label up to which they are compared: more are generated, such as hashes.
const VALUES_MAX: usize = 500;

/// Values of each label, with a pod that has it.
pub(super) struct LabelValues<'a>(BTreeMap<&'a str, BTreeMap<&'a str, &'a PodName>>);

impl<'a> LabelValues<'a> {
    /// Values of the labels of these pods.
    pub(super) fn of(pods: impl Iterator<Item = &'a Pod>) -> LabelValues<'a> {
        let mut labels: BTreeMap<&str, BTreeMap<&str, &PodName>> = BTreeMap::new();
        for pod in pods {
            for (key, value) in &pod.labels {
                labels.entry(key).or_default().entry(value).or_insert(&pod.name);
            }
        }
        LabelValues(labels)
    }

    /// Names the label that comes close to one that the selector asks for and no pod has: `: did you mean app=web, a label of
    /// pod shop/web?`. Empty if there is none.
    pub(super) fn near(&self, selector: &LabelSelector) -> String {
        let near = selector.requirements.iter().find_map(|requirement| match requirement {
            Requirement::In { key, values } => self.near_value(key, values),
            Requirement::Exists { key } if !self.0.contains_key(key.as_str()) => self.near_key(key, &[]),
            _ => None,
        });
        near.map(|(key, value, pod)| format!(": did you mean {key}={value}, a label of pod {pod}?"))
            .unwrap_or_default()
    }

    fn near_value(&self, key: &str, values: &[String]) -> Option<(&str, &str, &PodName)> {
        let Some((key, of_key)) = self.0.get_key_value(key) else { return self.near_key(key, values) };
        if of_key.len() > VALUES_MAX || values.iter().any(|value| of_key.contains_key(value.as_str())) {
            return None;
        }
        let of_value = |value: &String| {
            let distances =
                of_key.iter().filter_map(|(other, pod)| Some((distance(value, other)?, *other, *pod)));
            distances.min_by_key(|(distance, ..)| *distance)
        };
        let (_, value, pod) = values.iter().filter_map(of_value).min_by_key(|(distance, ..)| *distance)?;
        Some((key, value, pod))
    }

    /// Label with a key that comes close, and with one of the values if there are some.
    fn near_key(&self, key: &str, values: &[String]) -> Option<(&str, &str, &PodName)> {
        let near = self.0.iter().filter_map(|(other, of_key)| {
            let distance = distance(key, other)?;
            let (value, pod) = of_key.iter().find(|(value, _)| {
                values.is_empty() || values.iter().any(|wanted| wanted.as_str() == **value)
            })?;
            Some((distance, (*other, *value, *pod)))
        });
        near.min_by_key(|(distance, _)| *distance).map(|(_, found)| found)
    }
}

/// Number of edits between two texts, if it is small beside their length.
fn distance(a: &str, b: &str) -> Option<usize> {
    let (short, long) = if a.len() < b.len() { (a.len(), b.len()) } else { (b.len(), a.len()) };
    let most = (long / 3).min(2);
    if long - short > most {
        return None;
    }
    Some(strsim::damerau_levenshtein(a, b)).filter(|edits| *edits <= most)
}
