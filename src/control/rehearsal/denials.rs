//! Flows that audited policies would deny, by decision and ends.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use super::ends::{Ends, pods_by_address};
use crate::control::protocol::{AuditDenial, AuditedPolicy};
use crate::control::state::{State, unix_seconds};
use crate::dataplane::Disagreement;
use crate::limits::{AUDIT_DENIALS_MAX, AUDIT_FLOWS_MAX};
use crate::tables::{PodName, PolicyRef, RuleOrigin, Verdict};

/// Decision of the audit and ends of connections.
type DenialKey = (Option<RuleOrigin>, Ends);

/// Flows of one walk.
#[derive(Debug, Clone, Copy, Default)]
struct Flows {
    /// Flows that the walk before did not know.
    new: u64,
    /// All flows.
    running: u64,
}

impl Flows {
    fn add(&mut self, is_new: bool) {
        self.new += u64::from(is_new);
        self.running += 1;
    }
}

/// All denials since the load of an audit.
#[derive(Debug, Default)]
pub(super) struct Denials {
    policies: BTreeMap<PolicyRef, AuditedPolicy>,
    by_key: BTreeMap<DenialKey, AuditDenial>,
    hasher: RandomState,
    /// Hashes of the flows of the last walk, each with its decision.
    known: Arc<HashSet<u64>>,
    left_out: u64,
    uncounted: u64,
}

/// Denials of one walk over the flow table.
pub(super) struct DeniedFlows<'a> {
    at: SystemTime,
    /// Attached pods by address.
    pods: HashMap<IpAddr, &'a PodName>,
    hasher: RandomState,
    before: Arc<HashSet<u64>>,
    known: HashSet<u64>,
    by_key: BTreeMap<DenialKey, Flows>,
    policies: BTreeMap<PolicyRef, Flows>,
    /// New flows whose ends found no place.
    left_out: u64,
    /// Flows beyond those that the next walk knows again.
    uncounted: u64,
}

impl DeniedFlows<'_> {
    /// Adds a flow, if the tables in force allow it and the audit denies it.
    pub(super) fn add(&mut self, found: Disagreement) {
        if (found.enforced.verdict, found.candidate.verdict) != (Verdict::Allow, Verdict::Deny) {
            return;
        }
        let decided_by = found.candidate.decided_by;
        let hash = self.hasher.hash_one((&found.key, &decided_by));
        let is_new = !self.before.contains(&hash);
        if self.known.len() >= AUDIT_FLOWS_MAX {
            self.uncounted += 1;
            return;
        }
        self.known.insert(hash);
        for policy in decided_by.iter().flat_map(RuleOrigin::policies) {
            if let Some(flows) = self.policies.get_mut(policy) {
                flows.add(is_new);
            }
        }
        let key = (decided_by, Ends::of(&found.key, |address| self.pods.get(&address).copied()));
        if let Some(flows) = self.by_key.get_mut(&key) {
            flows.add(is_new);
        } else if self.by_key.len() < AUDIT_DENIALS_MAX {
            self.by_key.entry(key).or_default().add(is_new);
        } else {
            self.left_out += u64::from(is_new);
        }
    }
}

impl Denials {
    /// Sets the audited policies. Those that were audited before keep their counts.
    pub(super) fn set_policies(&mut self, policies: Vec<PolicyRef>, at: SystemTime) {
        let mut before = std::mem::take(&mut self.policies);
        let keep = |policy: PolicyRef| {
            let kept = before.remove(&policy).unwrap_or_else(|| AuditedPolicy {
                policy: policy.clone(),
                since_unix_s: unix_seconds(at),
                flows: 0,
                running: 0,
            });
            (policy, kept)
        };
        self.policies = policies.into_iter().map(keep).collect();
        let policies = &self.policies;
        let is_audited =
            |origin: &RuleOrigin| origin.policies().iter().any(|name| policies.contains_key(name));
        self.by_key.retain(|(decided_by, _), _| decided_by.as_ref().is_some_and(is_audited));
    }

    /// Begins a walk.
    pub(super) fn begin<'a>(&self, at: SystemTime, state: &'a State) -> DeniedFlows<'a> {
        DeniedFlows {
            at,
            pods: pods_by_address(state),
            hasher: self.hasher.clone(),
            before: self.known.clone(),
            known: HashSet::new(),
            by_key: BTreeMap::new(),
            policies: self.policies.keys().map(|policy| (policy.clone(), Flows::default())).collect(),
            left_out: 0,
            uncounted: 0,
        }
    }

    /// Takes the flows of a complete walk.
    pub(super) fn end(&mut self, walk: DeniedFlows<'_>) {
        for (policy, flows) in walk.policies {
            if let Some(counted) = self.policies.get_mut(&policy) {
                counted.running = flows.running;
                // A policy whose audit ends and begins between two walks counts its flows anew.
                counted.flows = (counted.flows + flows.new).max(flows.running);
            }
        }
        self.by_key.values_mut().for_each(|denial| denial.running = 0);
        let at = unix_seconds(walk.at);
        for (key, flows) in walk.by_key {
            if self.by_key.len() >= AUDIT_DENIALS_MAX && !self.by_key.contains_key(&key) {
                self.left_out += flows.new;
                continue;
            }
            let denial = self.by_key.entry(key).or_insert_with_key(|(decided_by, ends)| AuditDenial {
                decided_by: decided_by.clone(),
                source: ends.source.clone(),
                destination: ends.destination.clone(),
                protocol: ends.protocol,
                port: ends.port,
                flows: 0,
                running: 0,
                last_seen_unix_s: 0,
            });
            denial.flows = (denial.flows + flows.new).max(flows.running);
            (denial.running, denial.last_seen_unix_s) = (flows.running, at);
        }
        self.left_out += walk.left_out;
        self.uncounted = walk.uncounted;
        self.known = Arc::new(walk.known);
    }

    /// The audited policies with their counts.
    pub(super) fn policies(&self) -> Vec<AuditedPolicy> {
        self.policies.values().cloned().collect()
    }

    /// The denials, the latest first.
    pub(super) fn list(&self) -> Vec<AuditDenial> {
        let mut listed: Vec<_> = self.by_key.values().cloned().collect();
        listed.sort_by_key(|denial| std::cmp::Reverse((denial.last_seen_unix_s, denial.running)));
        listed
    }

    /// Flows whose ends found no place in the list.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Flows of the last walk that are not counted, because it had too many.
    pub(super) fn uncounted(&self) -> u64 {
        self.uncounted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::Judgement;
    use crate::net::flow::{FlowKey, Protocol};
    use crate::tables::{Direction, PolicyKind};

    fn policy(name: &str) -> PolicyRef {
        PolicyRef { kind: PolicyKind::NetworkPolicy, namespace: "default".to_owned(), name: name.to_owned() }
    }

    fn isolated_by(names: &[&str]) -> RuleOrigin {
        let policies = names.iter().map(|name| policy(name)).collect();
        RuleOrigin::DefaultDeny { direction: Direction::Ingress, policies }
    }

    fn found(source: u32, src_port: u16, by: impl Into<Option<RuleOrigin>>) -> Disagreement {
        Disagreement {
            key: FlowKey {
                src: IpAddr::from((10 << 24 | source).to_be_bytes()),
                dst: IpAddr::from([10, 0, 0, 1]),
                protocol: Protocol::TCP,
                src_port,
                dst_port: 80,
            },
            enforced: Judgement { verdict: Verdict::Allow, decided_by: None },
            candidate: Judgement { verdict: Verdict::Deny, decided_by: by.into() },
        }
    }

    fn audit(policies: &[&str]) -> Denials {
        let mut all = Denials::default();
        all.set_policies(policies.iter().map(|name| policy(name)).collect(), SystemTime::now());
        all
    }

    fn walk(all: &mut Denials, flows: impl IntoIterator<Item = Disagreement>) {
        let state = State::default();
        let mut walk = all.begin(SystemTime::now(), &state);
        flows.into_iter().for_each(|found| walk.add(found));
        all.end(walk);
    }

    fn counts(all: &Denials) -> Vec<(String, u64, u64)> {
        all.policies().into_iter().map(|one| (one.policy.name, one.flows, one.running)).collect()
    }

    #[test]
    fn a_flow_counts_once_for_each_policy_that_denies_it() {
        let mut all = audit(&["a", "b"]);
        let (both, a) = (isolated_by(&["a", "b"]), isolated_by(&["a"]));
        walk(&mut all, [found(2, 1, both.clone()), found(2, 2, both.clone()), found(3, 1, a.clone())]);
        walk(&mut all, [found(2, 2, both.clone()), found(2, 3, both)]);
        assert_eq!(counts(&all), [("a".to_owned(), 4, 2), ("b".to_owned(), 3, 2)]);
        let listed = all.list();
        assert_eq!((listed.len(), listed[0].flows, listed[0].running), (2, 3, 2));
        assert_eq!((listed[1].source.as_str(), listed[1].flows, listed[1].running), ("10.0.0.3", 1, 0));
        assert_eq!(listed[1].decided_by, Some(a));
    }

    #[test]
    fn only_flows_that_the_tables_in_force_allow_and_the_audit_denies_count() {
        let mut all = audit(&["a"]);
        let mut opened = found(2, 1, isolated_by(&["a"]));
        std::mem::swap(&mut opened.enforced, &mut opened.candidate);
        let mut denied_anyway = found(2, 2, isolated_by(&["a"]));
        denied_anyway.enforced.verdict = Verdict::Deny;
        walk(&mut all, [opened, denied_anyway]);
        assert_eq!((counts(&all), all.list().len()), (vec![("a".to_owned(), 0, 0)], 0));
    }

    #[test]
    fn counts_outlive_a_change_of_the_tables_and_end_with_the_audit() {
        let mut all = audit(&["a", "b"]);
        walk(&mut all, [found(2, 1, isolated_by(&["a"])), found(3, 1, isolated_by(&["b"]))]);
        all.set_policies(vec![policy("a"), policy("c")], SystemTime::now());
        assert_eq!(counts(&all), [("a".to_owned(), 1, 1), ("c".to_owned(), 0, 0)]);
        assert_eq!(all.list().len(), 1);
        walk(&mut all, [found(2, 1, isolated_by(&["a"])), found(3, 1, isolated_by(&["c"]))]);
        assert_eq!(counts(&all), [("a".to_owned(), 1, 1), ("c".to_owned(), 1, 1)]);
        all.set_policies(vec![policy("b")], SystemTime::now());
        all.set_policies(vec![policy("a"), policy("b"), policy("c")], SystemTime::now());
        walk(&mut all, [found(2, 1, isolated_by(&["a"]))]);
        assert_eq!(counts(&all)[0], ("a".to_owned(), 1, 1));
    }

    #[test]
    fn a_denial_by_an_enforced_policy_counts_for_no_audited_one() {
        let mut all = audit(&["a"]);
        walk(&mut all, [found(2, 1, isolated_by(&["enforced"])), found(2, 2, None::<RuleOrigin>)]);
        assert_eq!(counts(&all), [("a".to_owned(), 0, 0)]);
        assert_eq!(all.list().iter().map(|denial| denial.running).sum::<u64>(), 2);
    }

    #[test]
    fn ends_are_bounded_and_the_counts_of_policies_are_not_affected() {
        let mut all = audit(&["a"]);
        let by = isolated_by(&["a"]);
        let many = AUDIT_DENIALS_MAX as u32 + 5;
        for _ in 0..2 {
            walk(&mut all, (0..many).map(|n| found(n, 1, by.clone())));
        }
        assert_eq!((all.list().len(), all.left_out()), (AUDIT_DENIALS_MAX, 5));
        assert_eq!(counts(&all), [("a".to_owned(), u64::from(many), u64::from(many))]);
        assert_eq!(all.uncounted(), 0);
    }
}
