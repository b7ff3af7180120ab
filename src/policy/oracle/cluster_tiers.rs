//! Clauses C1, C2 and C4: what the cluster-wide policies of a tier say of a pod.

use super::ports::cluster_ports_match;
use super::{Finding, Oracle, Question};
use crate::policy::objects::{ClusterAction, ClusterNetworkPolicy, ClusterRule, Tier};
use crate::tables::{Direction, PolicyRef, RuleOrigin, Verdict};

impl Oracle<'_> {
    /// The first rule that matches decides; nothing where that is a Pass, or none matches.
    pub(super) fn ask_tier(&self, tier: Tier, question: &Question<'_>) -> Option<Finding> {
        for policy in self.cluster_policies.values() {
            if policy.tier != tier || !self.scope_holds(&policy.subject, question.subject) {
                continue;
            }
            for (index, rule) in rules(policy, question.direction).iter().enumerate() {
                if self.cluster_rule_matches(rule, question) {
                    return act(policy, rule, index, question.direction);
                }
            }
        }
        None
    }

    fn cluster_rule_matches(&self, rule: &ClusterRule, question: &Question<'_>) -> bool {
        self.cluster_peers_match(&rule.peers, &question.peer)
            && cluster_ports_match(rule.ports.as_deref(), question)
    }
}

fn rules(policy: &ClusterNetworkPolicy, direction: Direction) -> &[ClusterRule] {
    match direction {
        Direction::Ingress => &policy.ingress,
        Direction::Egress => &policy.egress,
    }
}

/// Clause C2: Pass leaves the tier.
fn act(
    policy: &ClusterNetworkPolicy,
    rule: &ClusterRule,
    index: usize,
    direction: Direction,
) -> Option<Finding> {
    let verdict = match rule.action {
        ClusterAction::Accept => Verdict::Allow,
        ClusterAction::Deny => Verdict::Deny,
        ClusterAction::Pass => return None,
    };
    let policy = PolicyRef { kind: policy.kind, namespace: String::new(), name: policy.name.clone() };
    let origin = RuleOrigin::Rule { policy, direction, index: index as u32, name: rule.name.clone() };
    Some(Finding { verdict, origin })
}
