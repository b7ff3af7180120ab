//! Lint: what is legal, and probably not what its author meant.

mod blocks;
mod contain;
mod dns;
mod named_ports;
mod priorities;
mod selection;
mod shadows;

use serde::Serialize;

use super::objects::{ClusterNetworkPolicy, NetworkPolicy, Object, Pod};
use super::oracle::Oracle;
use crate::tables::PolicyRef;

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
    /// No destination pod has a port of the name.
    NamedPortMissing,
    /// Another rule says the same and more.
    ShadowedRule,
    /// What an `except` takes out is allowed all the same.
    ExceptWithoutEffect,
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
            Check::NamedPortMissing => "named-port-missing",
            Check::ShadowedRule => "shadowed-rule",
            Check::ExceptWithoutEffect => "except-without-effect",
            Check::BlockInPodNetwork => "block-in-pod-network",
            Check::BlocksDns => "blocks-dns",
            Check::TiedPriority => "tied-priority",
        }
    }
}

/// The objects that the checks look at.
struct Scene<'a> {
    oracle: Oracle<'a>,
    pods: Vec<&'a Pod>,
    network: Vec<&'a NetworkPolicy>,
    cluster: Vec<&'a ClusterNetworkPolicy>,
}

/// Everything that the checks find, by policy and field. Checks that need pods are left out where there are none:
/// manifests of policies alone select nobody.
pub fn lint(objects: &[Object]) -> Vec<LintFinding> {
    let mut scene =
        Scene { oracle: Oracle::new(objects), pods: Vec::new(), network: Vec::new(), cluster: Vec::new() };
    for object in objects {
        match object {
            // A pod that waits for its address is selected as soon as it has one.
            Object::Pod(pod) if !pod.finished && !pod.host_network => scene.pods.push(pod),
            Object::NetworkPolicy(policy) => scene.network.push(policy),
            Object::ClusterNetworkPolicy(policy) => scene.cluster.push(policy),
            Object::Pod(_) | Object::Namespace(_) | Object::Node(_) => {}
        }
    }
    let mut found = Vec::new();
    if !scene.pods.is_empty() {
        selection::check(&scene, &mut found);
        named_ports::check(&scene, &mut found);
        blocks::check_pod_network(&scene, &mut found);
        dns::check(&scene, &mut found);
    }
    shadows::check(&scene, &mut found);
    blocks::check_excepts(&scene, &mut found);
    priorities::check(&scene, &mut found);
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests;
