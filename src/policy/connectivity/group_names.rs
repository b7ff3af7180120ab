//! Display names of endpoint groups: pods by a common label or namespace, addresses by prefix.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use ipnet::IpNet;

use super::endpoint_groups::{EndpointGroup, GroupMembers};
use crate::policy::evaluate::ObjectIndex;
use crate::policy::objects::replicas;
use crate::policy::objects::{Labels, Object};
use crate::tables::PodName;

/// Number of pods or prefixes that a name lists.
const LISTED: usize = 3;

/// Labels of pods and names of nodes.
#[derive(Debug, Clone, Default)]
pub struct GroupNames {
    labels: BTreeMap<PodName, Labels>,
    /// Names of nodes, by the prefix of one address.
    nodes: BTreeMap<String, String>,
}

impl GroupNames {
    /// Collects the names from the pods and nodes among `objects`.
    pub fn of<'a>(objects: impl IntoIterator<Item = &'a Object>) -> GroupNames {
        let mut names = GroupNames::default();
        for object in objects {
            match object {
                Object::Pod(pod) if ObjectIndex::is_live(pod) => {
                    names.labels.insert(pod.name.clone(), pod.labels.clone());
                }
                Object::Node(node) => {
                    let prefixes = node.addresses.iter().map(|address| IpNet::from(*address).to_string());
                    names.nodes.extend(prefixes.map(|prefix| (prefix, format!("node {}", node.name))));
                }
                _ => {}
            }
        }
        names
    }

    /// Adds pods of which no labels are known, so that `all pods` are all of these too. Without any labels it does nothing.
    #[must_use]
    pub fn with_pods<'a>(mut self, pods: impl IntoIterator<Item = &'a PodName>) -> GroupNames {
        if !self.labels.is_empty() {
            pods.into_iter().for_each(|pod| _ = self.labels.entry(pod.clone()).or_default());
        }
        self
    }

    /// Short name of a group.
    pub fn short(&self, group: &EndpointGroup) -> String {
        match &group.kind {
            GroupMembers::Pods(pods) => self.pods(&pods.iter().cloned().collect()),
            GroupMembers::External(texts) => self.outside(texts),
        }
    }

    /// Short name of several groups.
    pub fn joined(&self, groups: &[&EndpointGroup]) -> String {
        let (mut pods, mut outside) = (BTreeSet::new(), Vec::new());
        for group in groups {
            match &group.kind {
                GroupMembers::Pods(some) => pods.extend(some.iter().cloned()),
                GroupMembers::External(texts) => outside.extend(texts.iter().cloned()),
            }
        }
        let pods = (!pods.is_empty()).then(|| self.pods(&pods));
        let outside = (!outside.is_empty()).then(|| self.outside(&outside));
        pods.into_iter().chain(outside).collect::<Vec<_>>().join(" and ")
    }

    fn outside(&self, texts: &[String]) -> String {
        let named: BTreeSet<String> = texts
            .iter()
            .map(|text| self.nodes.get(text).cloned().unwrap_or_else(|| shorten_excepts(text)))
            .collect();
        shorten(&named.into_iter().collect::<Vec<_>>())
    }

    fn pods(&self, pods: &BTreeSet<PodName>) -> String {
        let is_listed = |pod: &&PodName| {
            replicas::workload_of_second_replica(pod).is_none_or(|workload| !pods.contains(&workload))
        };
        let named: Vec<String> = pods.iter().filter(is_listed).map(PodName::to_string).collect();
        if named.len() > 1
            && let Some(name) = self.all_pods(pods).or_else(|| self.by_label(pods))
        {
            return name;
        }
        shorten(&named)
    }

    /// Name for all pods, or for all pods of some namespaces.
    fn all_pods(&self, pods: &BTreeSet<PodName>) -> Option<String> {
        if pods.len() == self.labels.len() {
            return Some("all pods".to_owned());
        }
        let namespaces: BTreeSet<&str> = pods.iter().map(|pod| pod.namespace.as_str()).collect();
        let of_namespaces = self.labels.keys().filter(|pod| namespaces.contains(pod.namespace.as_str()));
        let is_all = of_namespaces.count() == pods.len() && namespaces.len() <= LISTED;
        is_all.then(|| format!("all pods in {}", namespaces.into_iter().collect::<Vec<_>>().join(", ")))
    }

    /// Name by a label that exactly these pods of their namespace have.
    fn by_label(&self, pods: &BTreeSet<PodName>) -> Option<String> {
        let first = pods.first()?;
        let namespace = &first.namespace;
        if pods.iter().any(|pod| pod.namespace != *namespace) {
            return None;
        }
        let of_namespace = || self.labels.iter().filter(|(pod, _)| pod.namespace == *namespace);
        let tells = |(key, value): &(&String, &String)| {
            of_namespace().all(|(pod, labels)| pods.contains(pod) == (labels.get(*key) == Some(*value)))
        };
        let (key, value) = self.labels.get(first)?.iter().find(tells)?;
        Some(format!("pods {key}={value} in {namespace}"))
    }
}

/// Shortens a prefix to its first exceptions.
fn shorten_excepts(text: &str) -> String {
    let Some((prefix, excepts)) = text.split_once(" except ") else { return text.to_owned() };
    let excepts: Vec<String> = excepts.split(", ").map(str::to_owned).collect();
    format!("{prefix} except {}", shorten(&excepts))
}

/// Joins texts, with semicolons if one of them contains commas.
fn shorten(texts: &[String]) -> String {
    let between = if texts.iter().any(|text| text.contains(" except ")) { "; " } else { ", " };
    let mut text = texts.iter().take(LISTED).cloned().collect::<Vec<_>>().join(between);
    if texts.len() > LISTED {
        // Writing to a string cannot fail.
        let _ = write!(text, " and {} more", texts.len() - LISTED);
    }
    text
}
