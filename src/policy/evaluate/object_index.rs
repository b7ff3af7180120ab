//! Objects by name, for the reference evaluator.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::query::AddressOwner;
use crate::net::flow::FlowKey;
use crate::policy::objects::{
    ClusterNetworkPolicy, Labels, NAMESPACE_NAME_LABEL, Namespace, NetworkPolicy, Node, Object, Pod, Tier,
};
use crate::tables::{PodName, PolicyKind};

/// Objects by name.
#[derive(Debug, Default)]
pub struct ObjectIndex<'a> {
    pods: BTreeMap<&'a PodName, &'a Pod>,
    namespaces: BTreeMap<&'a str, &'a Namespace>,
    nodes: BTreeMap<&'a str, &'a Node>,
    /// Policies by namespace and name, which is the order of evaluation.
    pub(super) network_policies: BTreeMap<(&'a str, &'a str), &'a NetworkPolicy>,
    /// Policies in the order of clauses C1 and C7.
    pub(super) cluster_policies: BTreeMap<(Tier, u32, &'a str, PolicyKind), &'a ClusterNetworkPolicy>,
}

impl<'a> ObjectIndex<'a> {
    /// Index of these objects. Of two objects with one name the later one counts.
    pub fn new(objects: impl IntoIterator<Item = &'a Object>) -> ObjectIndex<'a> {
        let mut index = ObjectIndex::default();
        for object in objects {
            index.insert(object);
        }
        index
    }

    fn insert(&mut self, object: &'a Object) {
        match object {
            Object::Pod(pod) => drop(self.pods.insert(&pod.name, pod)),
            Object::Namespace(namespace) => drop(self.namespaces.insert(&namespace.name, namespace)),
            Object::Node(node) => drop(self.nodes.insert(&node.name, node)),
            Object::NetworkPolicy(policy) => {
                self.network_policies.insert((&policy.namespace, &policy.name), policy);
            }
            Object::ClusterNetworkPolicy(policy) => {
                self.cluster_policies
                    .retain(|_, known| (known.kind, &known.name) != (policy.kind, &policy.name));
                let rank = (policy.tier, policy.priority, policy.name.as_str(), policy.kind);
                self.cluster_policies.insert(rank, policy);
            }
            // Policy is asked about the backends of a Service.
            Object::Service(_) | Object::EndpointSlice(_) => {}
        }
    }

    /// Clauses L1, L2 and N3: tests whether policy applies to a pod. Policy neither isolates nor selects pods
    /// without an address, finished pods and pods on the host's network.
    pub fn is_live(pod: &Pod) -> bool {
        !pod.addresses.is_empty() && !pod.finished && !pod.host_network
    }

    /// Pods that claim an address, by name.
    pub fn pods_at(&self, address: IpAddr) -> Vec<&'a Pod> {
        let claims = |pod: &&Pod| ObjectIndex::is_live(pod) && pod.addresses.contains(&address);
        self.pods.values().copied().filter(claims).collect()
    }

    /// Pod of this name, live or not.
    pub fn pod(&self, name: &PodName) -> Option<&'a Pod> {
        self.pods.get(name).copied()
    }

    /// Pods with this address to which policy does not apply.
    pub fn exempt_pods_at(&self, address: IpAddr) -> impl Iterator<Item = &'a Pod> {
        let at = self.pods.values().copied().filter(move |pod| pod.addresses.contains(&address));
        at.filter(|pod| !ObjectIndex::is_live(pod))
    }

    /// Owners of an address, at least one.
    pub(in crate::policy) fn owners(&self, address: IpAddr) -> Vec<AddressOwner<'a>> {
        let mut owners = Vec::new();
        for pod in self.pods.values() {
            if ObjectIndex::is_live(pod) && pod.addresses.contains(&address) {
                owners.push(AddressOwner::Pod(pod));
            }
        }
        for node in self.nodes.values() {
            if node.addresses.contains(&address) {
                owners.push(AddressOwner::Node(node));
            }
        }
        if owners.is_empty() { vec![AddressOwner::External] } else { owners }
    }

    /// Text of the owners of an address.
    pub fn display_owner(&self, address: IpAddr) -> String {
        let name = |owner: &AddressOwner<'_>| match owner {
            AddressOwner::Pod(pod) => format!("pod {}", pod.name),
            AddressOwner::Node(node) => format!("node {}", node.name),
            AddressOwner::External => "outside".to_owned(),
        };
        let names: Vec<String> = self.owners(address).iter().map(name).collect();
        format!("{} ({address})", names.join(" or "))
    }

    /// Clause S3: labels of a namespace. Its name is a label even if no object declares the namespace.
    pub(in crate::policy) fn namespace_labels(&self, name: &str) -> Labels {
        let mut labels = self.namespaces.get(name).map(|found| found.labels.clone()).unwrap_or_default();
        labels.insert(NAMESPACE_NAME_LABEL.to_owned(), name.to_owned());
        labels
    }

    /// Clause E7: pod that is certainly both source and destination. If several pods claim an address, only a
    /// flow from that address to itself qualifies.
    pub fn hairpin_pod(&self, flow: &FlowKey) -> Option<&'a Pod> {
        match (self.pods_at(flow.src).as_slice(), self.pods_at(flow.dst).as_slice()) {
            ([source], [destination]) if source.name == destination.name => Some(source),
            ([source, ..], _) if flow.src == flow.dst => Some(source),
            _ => None,
        }
    }
}
