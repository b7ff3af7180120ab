//! Policies of rule tables, with the pods that they affect and their counters.

use std::collections::{BTreeMap, BTreeSet};

use super::hits::Hits;
use crate::control::protocol::PolicyInForce;
use crate::ids::{AclId, RowId};
use crate::tables::{Decision, PolicyRef, RuleOrigin, RuleTables, Verdict};

/// Lists the policies of the tables by namespace, kind and name.
pub(super) fn policies(tables: &RuleTables, hits: &Hits) -> Vec<PolicyInForce> {
    let mut policies: BTreeMap<&PolicyRef, PolicyInForce> = BTreeMap::new();
    for origin in tables.rules.values() {
        for policy in origin.policies() {
            let found = policies.entry(policy).or_insert_with(|| PolicyInForce {
                policy: policy.clone(),
                pods: 0,
                rules: 0,
                allowed_flows: 0,
                denied_packets: 0,
            });
            found.rules += usize::from(matches!(origin, RuleOrigin::Rule { .. }));
        }
    }
    for ((origin, verdict), count) in hits {
        for policy in origin.policies() {
            let Some(found) = policies.get_mut(policy) else { continue };
            match verdict {
                Verdict::Allow => found.allowed_flows += count,
                Verdict::Deny => found.denied_packets += count,
            }
        }
    }
    count_pods(tables, &mut policies);
    let mut policies: Vec<PolicyInForce> = policies.into_values().collect();
    policies.sort_by(|a, b| {
        let key = |found: &PolicyInForce| {
            (found.policy.namespace.clone(), found.policy.kind, found.policy.name.clone())
        };
        key(a).cmp(&key(b))
    });
    policies
}

/// Counts the pods of each policy: those with a row of one of its decisions in a table.
fn count_pods(tables: &RuleTables, policies: &mut BTreeMap<&PolicyRef, PolicyInForce>) {
    let mut pods: BTreeMap<[AclId; 2], usize> = BTreeMap::new();
    for pod in tables.pods.values() {
        *pods.entry([pod.ingress, pod.egress]).or_default() += 1;
    }
    for (acls, count) in pods {
        let acls = acls.iter().map(|id| &tables.acls[id]);
        let rows: BTreeSet<RowId> =
            acls.flat_map(|acl| acl.rows.values().chain([&acl.default])).copied().collect();
        let rules: BTreeSet<_> =
            rows.iter().flat_map(|row| tables.rows[row].decisions()).map(Decision::rule).collect();
        let named: BTreeSet<&PolicyRef> =
            rules.iter().flat_map(|rule| tables.rules[rule].policies()).collect();
        for policy in named {
            if let Some(found) = policies.get_mut(policy) {
                found.pods += count;
            }
        }
    }
}
