//! GroupNames for groups that a person knows: pods by the label or the namespace that they share, addresses by prefix.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use ipnet::IpNet;

use super::{EndpointGroup, GroupMembers};
use crate::policy::evaluate::ReferenceEvaluator;
use crate::policy::objects::replicas;
use crate::policy::objects::{Labels, Object};
use crate::tables::PodName;

/// Pods and prefixes that are listed one by one.
const LISTED: usize = 3;

/// What is known of the pods.
#[derive(Debug, Clone, Default)]
pub struct GroupNames {
    labels: BTreeMap<PodName, Labels>,
    /// GroupNames of nodes, by the prefix of one address.
    nodes: BTreeMap<String, String>,
}

impl GroupNames {
    /// GroupNames by the labels of these objects' pods.
    pub fn of<'a>(objects: impl IntoIterator<Item = &'a Object>) -> GroupNames {
        let mut names = GroupNames::default();
        for object in objects {
            match object {
                Object::Pod(pod) if ReferenceEvaluator::is_live(pod) => {
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

    /// An group in short.
    pub fn short(&self, group: &EndpointGroup) -> String {
        match &group.kind {
            GroupMembers::Pods(pods) => self.pods(&pods.iter().cloned().collect()),
            GroupMembers::External(texts) => self.outside(texts),
        }
    }

    /// Several groups in short.
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

    /// All pods, or all pods of some namespaces.
    fn all_pods(&self, pods: &BTreeSet<PodName>) -> Option<String> {
        if pods.len() == self.labels.len() {
            return Some("all pods".to_owned());
        }
        let namespaces: BTreeSet<&str> = pods.iter().map(|pod| pod.namespace.as_str()).collect();
        let of_namespaces = self.labels.keys().filter(|pod| namespaces.contains(pod.namespace.as_str()));
        let is_all = of_namespaces.count() == pods.len() && namespaces.len() <= LISTED;
        is_all.then(|| format!("all pods in {}", namespaces.into_iter().collect::<Vec<_>>().join(", ")))
    }

    /// A label that these pods of one namespace have, and no other pod there.
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

/// A prefix with the first of its exceptions.
fn shorten_excepts(text: &str) -> String {
    let Some((prefix, excepts)) = text.split_once(" except ") else { return text.to_owned() };
    let excepts: Vec<String> = excepts.split(", ").map(str::to_owned).collect();
    format!("{prefix} except {}", shorten(&excepts))
}

/// Commas stand inside of exceptions already.
fn shorten(texts: &[String]) -> String {
    let between = if texts.iter().any(|text| text.contains(" except ")) { "; " } else { ", " };
    let mut text = texts.iter().take(LISTED).cloned().collect::<Vec<_>>().join(between);
    if texts.len() > LISTED {
        // Writing to a string cannot fail.
        let _ = write!(text, " and {} more", texts.len() - LISTED);
    }
    text
}
