//! Owners of addresses: pods with their labels, and nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::policy::objects::{Labels, NAMESPACE_NAME_LABEL, Object, Pod};
use crate::tables::PodName;

/// Labels of pods that differ between pods of one application, and are no part of an identity.
const IGNORED: [&str; 9] = [
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-completion-index",
    "batch.kubernetes.io/job-name",
    "controller-revision-hash",
    "controller-uid",
    "job-name",
    "pod-template-hash",
    "statefulset.kubernetes.io/pod-name",
];

/// Owners of addresses.
pub(super) struct Owners<'a> {
    /// Pods by address.
    pub(super) pods: BTreeMap<IpAddr, Vec<&'a PodName>>,
    /// Addresses of nodes that no pod has.
    pub(super) nodes: BTreeSet<IpAddr>,
    /// Addresses of the node of each pod.
    pub(super) hosts: BTreeMap<&'a PodName, BTreeSet<IpAddr>>,
    labels: BTreeMap<&'a PodName, Vec<String>>,
}

impl<'a> Owners<'a> {
    /// Owners among these objects. Of two objects with one name the later one counts.
    pub(super) fn new(objects: &'a [Object]) -> Owners<'a> {
        let (mut pods, mut namespaces, mut nodes) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for object in objects {
            match object {
                Object::Pod(pod) => _ = pods.insert(&pod.name, pod),
                Object::Namespace(namespace) => {
                    _ = namespaces.insert(namespace.name.as_str(), &namespace.labels);
                }
                Object::Node(node) => _ = nodes.insert(node.name.as_str(), &node.addresses),
                Object::NetworkPolicy(_)
                | Object::ClusterNetworkPolicy(_)
                | Object::Service(_)
                | Object::EndpointSlice(_) => {}
            }
        }
        let mut owners = Owners {
            pods: BTreeMap::new(),
            nodes: nodes.values().flat_map(|addresses| addresses.iter()).copied().collect(),
            hosts: BTreeMap::new(),
            labels: BTreeMap::new(),
        };
        for (&name, &pod) in pods.iter().filter(|(_, pod)| !pod.finished) {
            owners.nodes.extend(&pod.host_ips);
            if pod.host_network {
                owners.nodes.extend(&pod.addresses);
                continue;
            }
            let by_name = pod.node.iter().filter_map(|node| nodes.get(node.as_str()));
            let by_name = by_name.flat_map(|addresses| addresses.iter());
            owners.hosts.insert(name, by_name.chain(&pod.host_ips).copied().collect());
            owners.labels.insert(name, labels(pod, namespaces.get(name.namespace.as_str()).copied()));
            let addresses: BTreeSet<IpAddr> = pod.addresses.iter().copied().collect();
            addresses.iter().for_each(|&address| owners.pods.entry(address).or_default().push(name));
        }
        owners.nodes.retain(|address| !owners.pods.contains_key(address));
        owners
    }

    /// Labels of the pods at an address.
    pub(super) fn labels(&self, pods: &[&PodName]) -> Vec<String> {
        let all: BTreeSet<&String> = pods.iter().flat_map(|pod| &self.labels[pod]).collect();
        all.into_iter().cloned().collect()
    }
}

/// Labels of a pod in Cilium's form, sorted.
fn labels(pod: &Pod, namespace: Option<&Labels>) -> Vec<String> {
    let own = pod.labels.iter().filter(|(key, _)| !IGNORED.contains(&key.as_str()));
    let own = own.map(|(key, value)| format!("k8s:{key}={value}"));
    let of_namespace = namespace
        .into_iter()
        .flatten()
        .filter(|(key, _)| *key != NAMESPACE_NAME_LABEL)
        .map(|(key, value)| format!("k8s:io.cilium.k8s.namespace.labels.{key}={value}"));
    let name = format!("k8s:io.kubernetes.pod.namespace={}", pod.name.namespace);
    let mut labels: Vec<String> = own.chain(of_namespace).chain([name]).collect();
    labels.sort_unstable();
    labels.dedup();
    labels
}
