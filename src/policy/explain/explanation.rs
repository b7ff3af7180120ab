//! Explanation of a flow verdict.

use std::collections::BTreeMap;

use serde::Serialize;

use super::mismatch::Mismatch;
use crate::net::flow::FlowKey;
use crate::policy::evaluate::ReferenceEvaluator;
use crate::policy::objects::Pod;
use crate::policy::testcase::Endpoint;
use crate::tables::{Direction, PodName, PolicyRef, RuleOrigin, Verdict};

/// Maximum number of exempt pods at an address that an explanation lists.
const EXEMPT_SHOWN: usize = 4;

/// Places of policies: `file:line` by name.
pub type PolicyLocations = BTreeMap<PolicyRef, String>;

/// Explanation of a flow verdict.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    /// Flow.
    pub flow: FlowKey,
    /// Owner of the source address.
    pub from: String,
    /// Owner of the destination address.
    pub to: String,
    /// Verdict.
    pub verdict: Verdict,
    /// Pod that is both source and destination. A pod always reaches itself, through a Service if no policy of the cluster
    /// denies it.
    #[serde(rename = "itself", skip_serializing_if = "Option::is_none")]
    pub hairpin: Option<PodName>,
    /// Source and destination pods to which no policy applies.
    #[serde(rename = "unjudged", skip_serializing_if = "Vec::is_empty")]
    pub exempt: Vec<ExemptPod>,
    /// Egress side, if the source is a pod. Of several pods that claim the address, the first that denies.
    pub egress: Option<SideExplanation>,
    /// Ingress side, if the destination is a pod. Of several pods that claim the address, the first that
    /// denies.
    pub ingress: Option<SideExplanation>,
    /// Rule that would deny the flow if the policies in audit mode were enforced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<RuleOrigin>,
}

/// Pod to which no policy applies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExemptPod {
    /// Pod.
    pub pod: PodName,
    /// Reason of the exemption.
    pub why: Exemption,
}

/// Reason for which no policy applies to a pod.
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

    /// Exempt pods of an endpoint: the named pod, or a few that have the address.
    pub(super) fn at(evaluator: &ReferenceEvaluator<'_>, end: &Endpoint) -> Vec<ExemptPod> {
        match end {
            Endpoint::Pod(name) => evaluator.pod(name).and_then(ExemptPod::of).into_iter().collect(),
            Endpoint::Ip(address) => {
                evaluator.exempt_pods_at(*address).filter_map(ExemptPod::of).take(EXEMPT_SHOWN).collect()
            }
        }
    }
}

/// Policies of one pod and their verdict.
#[derive(Debug, Clone, Serialize)]
pub struct SideExplanation {
    /// Pod.
    pub pod: PodName,
    /// Direction.
    pub direction: Direction,
    /// Verdict.
    pub verdict: Verdict,
    /// Rule that decided.
    pub decided_by: RuleOrigin,
    /// Text of the rule.
    pub reason: String,
    /// Policies that select the pod for this direction, in the order of evaluation.
    pub policies: Vec<PolicyTrace>,
}

/// Policy that selects the pod.
#[derive(Debug, Clone, Serialize)]
pub struct PolicyTrace {
    /// Name of the policy.
    pub policy: PolicyRef,
    /// Place of the policy, if known.
    #[serde(rename = "place", skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// Indicates that the policy was evaluated: no earlier tier decided.
    #[serde(rename = "asked")]
    pub evaluated: bool,
    /// Indicates a policy of the baseline tier that an isolating `NetworkPolicy` preempts (clause C4).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub preempted: bool,
    /// Rules of the policy.
    pub rules: Vec<RuleTrace>,
}

/// Rule, and its result for the flow.
#[derive(Debug, Clone, Serialize)]
pub struct RuleTrace {
    /// Index in `spec.ingress` or `spec.egress`.
    pub index: usize,
    /// Name of the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Action: allow, accept, deny or pass.
    pub action: &'static str,
    /// Indicates that the rule matches the flow.
    pub matches: bool,
    /// Mismatches of the peers; empty if a peer matches.
    #[serde(rename = "peers_miss", skip_serializing_if = "Vec::is_empty")]
    pub peer_mismatches: Vec<Mismatch>,
    /// Mismatches of the ports; empty if a port matches.
    #[serde(rename = "ports_miss", skip_serializing_if = "Vec::is_empty")]
    pub port_mismatches: Vec<Mismatch>,
}

impl RuleTrace {
    /// Tests whether exactly one of peers and ports matches.
    pub fn is_near(&self) -> bool {
        !self.matches && (self.peer_mismatches.is_empty() || self.port_mismatches.is_empty())
    }
}
