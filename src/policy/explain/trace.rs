//! Trace of the policies and rules that a flow passes.

use super::explanation::{ExemptPod, Explanation, PolicyLocations, PolicyTrace, RuleTrace, SideExplanation};
use super::mismatch::{self, Mismatch};
use crate::net::flow::FlowKey;
use crate::policy::evaluate::{
    FlowVerdict, PeerAddress, Query, ReferenceEvaluator, SideVerdict, cluster_tiers, isolation,
};
use crate::policy::objects::{ClusterNetworkPolicy, NetworkPolicy, Peers, Pod, Ports, Tier};
use crate::policy::testcase::Endpoint;
use crate::tables::{Direction, RuleOrigin};

/// Explains the verdict on a flow between two endpoints.
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
        audit: None,
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
    // The first owner represents all that claim the address.
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
    // A cluster-wide policy may select the pod and have no rules in this direction.
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

/// Marks the policies after the one that decided as not evaluated.
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

/// Mismatches of all entries; empty if an entry matches.
fn mismatches(entries: impl Iterator<Item = Option<Mismatch>>) -> Vec<Mismatch> {
    entries.collect::<Option<Vec<Mismatch>>>().unwrap_or_default()
}
