//! Objects by kind, as input of the checks.

use std::collections::{HashMap, HashSet};

use super::pod_index::PodIndex;
use super::policy_index::PolicyIndex;
use crate::net::flow::Protocol;
use crate::policy::evaluate::{ReferenceEvaluator, selectors};
use crate::policy::objects::{
    ClusterNetworkPolicy, EndpointSlice, Labels, NetworkPolicy, Node, Pod, Service,
};
use crate::tables::{Direction, PodName};

/// Object of a kind that is not read, which makes pods.
#[derive(Debug, Clone)]
pub struct UnreadWorkload {
    /// Its kind, and its place.
    pub described: String,
    /// Its namespace and name.
    pub name: PodName,
    /// Labels of its pods, by template.
    pub labels: Vec<Labels>,
}

impl UnreadWorkload {
    /// Whether a name may be that of one of its pods.
    pub fn may_have(&self, pod: &PodName) -> bool {
        let rest = pod.name.strip_prefix(&self.name.name);
        pod.namespace == self.name.namespace
            && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }

    /// Says that its pods are unknown, and what to do.
    pub fn advice(&self) -> String {
        format!(
            "a {} is passed over, and its pods are unknown: give these pods, or a Deployment with their labels and ports",
            self.described
        )
    }

    /// Pods by which selectors are tested.
    pub(super) fn pods(&self) -> impl Iterator<Item = Pod> {
        self.labels.iter().map(|labels| Pod::new(self.name.clone(), labels.clone()))
    }
}

/// Objects by kind.
pub(super) struct LintObjects<'a> {
    pub(super) evaluator: ReferenceEvaluator<'a>,
    pub(super) pods: PodIndex<'a>,
    /// Pods on the host's network, and finished pods.
    pub(super) exempt: Vec<&'a Pod>,
    /// Objects that make pods and are not read.
    pub(super) unread: &'a [UnreadWorkload],
    /// Names of the namespaces that are read.
    pub(super) namespaces: HashSet<&'a str>,
    /// Keys of their labels.
    pub(super) namespace_keys: HashSet<&'a str>,
    pub(super) nodes: Vec<&'a Node>,
    pub(super) network: Vec<&'a NetworkPolicy>,
    /// Index of `network`.
    pub(super) policies: PolicyIndex<'a>,
    pub(super) cluster: Vec<&'a ClusterNetworkPolicy>,
    pub(super) services: Vec<&'a Service>,
    /// Numbers of the Services by port.
    pub(super) service_ports: HashMap<(Protocol, u16), Vec<usize>>,
    pub(super) slices: Vec<&'a EndpointSlice>,
}

impl LintObjects<'_> {
    /// Object that makes pods which a selector selects, and is not read.
    pub(super) fn unread_selected(&self, selects: impl Fn(&Pod) -> bool) -> Option<&UnreadWorkload> {
        self.unread.iter().find(|workload| workload.pods().any(|pod| selects(&pod)))
    }

    /// Services with a port, in the order of the manifests.
    pub(super) fn services_with(&self, protocol: Protocol, port: u16) -> impl Iterator<Item = &Service> {
        let services = self.service_ports.get(&(protocol, port)).into_iter().flatten();
        services.map(|&number| self.services[number])
    }

    /// Whether there are pods that are read.
    pub(super) fn has_pods(&self) -> bool {
        !self.pods.is_empty() || !self.exempt.is_empty()
    }
}

/// Tests whether a policy applies to a pod.
pub(super) fn selects(policy: &NetworkPolicy, pod: &Pod) -> bool {
    pod.name.namespace == policy.namespace && selectors::selects(&policy.pod_selector, &pod.labels)
}

/// Field of the peers of a rule.
pub(super) fn peer_list(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    }
}
