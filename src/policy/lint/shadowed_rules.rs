//! Check of shadowed rules: another rule decides the same flows.

use super::finding::{Check, LintFinding};
use super::objects::LintObjects;
use super::subsumption;
use crate::policy::evaluate::{cluster_tiers, isolation};
use crate::policy::objects::NetworkPolicyRule;
use crate::tables::Direction;

/// Rule and its place.
struct Placed<'a> {
    at: (usize, usize),
    rule: &'a NetworkPolicyRule,
}

pub(super) fn check(objects: &LintObjects<'_>, found: &mut Vec<LintFinding>) {
    for direction in [Direction::Ingress, Direction::Egress] {
        network(objects, direction, found);
        cluster(objects, direction, found);
    }
}

fn network(objects: &LintObjects<'_>, direction: Direction, found: &mut Vec<LintFinding>) {
    let rules_of = |number: usize| {
        let rules = isolation::rules(objects.network[number], direction).into_iter().flatten().enumerate();
        rules.map(move |(index, rule)| Placed { at: (number, index), rule })
    };
    for (number, policy) in objects.network.iter().enumerate() {
        let covering = objects.policies.may_cover(policy);
        for inner in rules_of(number) {
            let mut rules = covering.iter().copied().flat_map(rules_of);
            let Some(outer) = rules.find(|outer| shadows(objects, &inner, outer)) else { continue };
            let (inner_at, outer_at) = (inner.at.1, outer.at.1);
            let outer = isolation::name(objects.network[outer.at.0]);
            found.push(LintFinding {
                policy: isolation::name(policy).into(),
                path: format!("spec.{direction}[{inner_at}]"),
                check: Check::ShadowedRule,
                message: format!("adds nothing: {outer} {direction}[{outer_at}] allows all of it"),
            });
        }
    }
}

/// Tests whether `outer` covers `inner`. Of two equal rules the later one is superfluous.
fn shadows(objects: &LintObjects<'_>, inner: &Placed<'_>, outer: &Placed<'_>) -> bool {
    let [inside, around] = [inner, outer].map(|placed| objects.network[placed.at.0]);
    let covers = |inner: &Placed<'_>, outer: &Placed<'_>| {
        let [inside, around] = [inner, outer].map(|placed| objects.network[placed.at.0]);
        subsumption::selector(&inside.pod_selector, &around.pod_selector)
            && subsumption::network_rule(inner.rule, outer.rule)
    };
    inner.at != outer.at
        && inside.namespace == around.namespace
        && covers(inner, outer)
        && (!covers(outer, inner) || outer.at < inner.at)
}

/// Checks the rules of each cluster-wide policy. They are evaluated in order: a later rule never sees flows
/// that an earlier one matches.
fn cluster(objects: &LintObjects<'_>, direction: Direction, found: &mut Vec<LintFinding>) {
    for policy in &objects.cluster {
        let rules = cluster_tiers::rules(policy, direction);
        for (index, inner) in rules.iter().enumerate() {
            let earlier = rules[..index].iter().position(|outer| {
                subsumption::cluster_peers(&inner.peers, &outer.peers)
                    && subsumption::cluster_ports(inner.ports.as_deref(), outer.ports.as_deref())
            });
            if let Some(outer) = earlier {
                found.push(LintFinding {
                    policy: cluster_tiers::name(policy).into(),
                    path: format!("spec.{direction}[{index}]"),
                    check: Check::ShadowedRule,
                    message: format!("is never asked: {direction}[{outer}] before it matches all of it"),
                });
            }
        }
    }
}
