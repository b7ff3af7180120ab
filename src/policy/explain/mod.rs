//! Explanations: why a flow is allowed or denied, and what it would have taken for another verdict.
//!
//! The verdict and the rule that decided come from whoever judged the flow. Around them stands every policy that selects the
//! pods, and of each rule whether it matches, or on what it fails: address, namespace, label, protocol or port.

mod mismatch;
mod text;

use std::collections::BTreeMap;

use serde::Serialize;

use super::evaluate::{FlowVerdict, SideVerdict};
use super::evaluate::{PeerAddress, Query, ReferenceEvaluator, cluster_tiers, isolation};
use super::objects::{ClusterNetworkPolicy, NetworkPolicy, Peers, Pod, Ports, Tier};
use super::testcase::Endpoint;
use crate::net::flow::FlowKey;
use crate::tables::{Direction, PodName, PolicyRef, RuleOrigin, Verdict};

pub use mismatch::{Mismatch, MismatchKind};

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
    fn at(evaluator: &ReferenceEvaluator<'_>, end: &Endpoint) -> Vec<ExemptPod> {
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

/// Explains the flow_verdict to a flow between two ends by the objects.
pub fn explain(
    evaluator: &ReferenceEvaluator<'_>,
    flow: &FlowKey,
    ends: [&Endpoint; 2],
    flow_verdict: &FlowVerdict,
    locations: &PolicyLocations,
) -> Explanation {
    let side = |side_verdict: &Option<SideVerdict>, direction| {
        let (pod, _) = evaluator.evaluate_claimants(flow, direction)?;
        Some(explain_side(evaluator, pod, direction, flow, side_verdict.as_ref()?, locations))
    };
    Explanation {
        flow: *flow,
        from: evaluator.display_owner(flow.src),
        to: evaluator.display_owner(flow.dst),
        verdict: flow_verdict.verdict(),
        hairpin: evaluator.hairpin_pod(flow).map(|pod| pod.name.clone()),
        exempt: ends.iter().flat_map(|end| ExemptPod::at(evaluator, end)).collect(),
        egress: side(&flow_verdict.egress, Direction::Egress),
        ingress: side(&flow_verdict.ingress, Direction::Ingress),
    }
}

fn explain_side(
    evaluator: &ReferenceEvaluator<'_>,
    pod: &Pod,
    direction: Direction,
    flow: &FlowKey,
    side_verdict: &SideVerdict,
    locations: &PolicyLocations,
) -> SideExplanation {
    let address = if direction == Direction::Egress { flow.dst } else { flow.src };
    // Where several claim the address, the first one stands for all.
    let owner = evaluator.owners(address)[0];
    let query = Query {
        pod,
        direction,
        peer: PeerAddress { address, owner },
        protocol: flow.protocol,
        dst_port: flow.dst_port,
    };
    let mut policies: Vec<PolicyTrace> = Vec::new();
    policies.extend(
        evaluator
            .policies_of_tier(Tier::Admin, &query)
            .map(|policy| trace_cluster(evaluator, policy, &query)),
    );
    let isolating = evaluator.isolating(&query);
    policies.extend(isolating.iter().map(|policy| trace_network(evaluator, policy, &query)));
    let is_preempted = !isolating.is_empty();
    policies.extend(evaluator.policies_of_tier(Tier::Baseline, &query).map(|policy| {
        let trace = trace_cluster(evaluator, policy, &query);
        PolicyTrace { preempted: is_preempted, ..trace }
    }));
    // A tier may select the pod and have nothing to say in this direction.
    policies.retain(|trace| !trace.rules.is_empty() || is_isolating(&isolating, trace));
    mark_evaluated(&mut policies, &side_verdict.origin);
    for trace in &mut policies {
        trace.location = locations.get(&trace.policy).cloned();
    }
    SideExplanation {
        pod: pod.name.clone(),
        direction,
        verdict: side_verdict.verdict,
        decided_by: side_verdict.origin.clone(),
        reason: side_verdict.origin.to_string(),
        policies,
    }
}

fn is_isolating(isolating: &[&NetworkPolicy], trace: &PolicyTrace) -> bool {
    isolating.iter().any(|policy| isolation::name(policy) == trace.policy)
}

/// Policies after the one whose rule decided were not asked.
fn mark_evaluated(policies: &mut [PolicyTrace], origin: &RuleOrigin) {
    policies.iter_mut().filter(|trace| trace.preempted).for_each(|trace| trace.evaluated = false);
    let RuleOrigin::Rule { policy: decider, .. } = origin else { return };
    let mut decided = false;
    for trace in policies.iter_mut() {
        trace.evaluated &= !decided;
        decided |= trace.policy == *decider;
    }
}

fn trace_network(
    evaluator: &ReferenceEvaluator<'_>,
    policy: &NetworkPolicy,
    query: &Query<'_>,
) -> PolicyTrace {
    let rules = isolation::rules(policy, query.direction).into_iter().flatten().enumerate();
    let rules = rules.map(|(index, rule)| {
        let peer_mismatches = match &rule.peers {
            Peers::Everyone => Vec::new(),
            Peers::Any(peers) => mismatches(peers.iter().map(|peer| {
                let matches = evaluator.network_peer_matches(&policy.namespace, peer, &query.peer);
                (!matches).then(|| mismatch::network_peer(evaluator, &policy.namespace, peer, &query.peer))
            })),
        };
        let port_mismatches = match &rule.ports {
            Ports::All => Vec::new(),
            Ports::Any(ports) => mismatches(ports.iter().map(|port| mismatch::network_port(port, query))),
        };
        let matches = peer_mismatches.is_empty() && port_mismatches.is_empty();
        RuleTrace { index, name: None, action: "allow", matches, peer_mismatches, port_mismatches }
    });
    PolicyTrace {
        policy: isolation::name(policy),
        location: None,
        evaluated: true,
        preempted: false,
        rules: rules.collect(),
    }
}

fn trace_cluster(
    evaluator: &ReferenceEvaluator<'_>,
    policy: &ClusterNetworkPolicy,
    query: &Query<'_>,
) -> PolicyTrace {
    let rules = cluster_tiers::rules(policy, query.direction).iter().enumerate();
    let rules = rules.map(|(index, rule)| {
        let peer_mismatches = mismatches(rule.peers.iter().map(|peer| {
            let matches = evaluator.cluster_peer_matches(peer, &query.peer);
            (!matches).then(|| mismatch::cluster_peer(evaluator, peer, &query.peer))
        }));
        let ports = rule.ports.iter().flatten();
        let port_mismatches = mismatches(ports.map(|port| mismatch::cluster_port(port, query)));
        let matches = peer_mismatches.is_empty() && port_mismatches.is_empty();
        let action = mismatch::action(rule.action);
        RuleTrace { index, name: rule.name.clone(), action, matches, peer_mismatches, port_mismatches }
    });
    let rules = rules.collect();
    PolicyTrace {
        policy: cluster_tiers::name(policy),
        location: None,
        evaluated: true,
        preempted: false,
        rules,
    }
}

/// Every mismatch; none at all where an entry does not mismatch.
fn mismatches(entries: impl Iterator<Item = Option<Mismatch>>) -> Vec<Mismatch> {
    entries.collect::<Option<Vec<Mismatch>>>().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::flow::Protocol;
    use crate::policy::parse::Source;
    use crate::policy::testcase::ProbeExpansion;
    use crate::policy::testcase::parse_cases;
    use crate::tables::PolicyKind;

    const CASE: &str = r"
name: near mismatches_of
resources:
  - {apiVersion: v1, kind: Namespace, metadata: {name: far, labels: {team: b}}}
  - {apiVersion: v1, kind: Pod, metadata: {name: db, namespace: default, labels: {app: db}}, spec: {containers: [{name: c, ports: [{name: pg, containerPort: 5432}]}]}, status: {podIP: 10.0.0.1}}
  - {apiVersion: v1, kind: Pod, metadata: {name: api, namespace: far, labels: {app: api}}, spec: {containers: [{name: c}]}, status: {podIP: 10.0.0.2}}
  - apiVersion: networking.k8s.io/v1
    kind: NetworkPolicy
    metadata: {name: db, namespace: default}
    spec:
      podSelector: {}
      ingress:
        - {from: [{namespaceSelector: {matchLabels: {team: a}}}], ports: [{port: pg}]}
        - {from: [{namespaceSelector: {matchLabels: {team: b}}, podSelector: {matchLabels: {app: web}}}]}
        - {from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/24]}}]}
        - {ports: [{port: 1, endPort: 9}, {port: pg, protocol: UDP}]}
probes: []
";

    fn explanation(port: u16) -> Explanation {
        let case = parse_cases(&Source::new("case.yaml", CASE)).cases.remove(0);
        let trial = ProbeExpansion::new(&case);
        let evaluator = ReferenceEvaluator::new(trial.objects());
        let (src, dst) = ("10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap());
        let flow = FlowKey { src, dst, protocol: Protocol::TCP, src_port: 1, dst_port: port };
        let ends = [Endpoint::Ip(src), Endpoint::Ip(dst)];
        explain(&evaluator, &flow, ends.each_ref(), &evaluator.evaluate(&flow), &PolicyLocations::new())
    }

    const EXEMPT: &str = r"
name: hosts
resources:
  - {apiVersion: v1, kind: Pod, metadata: {name: proxy, namespace: sys}, spec: {hostNetwork: true, containers: [{name: c}]}, status: {podIP: 172.16.0.1}}
  - {apiVersion: v1, kind: Pod, metadata: {name: job, namespace: shop}, spec: {containers: [{name: c}]}, status: {podIP: 10.0.0.1, phase: Succeeded}}
  - {apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop}, spec: {containers: [{name: c}]}, status: {podIP: 10.0.0.2}}
  - {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop}, spec: {podSelector: {}, ingress: [{}]}}
  - apiVersion: policy.networking.k8s.io/v1alpha1
    kind: BaselineAdminNetworkPolicy
    metadata: {name: default}
    spec: {subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}
";

    #[test]
    fn an_end_that_no_policy_judges_is_named_with_the_reason() {
        let case = parse_cases(&Source::new("case.yaml", EXEMPT)).cases.remove(0);
        let evaluator = ReferenceEvaluator::new(case.objects.iter().map(|(object, _)| object));
        let told = |from: Endpoint, src: &str| {
            let (src, dst) = (src.parse().unwrap(), "10.0.0.2".parse().unwrap());
            let flow = FlowKey { src, dst, protocol: Protocol::TCP, src_port: 1, dst_port: 80 };
            explain(
                &evaluator,
                &flow,
                [&from, &Endpoint::Ip(dst)],
                &evaluator.evaluate(&flow),
                &PolicyLocations::new(),
            )
        };
        let host = told(Endpoint::Pod(PodName::new("sys", "proxy")), "172.16.0.1");
        assert_eq!(host.exempt[0].why, Exemption::HostNetwork);
        assert!(
            host.to_string().contains("no policy is asked about pod sys/proxy: it is on the host's network"),
            "{host}"
        );
        assert_eq!(told(Endpoint::Ip("172.16.0.1".parse().unwrap()), "172.16.0.1").exempt, host.exempt);
        let finished = told(Endpoint::Pod(PodName::new("shop", "job")), "10.0.0.1");
        assert_eq!(finished.exempt[0].why, Exemption::Finished);
        assert!(finished.to_string().contains("it has finished"), "{finished}");
    }

    #[test]
    fn a_baseline_policy_that_a_network_policy_preempts_is_listed_as_such() {
        let case = parse_cases(&Source::new("case.yaml", EXEMPT)).cases.remove(0);
        let evaluator = ReferenceEvaluator::new(case.objects.iter().map(|(object, _)| object));
        let (src, dst) = ("192.0.2.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let flow = FlowKey { src, dst, protocol: Protocol::TCP, src_port: 1, dst_port: 80 };
        let ends = [Endpoint::Ip(src), Endpoint::Ip(dst)];
        let explanation =
            explain(&evaluator, &flow, ends.each_ref(), &evaluator.evaluate(&flow), &PolicyLocations::new());
        let policies = &explanation.ingress.as_ref().unwrap().policies;
        let told: Vec<_> =
            policies.iter().map(|policy| (policy.policy.kind, policy.evaluated, policy.preempted)).collect();
        let (network, baseline) = (PolicyKind::NetworkPolicy, PolicyKind::BaselineAdminNetworkPolicy);
        assert_eq!(told, [(network, true, false), (baseline, false, true)]);
        let text = explanation.to_string();
        assert!(
            text.contains("BaselineAdminNetworkPolicy default, not asked: a NetworkPolicy isolates the pod"),
            "{text}"
        );
    }

    #[test]
    fn each_rule_says_on_what_it_fails() {
        let side = explanation(5432).ingress.unwrap();
        let rules = &side.policies[0].rules;
        let mismatches_of = |index: usize| {
            let rule: &RuleTrace = &rules[index];
            rule.peer_mismatches
                .iter()
                .chain(&rule.port_mismatches)
                .map(|mismatch| (mismatch.on, mismatch.text.as_str()))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            mismatches_of(0),
            [(MismatchKind::NamespaceLabel, r#"namespace far has team="b", not team=a"#)]
        );
        assert_eq!(mismatches_of(1), [(MismatchKind::PodLabel, r#"pod far/api has app="api", not app=web"#)]);
        assert_eq!(
            mismatches_of(2),
            [(MismatchKind::Address, "10.0.0.2 is excepted by 10.0.0.0/24 from 10.0.0.0/8")]
        );
        assert_eq!(
            mismatches_of(3),
            [
                (MismatchKind::Port, "TCP 5432 is not TCP 1-9"),
                (MismatchKind::Port, "pod default/db has no UDP port named pg"),
            ]
        );
        assert!(rules[..3].iter().all(RuleTrace::is_near));
    }

    #[test]
    fn a_rule_that_matches_is_named_and_misses_nothing() {
        let explanation = explanation(7);
        assert_eq!(explanation.verdict, Verdict::Allow);
        let side = explanation.ingress.unwrap();
        assert_eq!(side.reason, "NetworkPolicy default/db ingress[3]");
        let matching: Vec<usize> =
            side.policies[0].rules.iter().filter(|rule| rule.matches).map(|rule| rule.index).collect();
        assert_eq!(matching, [3]);
        assert!(explanation.egress.unwrap().policies.is_empty());
    }

    #[test]
    fn of_several_pods_that_claim_an_address_the_one_that_denies_is_explained() {
        let other = "  - {apiVersion: v1, kind: Pod, metadata: {name: aa, namespace: default}, spec: {containers: [{name: c}]}, status: {podIP: 10.0.0.1}}\n\
                     probes: []\n";
        let text = CASE
            .replace("probes: []\n", other)
            .replace("podSelector: {}", "podSelector: {matchLabels: {app: db}}");
        let case = parse_cases(&Source::new("case.yaml", text)).cases.remove(0);
        let objects = ProbeExpansion::new(&case).objects().to_vec();
        let evaluator = ReferenceEvaluator::new(&objects);
        let (src, dst) = ("10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap());
        let flow = FlowKey { src, dst, protocol: Protocol::TCP, src_port: 1, dst_port: 80 };
        let ends = [Endpoint::Ip(src), Endpoint::Ip(dst)];
        let explanation =
            explain(&evaluator, &flow, ends.each_ref(), &evaluator.evaluate(&flow), &PolicyLocations::new());
        let side = explanation.ingress.unwrap();
        assert_eq!((side.pod.to_string().as_str(), side.verdict), ("default/db", Verdict::Deny));
        assert_eq!(side.policies.len(), 1);
        let compiler =
            crate::policy::Compiler::from_objects(objects.clone(), crate::policy::Options::default());
        let judge = crate::policy::evaluate::TableEvaluator::new(compiler.into_tables()).unwrap();
        assert_eq!(judge.evaluate(&flow).ingress.unwrap().verdict, Verdict::Deny, "so say the tables");
    }
}
