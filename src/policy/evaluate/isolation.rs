//! Clauses E2 to E4 and N1: the `NetworkPolicies` of a pod.

use super::flow_verdict::SideVerdict;
use super::object_index::ObjectIndex;
use super::peers::is_certain;
use super::ports::network_ports_match;
use super::query::{AddressOwner, Query};
use super::selectors::selects;
use crate::policy::objects::{NetworkPolicy, NetworkPolicyRule};
use crate::tables::{Direction, PolicyKind, PolicyRef, RuleOrigin, Verdict};

impl<'a> ObjectIndex<'a> {
    /// Verdict of the policies that isolate the pod in this direction, which is final (clause C3). `None` if
    /// none does.
    pub(in crate::policy) fn evaluate_network_policies(&self, query: &Query<'_>) -> Option<SideVerdict> {
        let isolating = self.isolating(query);
        if isolating.is_empty() {
            return None;
        }
        if is_own_node(query) {
            return Some(SideVerdict { verdict: Verdict::Allow, origin: RuleOrigin::OwnNode });
        }
        for policy in &isolating {
            for (index, rule) in rules(policy, query.direction).into_iter().flatten().enumerate() {
                if self.network_rule_matches(policy, rule, query) {
                    return Some(allowed_by(policy, query.direction, index));
                }
            }
        }
        Some(denied_by(&isolating, query.direction))
    }

    /// Clause E2: policies of the namespace of the pod that select it and have the direction.
    pub(in crate::policy) fn isolating(&self, query: &Query<'_>) -> Vec<&'a NetworkPolicy> {
        let pod = query.pod;
        let of_namespace = self.network_policies.values().copied().filter(|policy| {
            policy.namespace == pod.name.namespace && rules(policy, query.direction).is_some()
        });
        of_namespace.filter(|policy| selects(&policy.pod_selector, &pod.labels)).collect()
    }

    /// Clause E4: peers and ports match.
    fn network_rule_matches(
        &self,
        policy: &NetworkPolicy,
        rule: &NetworkPolicyRule,
        query: &Query<'_>,
    ) -> bool {
        self.network_peers_match(&policy.namespace, &rule.peers, &query.peer)
            && network_ports_match(&rule.ports, query)
    }
}

/// Clauses T2 and T3: a direction that `policyTypes` lacks has no rules, which differs from an empty list.
pub(in crate::policy) fn rules(policy: &NetworkPolicy, direction: Direction) -> Option<&[NetworkPolicyRule]> {
    match direction {
        Direction::Ingress => policy.ingress.as_deref(),
        Direction::Egress => policy.egress.as_deref(),
    }
}

/// Clauses N1 and N2: traffic to a pod from its own node.
fn is_own_node(query: &Query<'_>) -> bool {
    if query.direction == Direction::Egress {
        return false;
    }
    let is_host = is_certain(query.peer.owner) && query.pod.host_ips.contains(&query.peer.address);
    match query.peer.owner {
        AddressOwner::Node(node) => is_host || query.pod.node.as_ref() == Some(&node.name),
        AddressOwner::Pod(_) | AddressOwner::External => is_host,
    }
}

/// Clause E3: one rule that matches suffices.
fn allowed_by(policy: &NetworkPolicy, direction: Direction, index: usize) -> SideVerdict {
    let origin = RuleOrigin::Rule { policy: name(policy), direction, index: index as u32, name: None };
    SideVerdict { verdict: Verdict::Allow, origin }
}

fn denied_by(isolating: &[&NetworkPolicy], direction: Direction) -> SideVerdict {
    let policies = isolating.iter().map(|policy| name(policy)).collect();
    SideVerdict { verdict: Verdict::Deny, origin: RuleOrigin::DefaultDeny { direction, policies } }
}

pub(in crate::policy) fn name(policy: &NetworkPolicy) -> PolicyRef {
    PolicyRef {
        kind: PolicyKind::NetworkPolicy,
        namespace: policy.namespace.clone(),
        name: policy.name.clone(),
    }
}
