//! Lint: what is legal, and probably not what its author meant.

mod dns;
mod ip_blocks;
mod named_ports;
mod prefixes;
mod priorities;
mod selection;
mod shadowed_rules;
mod subsumption;
mod types;

use serde::Serialize;

use super::evaluate::ReferenceEvaluator;
use super::objects::replicas;
use super::objects::{ClusterNetworkPolicy, NetworkPolicy, Node, Object, Pod};
use crate::tables::{Direction, PolicyRef};

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LintFinding {
    /// The policy.
    pub policy: PolicyRef,
    /// The field: `spec.ingress[0].ports[1]`.
    pub path: String,
    /// Which check.
    pub check: Check,
    /// What is, and what follows from it.
    pub message: String,
}

/// The checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// A policy selects no pod.
    SelectsNoPod,
    /// All pods that a policy or a peer selects are on the host's network or have finished.
    HostNetworkOrFinished,
    /// A peer selects no pod or no node.
    PeerSelectsNothing,
    /// A direction has rules, and `policyTypes` lacks it.
    RulesWithoutType,
    /// No destination pod has a port of the name.
    NamedPortMissing,
    /// A rule asks addresses, not pods, for a port by name.
    NamedPortOfAddresses,
    /// Another rule says the same and more.
    ShadowedRule,
    /// What an `except` takes out is allowed all the same.
    ExceptWithoutEffect,
    /// The exceptions of a block leave no address.
    EmptyBlock,
    /// A block names addresses of pods, which come and go.
    BlockInPodNetwork,
    /// Pods may connect to some places, but cannot look up names.
    BlocksDns,
    /// Two cluster-wide policies have one priority.
    TiedPriority,
}

impl Check {
    /// Its name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Check::SelectsNoPod => "selects-no-pod",
            Check::HostNetworkOrFinished => "host-network-or-finished",
            Check::PeerSelectsNothing => "peer-selects-nothing",
            Check::RulesWithoutType => "rules-without-type",
            Check::NamedPortMissing => "named-port-missing",
            Check::NamedPortOfAddresses => "named-port-of-addresses",
            Check::ShadowedRule => "shadowed-rule",
            Check::ExceptWithoutEffect => "except-without-effect",
            Check::EmptyBlock => "empty-block",
            Check::BlockInPodNetwork => "block-in-pod-network",
            Check::BlocksDns => "blocks-dns",
            Check::TiedPriority => "tied-priority",
        }
    }
}

/// The objects that the checks look at.
struct LintObjects<'a> {
    evaluator: ReferenceEvaluator<'a>,
    /// Pods that policy sees, as soon as they have an address.
    pods: Vec<&'a Pod>,
    /// Pods on the host's network, and pods that have finished.
    exempt: Vec<&'a Pod>,
    nodes: Vec<&'a Node>,
    network: Vec<&'a NetworkPolicy>,
    cluster: Vec<&'a ClusterNetworkPolicy>,
}

/// Everything that the checks find, by policy and field. Checks that need pods are left out where there are none:
/// manifests of policies alone select nobody.
pub fn lint(objects: &[Object]) -> Vec<LintFinding> {
    let mut sorted = LintObjects {
        evaluator: ReferenceEvaluator::new(objects),
        pods: Vec::new(),
        exempt: Vec::new(),
        nodes: Vec::new(),
        network: Vec::new(),
        cluster: Vec::new(),
    };
    for object in objects {
        match object {
            // The second pod of a workload says no more than the first.
            Object::Pod(pod) if pod.finished || pod.host_network => {
                if replicas::workload_of_second_replica(&pod.name).is_none() {
                    sorted.exempt.push(pod);
                }
            }
            Object::Pod(pod) => sorted.pods.push(pod),
            Object::Node(node) => sorted.nodes.push(node),
            Object::NetworkPolicy(policy) => sorted.network.push(policy),
            Object::ClusterNetworkPolicy(policy) => sorted.cluster.push(policy),
            Object::Namespace(_) => {}
        }
    }
    let mut found = Vec::new();
    if !sorted.pods.is_empty() || !sorted.exempt.is_empty() {
        selection::check(&sorted, &mut found);
        selection::check_peers(&sorted, &mut found);
    }
    if !sorted.pods.is_empty() {
        ip_blocks::check_pod_network(&sorted, &mut found);
        dns::check(&sorted, &mut found);
    }
    types::check(&sorted, &mut found);
    named_ports::check(&sorted, &mut found);
    shadowed_rules::check(&sorted, &mut found);
    ip_blocks::check_empty(&sorted, &mut found);
    ip_blocks::check_excepts(&sorted, &mut found);
    priorities::check(&sorted, &mut found);
    found.sort();
    found.dedup();
    found
}

/// The field that lists the peers of a rule.
fn peer_list(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    }
}

#[cfg(test)]
mod tests;
