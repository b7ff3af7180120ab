//! Clauses C1, C2 and C4: the cluster-wide policies of a tier.

use super::flow_verdict::SideVerdict;
use super::object_index::ObjectIndex;
use super::ports::cluster_ports_match;
use super::query::Query;
use crate::policy::objects::{ClusterAction, ClusterNetworkPolicy, ClusterRule, Tier};
use crate::tables::{Direction, PolicyRef, RuleOrigin, Verdict};

impl<'a> ObjectIndex<'a> {
    /// Verdict of the first rule that matches. `None` if that rule passes, or if none matches.
    pub(in crate::policy) fn evaluate_tier(&self, tier: Tier, query: &Query<'_>) -> Option<SideVerdict> {
        for policy in self.policies_of_tier(tier, query) {
            for (index, rule) in rules(policy, query.direction).iter().enumerate() {
                if self.cluster_rule_matches(rule, query) {
                    return side_verdict_of(policy, rule, index, query.direction);
                }
            }
        }
        None
    }

    /// Clause C8: policies of a tier whose subject selects the pod.
    pub(in crate::policy) fn policies_of_tier(
        &self,
        tier: Tier,
        query: &Query<'_>,
    ) -> impl Iterator<Item = &'a ClusterNetworkPolicy> {
        let of_tier = self.cluster_policies.values().copied().filter(move |policy| policy.tier == tier);
        of_tier.filter(|policy| self.scope_selects(&policy.subject, query.pod))
    }

    fn cluster_rule_matches(&self, rule: &ClusterRule, query: &Query<'_>) -> bool {
        self.cluster_peers_match(&rule.peers, &query.peer)
            && cluster_ports_match(rule.ports.as_deref(), query)
    }
}

pub(in crate::policy) fn rules(policy: &ClusterNetworkPolicy, direction: Direction) -> &[ClusterRule] {
    match direction {
        Direction::Ingress => &policy.ingress,
        Direction::Egress => &policy.egress,
    }
}

/// Clause C2: Pass leaves the tier.
fn side_verdict_of(
    policy: &ClusterNetworkPolicy,
    rule: &ClusterRule,
    index: usize,
    direction: Direction,
) -> Option<SideVerdict> {
    let verdict = match rule.action {
        ClusterAction::Accept => Verdict::Allow,
        ClusterAction::Deny => Verdict::Deny,
        ClusterAction::Pass => return None,
    };
    let origin =
        RuleOrigin::Rule { policy: name(policy), direction, index: index as u32, name: rule.name.clone() };
    Some(SideVerdict { verdict, origin })
}

pub(in crate::policy) fn name(policy: &ClusterNetworkPolicy) -> PolicyRef {
    PolicyRef { kind: policy.kind, namespace: String::new(), name: policy.name.clone() }
}
