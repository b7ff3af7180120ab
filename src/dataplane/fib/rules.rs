//! The rule tables of a generation, laid out for lookup, with counters.

use std::sync::Arc;

use super::effective_acls::Flow;
use super::rule_counters::RuleCounters;
use crate::ids::{AclId, ClassId};
use crate::net::address::{Address, from_v4, is_v4};
use crate::tables::{
    AffectedAcls, Classifier, Decision, PodName, Row, RuleOrigin, RuleTables, TablesDiff, Verdict,
};

/// Rule tables laid out for lookup.
pub(crate) struct Rules {
    document: Arc<RuleTables>,
    classifier: Classifier,
    rule_counters: RuleCounters,
}

/// Effect of other tables on flows that these tables have evaluated.
pub(crate) enum Change {
    /// Every decision stays.
    Nothing,
    /// Any decision may change.
    Everything,
    /// The decisions that this difference affects may change.
    Part(Box<(TablesDiff, AffectedAcls)>),
}

impl Change {
    /// Whether the tables may map the pod to other ACL tables.
    pub(crate) fn affects_pod(&self, pod: &PodName) -> bool {
        match self {
            Change::Nothing => false,
            Change::Everything => true,
            Change::Part(change) => change.0.pods.contains_key(pod),
        }
    }

    /// Whether an ACL table of the next document may decide other than the table that had its id before.
    pub(crate) fn touches(&self, id: AclId, document: &RuleTables) -> bool {
        match self {
            Change::Nothing => false,
            Change::Everything => true,
            Change::Part(change) => document.acls.get(&id).is_none_or(|acl| change.1.contains(id, acl)),
        }
    }
}

impl Rules {
    /// Lays out tables, which have passed their check.
    pub(crate) fn new(document: &Arc<RuleTables>, workers: usize) -> Rules {
        Rules {
            document: document.clone(),
            classifier: Classifier::new(document).expect("tables of a desired state have been checked"),
            rule_counters: RuleCounters::new(end(document), workers),
        }
    }

    /// Returns the rules of other tables, which have passed their check, and the change. The cost is that of
    /// the difference, if that is small.
    pub(crate) fn next(
        before: Option<&Arc<Rules>>,
        tables: Option<&Arc<RuleTables>>,
        workers: usize,
    ) -> (Option<Arc<Rules>>, Change) {
        match (before, tables) {
            (None, None) => (None, Change::Nothing),
            (Some(_), None) => (None, Change::Everything),
            (None, Some(tables)) => (Some(Arc::new(Rules::new(tables, workers))), Change::Everything),
            (Some(rules), Some(tables)) if Arc::ptr_eq(&rules.document, tables) => {
                (Some(rules.clone()), Change::Nothing)
            }
            (Some(rules), Some(tables)) => {
                let (rules, change) = rules.update(tables, workers);
                (Some(Arc::new(rules)), change)
            }
        }
    }

    fn update(&self, document: &Arc<RuleTables>, workers: usize) -> (Rules, Change) {
        let diff = self.document.difference(document);
        let entries = document.prefixes.len() + document.rows.len() + document.acls.len();
        if diff.len() > entries / 2 {
            return (Rules::new(document, workers), Change::Everything);
        }
        let classifier = self.classifier.update(&diff, document);
        let renamed = diff.rules.keys().copied().filter(|rule| self.document.rules.contains_key(rule));
        let rule_counters = self.rule_counters.next(end(document), renamed);
        let affected = AffectedAcls::of(&self.document, &self.classifier, &diff, &classifier);
        (
            Rules { document: document.clone(), classifier, rule_counters },
            Change::Part(Box::new((diff, affected))),
        )
    }

    /// Decides on a flow whose other end has the address `peer`. Counts the decision for the worker
    /// `counted_by`.
    #[inline]
    pub(crate) fn decide(
        &self,
        acl: AclId,
        peer: Address,
        flow: &Flow,
        counted_by: Option<usize>,
    ) -> Decision {
        let decision = self.lookup(acl, peer, flow);
        if let Some(worker) = counted_by {
            self.count(worker, decision);
        }
        decision
    }

    /// Address by which table `acl` decides on a flow that the node forwards under an address of its own, and whose real
    /// source is unknown: that address, as of any host. A rule about the pod's own node is not about such a flow: if it
    /// decides, the unspecified address stands for the source, which rules about every address match, and no others.
    #[cold]
    pub(crate) fn peer_of_forwarded(&self, acl: AclId, flow: &Flow) -> Address {
        match self.name(self.lookup(acl, flow.src, flow)) {
            Some(RuleOrigin::OwnNode) if is_v4(flow.src) => from_v4(0),
            Some(RuleOrigin::OwnNode) => 0,
            _ => flow.src,
        }
    }

    /// The classifier, for batches of queries.
    pub(crate) fn classifier(&self) -> &Classifier {
        &self.classifier
    }

    /// Counts a decision.
    #[inline]
    pub(crate) fn count(&self, worker: usize, decision: Decision) {
        self.rule_counters.count(worker, decision);
    }

    /// Origin of the decision on a flow.
    pub(crate) fn origin(&self, acl: AclId, peer: Address, flow: &Flow) -> Option<RuleOrigin> {
        self.document.rules.get(&self.lookup(acl, peer, flow).rule()).cloned()
    }

    /// Origin of a decision.
    pub(crate) fn name(&self, decision: Decision) -> Option<&RuleOrigin> {
        self.document.rules.get(&decision.rule())
    }

    /// Row of a table for a class.
    pub(crate) fn row(&self, acl: AclId, class: ClassId) -> Option<&Row> {
        self.document.rows.get(&self.document.acls.get(&acl)?.row(class))
    }

    /// The class of an address.
    #[inline]
    pub(crate) fn class(&self, address: Address) -> ClassId {
        if is_v4(address) {
            self.classifier.class_v4(address as u32)
        } else {
            self.classifier.class_v6(address)
        }
    }

    #[inline]
    fn lookup(&self, acl: AclId, peer: Address, flow: &Flow) -> Decision {
        self.classifier.decide(acl, self.class(peer), flow.protocol, flow.dst_port)
    }

    /// Calls `see` with the origin, verdict and count of each decision that was taken.
    pub(crate) fn for_each_count(&self, see: impl FnMut(&RuleOrigin, Verdict, u64)) {
        self.rule_counters.for_each(self.named(see));
    }

    /// Calls `see` as [`Rules::for_each_count`] does, for the counters that `next` does not share.
    pub(crate) fn for_each_retired_count(
        &self,
        next: Option<&Rules>,
        see: impl FnMut(&RuleOrigin, Verdict, u64),
    ) {
        self.rule_counters.for_each_retired(next.map(|next| &next.rule_counters), self.named(see));
    }

    fn named(&self, mut see: impl FnMut(&RuleOrigin, Verdict, u64)) -> impl FnMut(Decision, u64) {
        move |decision, times| {
            if let Some(origin) = self.document.rules.get(&decision.rule()) {
                see(origin, decision.verdict(), times);
            }
        }
    }
}

/// Number after that of the last rule.
fn end(document: &RuleTables) -> usize {
    document.rules.last_key_value().map_or(0, |(id, _)| id.index() + 1)
}
