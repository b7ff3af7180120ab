//! Pods, nodes and policies of a state, and the pods that selectors select.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::rc::Rc;

use crate::net::flow::Protocol;
use crate::policy::objects::{
    IpBlock, LabelSelector, Labels, NAMESPACE_NAME_LABEL, NetworkPolicy, Object, Pod, Requirement,
};
use crate::policy::{NamespaceScope, PodSet};
use crate::render::plan::Family;
use crate::tables::PodName;

/// Objects of a state by name.
pub(super) struct Cluster<'a> {
    /// Pods to which policy applies, by name.
    pub(super) pods: BTreeMap<&'a PodName, &'a Pod>,
    /// Policies that are enforced, by namespace and name.
    pub(super) policies: BTreeMap<(&'a str, &'a str), &'a NetworkPolicy>,
    /// Families of the addresses of pods; IPv4 if there is none.
    pub(super) families: Vec<Family>,
    /// Addresses of several owners.
    pub(super) shared: Vec<(IpAddr, Vec<Owner<'a>>)>,
    /// Addresses of pods that stand for unknown ones.
    pub(super) placeholders: Vec<IpAddr>,
    namespaces: BTreeMap<&'a str, Labels>,
    by_namespace: BTreeMap<&'a str, Vec<&'a Pod>>,
    by_label: HashMap<(&'a str, &'a str), Vec<&'a Pod>, foldhash::fast::RandomState>,
}

/// Owner of an address.
#[derive(Debug, Clone, Copy)]
pub(super) enum Owner<'a> {
    Pod(&'a Pod),
    Node,
}

/// Tests whether policy applies to a pod: it has an address of its own, and has not ended.
fn is_live(pod: &Pod) -> bool {
    !pod.addresses.is_empty() && !pod.finished && !pod.host_network
}

impl<'a> Cluster<'a> {
    /// Index of these objects. Of two objects with one name the later one counts.
    pub(super) fn new(objects: &'a [Object]) -> Cluster<'a> {
        let (mut pods, mut policies) = (BTreeMap::new(), BTreeMap::new());
        let (mut namespaces, mut nodes) = (BTreeMap::new(), BTreeMap::new());
        for object in objects {
            match object {
                Object::Pod(pod) => _ = pods.insert(&pod.name, pod),
                Object::NetworkPolicy(policy) => {
                    _ = policies.insert((policy.namespace.as_str(), policy.name.as_str()), policy);
                }
                Object::Namespace(namespace) => {
                    _ = namespaces.insert(namespace.name.as_str(), namespace.labels.clone());
                }
                Object::Node(node) => _ = nodes.insert(node.name.as_str(), node),
                Object::ClusterNetworkPolicy(_) | Object::Service(_) | Object::EndpointSlice(_) => {}
            }
        }
        pods.retain(|_, pod| is_live(pod));
        policies.retain(|_, policy| !policy.audited);
        let mut cluster = Cluster {
            families: Vec::new(),
            shared: Vec::new(),
            placeholders: Vec::new(),
            namespaces,
            by_namespace: BTreeMap::new(),
            by_label: HashMap::default(),
            pods,
            policies,
        };
        let mut owners: BTreeMap<IpAddr, Vec<Owner<'a>>> = BTreeMap::new();
        for &pod in cluster.pods.values() {
            let namespace = pod.name.namespace.as_str();
            cluster.by_namespace.entry(namespace).or_default().push(pod);
            for (key, value) in &pod.labels {
                cluster.by_label.entry((key, value)).or_default().push(pod);
            }
            // The namespace is a label even if no object declares it.
            let labels = cluster.namespaces.entry(namespace).or_default();
            labels.insert(NAMESPACE_NAME_LABEL.to_owned(), namespace.to_owned());
            let mut addresses = pod.addresses.clone();
            addresses.sort_unstable();
            addresses.dedup();
            addresses.iter().for_each(|address| owners.entry(*address).or_default().push(Owner::Pod(pod)));
        }
        let of_pods = |family: &Family| owners.keys().any(|address| family.holds(*address));
        cluster.families = Family::ALL.into_iter().filter(of_pods).collect();
        if cluster.families.is_empty() {
            cluster.families.push(Family::V4);
        }
        let is_placeholder = |owner: &Owner| matches!(owner, Owner::Pod(pod) if pod.placeholder);
        let placeholders = owners.iter().filter(|(_, owners)| owners.iter().any(is_placeholder));
        cluster.placeholders = placeholders.map(|(&address, _)| address).collect();
        for node in nodes.values() {
            for address in &node.addresses {
                // Nodes that share an address are one node for every peer of a NetworkPolicy.
                if let Some(owners) = owners.get_mut(address) {
                    owners.push(Owner::Node);
                }
            }
        }
        cluster.shared = owners.into_iter().filter(|(_, owners)| owners.len() > 1).collect();
        cluster
    }

    /// Pods of a set, by name.
    pub(super) fn select(&self, set: &PodSet) -> Rc<[&'a Pod]> {
        let mut found: Vec<&Pod> = match &set.namespaces {
            NamespaceScope::Named(namespace) => {
                let pods = self.by_namespace.get(namespace.as_str()).into_iter().flatten();
                pods.copied().filter(|pod| set.pods.matches(&pod.labels)).collect()
            }
            NamespaceScope::Matching(selector) => {
                let chosen = |pod: &&Pod| {
                    set.pods.matches(&pod.labels) && self.namespace_matches(selector, &pod.name.namespace)
                };
                match set.pods.requirements.iter().find_map(|requirement| self.candidates(requirement)) {
                    Some(candidates) => candidates.into_iter().filter(chosen).collect(),
                    None => self.pods.values().copied().filter(chosen).collect(),
                }
            }
        };
        found.sort_unstable_by_key(|pod| &pod.name);
        found.into()
    }

    /// Tests whether a set has a pod.
    pub(super) fn is_in(&self, pod: &Pod, set: &PodSet) -> bool {
        let is_there = match &set.namespaces {
            NamespaceScope::Named(namespace) => *namespace == pod.name.namespace,
            NamespaceScope::Matching(selector) => self.namespace_matches(selector, &pod.name.namespace),
        };
        is_there && set.pods.matches(&pod.labels)
    }

    /// Tests whether a block has an address of an owner. Only a block of all addresses has that of a placeholder.
    pub(super) fn block_has(block: &IpBlock, address: IpAddr, owner: Owner) -> bool {
        let is_certain = !matches!(owner, Owner::Pod(pod) if pod.placeholder);
        block.cidr.contains(&address)
            && !block.except.iter().any(|except| except.contains(&address))
            && (is_certain || block.is_whole())
    }

    fn namespace_matches(&self, selector: &LabelSelector, namespace: &str) -> bool {
        self.namespaces.get(namespace).is_some_and(|labels| selector.matches(labels))
    }

    /// Pods that may meet a requirement, if it names values.
    fn candidates(&self, requirement: &Requirement) -> Option<Vec<&'a Pod>> {
        let Requirement::In { key, values } = requirement else { return None };
        let mut candidates = Vec::new();
        for value in values {
            candidates.extend(self.by_label.get(&(key.as_str(), value.as_str())).into_iter().flatten());
        }
        Some(candidates)
    }
}

/// Numbers of the ports of a pod with this name and protocol, sorted.
pub(super) fn port_numbers(pod: &Pod, name: &str, protocol: Protocol) -> Vec<u16> {
    let named =
        pod.ports.iter().filter(|port| port.name.as_deref() == Some(name) && port.protocol == protocol);
    let mut numbers: Vec<u16> = named.map(|port| port.port).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}
