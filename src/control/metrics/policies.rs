//! Metrics of decisions: by origin, and by policy.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::exposition::Kind::{Counter, Gauge};
use super::exposition::{Exposition, shown};
use crate::control::protocol::AuditedPolicy;
use crate::dataplane::DecisionCount;
use crate::limits::METRICS_POLICIES_MAX;
use crate::tables::{Direction, PolicyKind, PolicyRef, RuleOrigin, Verdict};

/// Kind, namespace and name of a policy, as labels show them.
type Policy = (PolicyKind, String, String);
/// Packets by direction and verdict.
type Counts = BTreeMap<(Direction, Verdict), u64>;

/// Describes all decisions, and those of the policies with the most packets.
pub(super) fn describe(out: &mut Exposition, decisions: &[DecisionCount]) {
    let mut origins: BTreeMap<_, u64> = BTreeMap::new();
    let mut policies: BTreeMap<Policy, Counts> = BTreeMap::new();
    for DecisionCount { verdict, origin, packets } in decisions {
        let (name, direction, by) = parts(origin);
        *origins.entry((name, direction, *verdict)).or_default() += packets;
        let Some(direction) = direction else { continue };
        for policy in by {
            let labels = (policy.kind, shown(&policy.namespace), shown(&policy.name));
            *policies.entry(labels).or_default().entry((direction, *verdict)).or_default() += packets;
        }
    }
    let mut family = out.family(
        Counter,
        "palisade_decided_packets",
        "packets",
        "First packets of allowed flows and all packets of denied ones, by the origin of the decision.",
    );
    for ((origin, direction, verdict), packets) in origins {
        let direction = direction.map_or("", direction_name);
        let labels = [("origin", origin), ("direction", direction), ("verdict", verdict_name(verdict))];
        family.sample(&labels, packets);
    }
    let left_out = policies.len().saturating_sub(METRICS_POLICIES_MAX);
    let mut family = out.family(
        Counter,
        "palisade_policy_decided_packets",
        "packets",
        "Packets that rules of the policy have decided on, and packets that no rule admits: these count for each policy that isolates the pod.",
    );
    for ((kind, namespace, name), counts) in with_most_packets(policies) {
        for ((direction, verdict), packets) in counts {
            let labels = [
                ("kind", &*kind.to_string()),
                ("namespace", &namespace),
                ("policy", &name),
                ("direction", direction_name(direction)),
                ("verdict", verdict_name(verdict)),
            ];
            family.sample(&labels, packets);
        }
    }
    out.family(
        Gauge,
        "palisade_left_out_policies",
        "policies",
        "Policies without counters here, because others have decided on more packets.",
    )
    .sample(&[], left_out as u64);
}

/// Describes the policies in audit mode, and those with the most flows that they would have denied.
pub(super) fn describe_audit(out: &mut Exposition, mut audited: Vec<AuditedPolicy>, is_judging: bool) {
    out.family(
        Gauge,
        "palisade_audited_policies",
        "policies",
        "Policies in audit mode, by whether flows are judged by them.",
    )
    .sample(&[("judged", "true")], if is_judging { audited.len() as u64 } else { 0 })
    .sample(&[("judged", "false")], if is_judging { 0 } else { audited.len() as u64 });
    audited.sort_by_key(|policy| Reverse(policy.flows));
    audited.truncate(METRICS_POLICIES_MAX);
    let mut flows: BTreeMap<Policy, u64> = BTreeMap::new();
    for AuditedPolicy { policy, flows: counted, .. } in audited {
        let labels = (policy.kind, shown(&policy.namespace), shown(&policy.name));
        *flows.entry(labels).or_default() += counted;
    }
    let mut family = out.family(
        Counter,
        "palisade_audit_denied_flows",
        "flows",
        "Flows that the policy in audit mode would have denied, for the policies with the most of them.",
    );
    for ((kind, namespace, name), flows) in flows {
        let labels = [("kind", &*kind.to_string()), ("namespace", &namespace), ("policy", &name)];
        family.sample(&labels, flows);
    }
}

/// Policies with counters, in the order of their names.
fn with_most_packets(policies: BTreeMap<Policy, Counts>) -> BTreeMap<Policy, Counts> {
    if policies.len() <= METRICS_POLICIES_MAX {
        return policies;
    }
    let mut sorted: Vec<_> = policies.into_iter().collect();
    // The sort is stable: of policies with equally many packets, the first by name stays.
    sorted.sort_by_key(|(_, counts)| Reverse(counts.values().sum::<u64>()));
    sorted.into_iter().take(METRICS_POLICIES_MAX).collect()
}

/// Name of an origin, its direction, and its policies.
fn parts(origin: &RuleOrigin) -> (&'static str, Option<Direction>, &[PolicyRef]) {
    match origin {
        RuleOrigin::NotIsolated { direction } => ("not-isolated", Some(*direction), &[]),
        RuleOrigin::DefaultDeny { direction, policies } => ("default-deny", Some(*direction), policies),
        RuleOrigin::Rule { policy, direction, .. } => {
            ("rule", Some(*direction), std::slice::from_ref(policy))
        }
        RuleOrigin::OwnNode => ("own-node", None, &[]),
    }
}

fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    }
}

fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::metrics::Format;

    fn policy(name: &str) -> PolicyRef {
        PolicyRef { kind: PolicyKind::NetworkPolicy, namespace: "default".to_owned(), name: name.to_owned() }
    }

    fn described(decisions: &[DecisionCount]) -> String {
        let mut out = Exposition::new(Format::OpenMetrics);
        describe(&mut out, decisions);
        out.finish()
    }

    #[test]
    fn rules_of_one_policy_are_one_series_and_a_default_deny_counts_for_each_policy() {
        let direction = Direction::Ingress;
        let rule = |index, packets| DecisionCount {
            verdict: Verdict::Allow,
            origin: RuleOrigin::Rule { policy: policy("db"), direction, index, name: None },
            packets,
        };
        let policies = vec![policy("db"), policy("all\"}")];
        let deny = DecisionCount {
            verdict: Verdict::Deny,
            origin: RuleOrigin::DefaultDeny { direction, policies },
            packets: 5,
        };
        let text = described(&[rule(0, 1), rule(1, 2), deny]);
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let of = |name: &str, verdict: &str, packets: u64| {
            format!(
                "palisade_policy_decided_packets_total{{kind=\"NetworkPolicy\",namespace=\"default\",policy=\"{name}\",\
                 direction=\"ingress\",verdict=\"{verdict}\"}} {packets}"
            )
        };
        let expected = [
            "palisade_decided_packets_total{origin=\"default-deny\",direction=\"ingress\",verdict=\"deny\"} 5",
            "palisade_decided_packets_total{origin=\"rule\",direction=\"ingress\",verdict=\"allow\"} 3",
            &of("all\\\"}", "deny", 5),
            &of("db", "allow", 3),
            &of("db", "deny", 5),
            "palisade_left_out_policies 0",
        ];
        assert_eq!(samples, expected);
    }

    #[test]
    fn policies_beyond_the_bound_are_those_with_the_fewest_packets() {
        let decision = |number: usize| DecisionCount {
            verdict: Verdict::Allow,
            origin: RuleOrigin::Rule {
                policy: policy(&format!("p{number}")),
                direction: Direction::Egress,
                index: 0,
                name: None,
            },
            packets: number as u64,
        };
        let decisions: Vec<_> = (0..METRICS_POLICIES_MAX + 3).map(decision).collect();
        let text = described(&decisions);
        assert_eq!(text.matches("palisade_policy_decided_packets_total{").count(), METRICS_POLICIES_MAX);
        assert!(text.contains("palisade_left_out_policies 3\n"));
        assert!(!text.contains("policy=\"p2\"") && text.contains("policy=\"p3\""));
    }

    #[test]
    fn audited_policies_beyond_the_bound_are_those_with_the_fewest_flows() {
        let audited = |number: usize| AuditedPolicy {
            policy: policy(&format!("p{number}")),
            since_unix_s: 0,
            flows: number as u64,
            running: 0,
        };
        let described = |count: usize, is_judging| {
            let mut out = Exposition::new(Format::OpenMetrics);
            describe_audit(&mut out, (0..count).map(audited).collect(), is_judging);
            out.finish()
        };
        let text = described(METRICS_POLICIES_MAX + 3, true);
        assert_eq!(text.matches("palisade_audit_denied_flows_total{").count(), METRICS_POLICIES_MAX);
        assert!(!text.contains("policy=\"p2\"") && text.contains("policy=\"p3\"} 3\n"), "{text}");
        let text = described(2, false);
        assert!(text.contains("palisade_audited_policies{judged=\"false\"} 2\n"), "{text}");
    }

    #[test]
    fn names_that_are_shown_alike_are_one_series() {
        let long = |end: &str| format!("{}{}{end}", "x".repeat(5000), "y".repeat(5000));
        let decision = |name: &str| DecisionCount {
            verdict: Verdict::Deny,
            origin: RuleOrigin::DefaultDeny { direction: Direction::Egress, policies: vec![policy(name)] },
            packets: 2,
        };
        let middle = long("").replacen("xy", "zz", 1);
        let text = described(&[decision(&long("")), decision(&middle)]);
        assert_eq!(text.matches("palisade_policy_decided_packets_total{").count(), 1, "{text}");
        assert!(text.contains("verdict=\"deny\"} 4\n"));
    }
}
