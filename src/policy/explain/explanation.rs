//! Explanation of a flow's verdict.

use std::collections::BTreeMap;

use serde::Serialize;

use super::mismatch::Mismatch;
use crate::net::flow::FlowKey;
use crate::policy::evaluate::ReferenceEvaluator;
use crate::policy::objects::Pod;
use crate::policy::testcase::Endpoint;
use crate::tables::{Direction, PodName, PolicyRef, RuleOrigin, Verdict};

/// Pods at an address that are told to be judged by no policy.
const EXEMPT_SHOWN: usize = 4;

/// Where policies stand: `file:line` by name.
pub type PolicyLocations = BTreeMap<PolicyRef, String>;

/// Why a flow is allowed or denied.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    /// The flow.
    pub flow: FlowKey,
    /// Whose address the source is.
    pub from: String,
    /// Whose address the destination is.
    pub to: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The pod that is both ends, if one is: it always reaches itself.
    #[serde(rename = "itself", skip_serializing_if = "Option::is_none")]
    pub hairpin: Option<PodName>,
    /// Pods at the ends that no policy is asked about.
    #[serde(rename = "unjudged", skip_serializing_if = "Vec::is_empty")]
    pub exempt: Vec<ExemptPod>,
    /// Egress side, if the source is a pod. Of several pods that claim its address, the first that denies.
    pub egress: Option<SideExplanation>,
    /// Ingress side, if the destination is a pod; of several that claim its address, the first that denies.
    pub ingress: Option<SideExplanation>,
}

/// A pod that no policy is asked about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExemptPod {
    /// The pod.
    pub pod: PodName,
    /// Why.
    pub why: Exemption,
}

/// Why no policy is asked about a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exemption {
    /// `spec.hostNetwork` (clause N3).
    HostNetwork,
    /// `status.phase` is `Succeeded` or `Failed` (clause L2).
    Finished,
}

impl ExemptPod {
    fn of(pod: &Pod) -> Option<ExemptPod> {
        let why = match (pod.finished, pod.host_network) {
            (true, _) => Exemption::Finished,
            (false, true) => Exemption::HostNetwork,
            (false, false) => return None,
        };
        Some(ExemptPod { pod: pod.name.clone(), why })
    }

    /// Those that an end means: by name that pod, by address a few that have it.
    pub(super) fn at(evaluator: &ReferenceEvaluator<'_>, end: &Endpoint) -> Vec<ExemptPod> {
        match end {
            Endpoint::Pod(name) => evaluator.pod(name).and_then(ExemptPod::of).into_iter().collect(),
            Endpoint::Ip(address) => {
                evaluator.exempt_pods_at(*address).filter_map(ExemptPod::of).take(EXEMPT_SHOWN).collect()
            }
        }
    }
}

/// What one pod's policies say.
#[derive(Debug, Clone, Serialize)]
pub struct SideExplanation {
    /// The pod.
    pub pod: PodName,
    /// The direction.
    pub direction: Direction,
    /// The verdict.
    pub verdict: Verdict,
    /// Origin of the decision.
    pub decided_by: RuleOrigin,
    /// The same in words.
    pub reason: String,
    /// The policies that select the pod for this direction, in the order they are asked.
    pub policies: Vec<PolicyTrace>,
}

/// A policy that selects the pod.
#[derive(Debug, Clone, Serialize)]
pub struct PolicyTrace {
    /// Its name.
    pub policy: PolicyRef,
    /// Where it stands, if that is known.
    #[serde(rename = "place", skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// Whether it was asked: a tier before it may have decided.
    #[serde(rename = "asked")]
    pub evaluated: bool,
    /// Whether it stands in the baseline tier, which a `NetworkPolicy` that isolates the pod preempts (clause C4).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub preempted: bool,
    /// Its rules.
    pub rules: Vec<RuleTrace>,
}

/// A rule, and what it says of the flow.
#[derive(Debug, Clone, Serialize)]
pub struct RuleTrace {
    /// Index in `spec.ingress` or `spec.egress`.
    pub index: usize,
    /// The rule's own name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it does: allow, accept, deny or pass.
    pub action: &'static str,
    /// Whether it matches the flow.
    pub matches: bool,
    /// On what each peer fails; nothing where one matches.
    #[serde(rename = "peers_miss", skip_serializing_if = "Vec::is_empty")]
    pub peer_mismatches: Vec<Mismatch>,
    /// On what each port fails; nothing where one matches.
    #[serde(rename = "ports_miss", skip_serializing_if = "Vec::is_empty")]
    pub port_mismatches: Vec<Mismatch>,
}

impl RuleTrace {
    /// Whether one of its two halves matches, but not the other.
    pub fn is_near(&self) -> bool {
        !self.matches && (self.peer_mismatches.is_empty() || self.port_mismatches.is_empty())
    }
}
