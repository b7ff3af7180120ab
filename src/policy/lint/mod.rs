//! Lint: checks for legal policies that probably differ from the intent of their author.

mod dns;
mod finding;
mod ip_blocks;
mod named_ports;
mod near_labels;
mod objects;
mod pod_index;
mod policy_index;
mod priorities;
mod selection;
mod services;
mod shadowed_rules;
mod subsumption;
mod types;

pub use finding::{Check, LintFinding, LintSubject};
pub use objects::UnreadWorkload;

use std::collections::{HashMap, HashSet};

use super::evaluate::ReferenceEvaluator;
use super::objects::{Object, replicas};
use objects::LintObjects;
use pod_index::PodIndex;
use policy_index::PolicyIndex;

/// Runs all checks. Findings are sorted by policy and field. Checks that need pods do not run on manifests
/// without pods. `unread` are objects that make pods, and are not among the objects.
pub fn lint(objects: &[Object], unread: &[UnreadWorkload]) -> Vec<LintFinding> {
    let mut sorted = LintObjects {
        evaluator: ReferenceEvaluator::new(objects),
        pods: PodIndex::default(),
        exempt: Vec::new(),
        unread,
        namespaces: HashSet::new(),
        namespace_keys: HashSet::new(),
        nodes: Vec::new(),
        network: Vec::new(),
        policies: PolicyIndex::default(),
        cluster: Vec::new(),
        services: Vec::new(),
        service_ports: HashMap::new(),
        slices: Vec::new(),
    };
    let mut pods = Vec::new();
    for object in objects {
        match object {
            // The second pod of a workload adds no information.
            Object::Pod(pod) if pod.finished || pod.host_network => {
                if replicas::workload_of_second_replica(&pod.name).is_none() {
                    sorted.exempt.push(pod);
                }
            }
            Object::Pod(pod) => pods.push(pod),
            Object::Node(node) => sorted.nodes.push(node),
            Object::NetworkPolicy(policy) => sorted.network.push(policy),
            Object::ClusterNetworkPolicy(policy) => sorted.cluster.push(policy),
            Object::Service(service) => {
                for port in &service.ports {
                    let of_port = sorted.service_ports.entry((port.protocol, port.port)).or_default();
                    of_port.push(sorted.services.len());
                }
                sorted.services.push(service);
            }
            Object::EndpointSlice(slice) => sorted.slices.push(slice),
            Object::Namespace(namespace) => {
                sorted.namespaces.insert(&namespace.name);
                sorted.namespace_keys.extend(namespace.labels.keys().map(String::as_str));
            }
        }
    }
    sorted.pods = PodIndex::new(pods, &sorted.evaluator);
    sorted.policies = PolicyIndex::new(&sorted.network);
    let mut found = Vec::new();
    if sorted.has_pods() || !unread.is_empty() {
        selection::check(&sorted, &mut found);
        selection::check_peers(&sorted, &mut found);
    }
    if !sorted.pods.is_empty() || !unread.is_empty() {
        services::check_selectors(&sorted, &mut found);
    }
    if !sorted.pods.is_empty() {
        ip_blocks::check_pod_network(&sorted, &mut found);
        dns::check(&sorted, &mut found);
        services::check_ports(&sorted, &mut found);
    }
    types::check(&sorted, &mut found);
    selection::check_namespace_names(&sorted, &mut found);
    ip_blocks::check_services(&sorted, &mut found);
    named_ports::check(&sorted, &mut found);
    shadowed_rules::check(&sorted, &mut found);
    ip_blocks::check_empty(&sorted, &mut found);
    ip_blocks::check_excepts(&sorted, &mut found);
    priorities::check(&sorted, &mut found);
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests;
