//! Rule tables laid out for look-up: what the workers ask.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::acl_store::{AclStore, Cell};
use super::pod_index::PodIndex;
use super::row_store::{self, RowStore, Service};
use super::{Decision, PodName, PrefixTable, RuleTables, TablesDiff, TablesError};
use crate::ids::{AclId, ClassId, RowId};
use crate::limits::BATCH_FRAMES_MAX;
use crate::net::flow::{FlowKey, Protocol};

/// The same content as [`RuleTables`], compiled. Clones and updates share all memory that does not change.
///
/// Ids of one classifier mean nothing to another. What is pending of an ACL table that is not there is denied.
#[derive(Clone)]
pub struct Classifier {
    classes: PrefixTable,
    acls: AclStore,
    rows: RowStore,
    pods: PodIndex,
}

/// The tables that judge flows of one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodAcls {
    /// Judges flows to the pod, by the class of the source.
    pub ingress: AclId,
    /// Judges flows from the pod, by the class of the destination.
    pub egress: AclId,
}

/// Questions that are answered side by side: so many that their loads overlap, and so few that what they bring in, and where its
/// pages lie, is still near when it is used.
const RUN: usize = 16;

/// What the tables say of a whole flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowDecision {
    /// By the egress table of the source, if that is a pod of the tables.
    pub egress: Option<Decision>,
    /// By the ingress table of the destination, if that is a pod of the tables.
    pub ingress: Option<Decision>,
}

impl FlowDecision {
    /// Whether the flow passes: no side denies it.
    pub fn is_allow(self) -> bool {
        self.egress.into_iter().chain(self.ingress).all(Decision::is_allow)
    }
}

/// Building and updating.
impl Classifier {
    /// Compiles `tables`, if they are whole.
    pub fn new(tables: &RuleTables) -> Result<Classifier, TablesError> {
        tables.check()?;
        let mut rows = RowStore::default();
        tables.rows.iter().for_each(|(&id, row)| rows.set(id, Some(row)));
        let mut acls = AclStore::default();
        tables.acls.iter().for_each(|(&id, acl)| acls.set(id, Some(acl), &rows));
        Ok(Classifier { classes: compile_classes(tables), acls, rows, pods: PodIndex::new(tables) })
    }

    /// The classifier of `next`, which `change` made of the tables of this one; `next` has passed its check.
    ///
    /// Costs as much as the difference; this classifier stays as it is for those who still use it.
    #[must_use]
    pub fn update(&self, change: &TablesDiff, next: &RuleTables) -> Classifier {
        let mut updated = self.clone();
        if change.prefixes.len() > self.classes.len() / 2 {
            updated.classes = compile_classes(next);
        } else {
            for (&prefix, class) in &change.prefixes {
                match class {
                    Some(class) => updated.classes.insert(prefix, class.0),
                    None => updated.classes.remove(prefix),
                };
            }
        }
        change.rows.iter().for_each(|(&id, row)| updated.rows.set(id, row.as_ref()));
        change.acls.iter().for_each(|(&id, acl)| updated.acls.set(id, acl.as_ref(), &updated.rows));
        for (&id, rows) in &change.acl_rows {
            let acl = next.acls.get(&id);
            acl.into_iter().for_each(|acl| updated.acls.set_rows(id, rows, acl, &updated.rows));
        }
        updated.update_inlined_rows(&self.rows, change, next);
        updated.pods.update(&change.pods);
        updated
    }
}

/// Where ACL tables themselves say what a row decides, they have to follow when it changes under its id.
impl Classifier {
    /// Lays out anew the tables that use rows whose form was another in `before`. Looks at all tables if there is such a row.
    fn update_inlined_rows(&mut self, before: &RowStore, change: &TablesDiff, next: &RuleTables) {
        let rows = change.rows.iter().filter(|(_, row)| row.is_some()).map(|(&id, _)| id);
        let others: BTreeSet<RowId> =
            rows.filter(|&id| before.is_set(id) && before.form(id) != self.rows.form(id)).collect();
        if others.is_empty() {
            return;
        }
        for (&id, acl) in next.acls.iter().filter(|(id, _)| !change.acls.contains_key(id)) {
            if others.contains(&acl.default) || acl.rows.values().any(|row| others.contains(row)) {
                self.acls.set(id, Some(acl), &self.rows);
            }
        }
    }
}

fn compile_classes(tables: &RuleTables) -> PrefixTable {
    let prefixes = tables.prefixes.iter().map(|(&prefix, class)| (prefix, class.0));
    PrefixTable::build_with_default(prefixes, ClassId::WORLD.0)
}

/// One at a time.
impl Classifier {
    /// The class of `address`.
    #[inline]
    pub fn class(&self, address: IpAddr) -> ClassId {
        self.classes.lookup(address).map_or(ClassId::WORLD, ClassId)
    }

    /// [`Classifier::class`] of an IPv4 address in host byte order.
    #[inline]
    pub fn class_v4(&self, address: u32) -> ClassId {
        self.classes.lookup_v4(address).map_or(ClassId::WORLD, ClassId)
    }

    /// [`Classifier::class`] of an IPv6 address in host byte order.
    #[inline]
    pub fn class_v6(&self, address: u128) -> ClassId {
        self.classes.lookup_v6(address).map_or(ClassId::WORLD, ClassId)
    }

    /// The class of those addresses of `prefix` that no longer prefix covers.
    pub(super) fn class_covering(&self, prefix: IpNet) -> ClassId {
        self.classes.covering(prefix).map_or(ClassId::WORLD, ClassId)
    }

    /// What table `acl` decides on a flow whose other end has `class`.
    #[inline]
    pub fn decide(&self, acl: AclId, class: ClassId, protocol: Protocol, dst_port: u16) -> Decision {
        let service = Service::new(protocol, dst_port);
        self.rows.decide(self.acls.slot(acl, class, service), service)
    }

    /// The tables of `pod`, if it is known.
    pub fn pod(&self, pod: &PodName) -> Option<PodAcls> {
        self.pods.acls(pod)
    }

    /// The first pod by name that claims `address`.
    pub fn pod_at(&self, address: IpAddr) -> Option<&PodName> {
        self.pods.at(address).next()
    }

    /// The pods that claim `address`, by name.
    pub fn pods_at(&self, address: IpAddr) -> impl Iterator<Item = &PodName> {
        self.pods.at(address)
    }

    /// Judges a flow by both its ends. A pod reaches itself whatever its tables say: neither side is pending. Where several
    /// pods claim an end's address all of them are pending: the first that denies has decided.
    pub fn decide_flow(&self, flow: &FlowKey) -> FlowDecision {
        if self.is_to_itself(flow) {
            return FlowDecision { egress: None, ingress: None };
        }
        let decide = |acl, peer| self.decide(acl, self.class(peer), flow.protocol, flow.dst_port);
        let acls = |address| self.pods_at(address).filter_map(|pod| self.pod(pod));
        FlowDecision {
            egress: strictest(acls(flow.src).map(|acls| decide(acls.egress, flow.dst))),
            ingress: strictest(acls(flow.dst).map(|acls| decide(acls.ingress, flow.src))),
        }
    }

    /// Whether both ends are one pod for certain: an address to itself, or addresses that only that pod claims.
    fn is_to_itself(&self, flow: &FlowKey) -> bool {
        if flow.src == flow.dst {
            return self.pod_at(flow.src).is_some();
        }
        let only = |address| {
            let mut pods = self.pods_at(address);
            pods.next().filter(|_| pods.next().is_none())
        };
        only(flow.src).is_some_and(|pod| only(flow.dst) == Some(pod))
    }
}

/// The first decision that denies, else the first.
fn strictest(mut decisions: impl Iterator<Item = Decision>) -> Option<Decision> {
    let first = decisions.next()?;
    let denies = |decision: &Decision| !decision.is_allow();
    Some(std::iter::once(first).chain(decisions).find(denies).unwrap_or(first))
}

/// A batch at a time.
impl Classifier {
    /// The class of each IPv4 address (host byte order).
    #[inline]
    pub fn classes_v4(&self, addresses: &[u32], classes: &mut [u32]) {
        self.classes.lookup_batch_v4(addresses, classes);
    }

    /// The class of each IPv6 address (host byte order).
    #[inline]
    pub fn classes_v6(&self, addresses: &[u128], classes: &mut [u32]) {
        self.classes.lookup_batch_v6(addresses, classes);
    }

    /// Answers queries, each of which has the same place in every slice: what a table decides on a flow of a service whose
    /// other end has a class.
    pub fn decide_batch(
        &self,
        acls: &[AclId],
        classes: &[u32],
        services: &[Service],
        decisions: &mut [Decision],
    ) {
        let lens = [acls.len(), classes.len(), services.len()];
        assert_eq!(lens, [decisions.len(); 3], "one of each for a query");
        let mut acls = acls.chunks(BATCH_FRAMES_MAX);
        let mut classes = classes.chunks(BATCH_FRAMES_MAX);
        let mut services = services.chunks(BATCH_FRAMES_MAX);
        for decisions in decisions.chunks_mut(BATCH_FRAMES_MAX) {
            if let (Some(acls), Some(classes), Some(services)) =
                (acls.next(), classes.next(), services.next())
            {
                self.decide_chunk(acls, classes, services, decisions);
            }
        }
    }

    fn decide_chunk(
        &self,
        acls: &[AclId],
        classes: &[u32],
        services: &[Service],
        decisions: &mut [Decision],
    ) {
        let (acl_runs, acls_left) = acls.as_chunks::<RUN>();
        let (class_runs, classes_left) = classes.as_chunks::<RUN>();
        let (service_runs, services_left) = services.as_chunks::<RUN>();
        let (decision_runs, decisions_left) = decisions.as_chunks_mut::<RUN>();
        let (mut cells, mut undecided) = ([Cell::NONE; RUN], PendingQueries::default());
        let runs = acl_runs.iter().zip(class_runs).zip(service_runs).zip(decision_runs);
        for (n, (((acls, classes), services), decisions)) in runs.enumerate() {
            for i in 0..RUN {
                cells[i] = self.acls.cell(acls[i], ClassId(classes[i]));
                cells[i].prefetch();
            }
            for i in 0..RUN {
                let slot = self.acls.slot_at(cells[i], ClassId(classes[i]), services[i]);
                decisions[i] = Decision::from_bits(slot);
                undecided.add(n * RUN + i, row_store::is_block(slot));
            }
        }
        let left = acls_left.iter().zip(classes_left).zip(services_left).zip(decisions_left);
        for (i, (((&acl, &class), &service), decision)) in (acl_runs.len() * RUN..).zip(left) {
            let slot = self.acls.slot(acl, ClassId(class), service);
            *decision = Decision::from_bits(slot);
            undecided.add(i, row_store::is_block(slot));
        }
        let mut slots = 0;
        for &i in undecided.queries() {
            let slot = self.rows.slot_of_row(decisions[i as usize].to_bits(), services[i as usize]);
            decisions[i as usize] = Decision::from_bits(slot);
            slots |= slot;
        }
        if row_store::is_block(slots) {
            self.finish(undecided, services, decisions);
        }
    }

    /// Goes on with those of the queries whose rows led to further blocks.
    #[inline(never)]
    fn finish(&self, mut pending: PendingQueries, services: &[Service], decisions: &mut [Decision]) {
        while !pending.queries().is_empty() {
            let mut undecided = PendingQueries::default();
            for &i in pending.queries() {
                undecided.add(usize::from(i), row_store::is_block(decisions[i as usize].to_bits()));
            }
            for &i in undecided.queries() {
                let slot = self.rows.next_slot(decisions[i as usize].to_bits(), services[i as usize]);
                decisions[i as usize] = Decision::from_bits(slot);
            }
            pending = undecided;
        }
    }
}

/// Questions of a chunk that are not decided yet. They are kept apart without a branch: which they are nobody can foresee, and the
/// processor is to begin the next run before it knows.
struct PendingQueries {
    queries: [u8; BATCH_FRAMES_MAX],
    len: usize,
}

impl Default for PendingQueries {
    fn default() -> PendingQueries {
        PendingQueries { queries: [0; BATCH_FRAMES_MAX], len: 0 }
    }
}

impl PendingQueries {
    /// Adds query `i` if it is undecided.
    #[inline(always)]
    fn add(&mut self, i: usize, is_open: bool) {
        self.queries[self.len % BATCH_FRAMES_MAX] = i as u8;
        self.len += usize::from(is_open);
    }

    fn queries(&self) -> &[u8] {
        &self.queries[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::tables::Acl;
    use crate::tables::tests::arbitrary;

    /// The naive twin: the document, read entry by entry.
    fn naive_class(tables: &RuleTables, address: IpAddr) -> ClassId {
        let covering = tables.prefixes.iter().filter(|(prefix, _)| prefix.contains(&address));
        covering.max_by_key(|(prefix, _)| prefix.prefix_len()).map_or(ClassId::WORLD, |(_, &class)| class)
    }

    fn naive_decision(tables: &RuleTables, flow: &FlowKey) -> FlowDecision {
        let pods = |address| -> Vec<_> {
            tables.pods.iter().filter(|(_, pod)| pod.addresses.contains(&address)).collect()
        };
        let decide = |acl: AclId, peer| {
            let row = tables.acls[&acl].row(naive_class(tables, peer));
            tables.rows[&row].decide(flow.protocol, flow.dst_port)
        };
        let (sources, destinations) = (pods(flow.src), pods(flow.dst));
        let is_one = sources.len() == 1 && sources == destinations;
        if is_one || flow.src == flow.dst && !sources.is_empty() {
            return FlowDecision { egress: None, ingress: None };
        }
        let strictest = |decisions: Vec<Decision>| {
            let denying = decisions.iter().find(|decision| !decision.is_allow());
            denying.or(decisions.first()).copied()
        };
        FlowDecision {
            egress: strictest(sources.iter().map(|(_, pod)| decide(pod.egress, flow.dst)).collect()),
            ingress: strictest(destinations.iter().map(|(_, pod)| decide(pod.ingress, flow.src)).collect()),
        }
    }

    fn agree(classifier: &Classifier, tables: &RuleTables, flows: &[FlowKey]) {
        for flow in flows {
            assert_eq!(classifier.class(flow.src), naive_class(tables, flow.src), "{flow} in {tables:?}");
            assert_eq!(classifier.decide_flow(flow), naive_decision(tables, flow), "{flow} in {tables:?}");
        }
        let acls = (0..5).map(AclId);
        let queries: Vec<(AclId, &FlowKey)> =
            acls.flat_map(|acl| flows.iter().map(move |flow| (acl, flow))).collect();
        let pending: Vec<AclId> = queries.iter().map(|&(acl, _)| acl).collect();
        let classes: Vec<u32> = queries.iter().map(|(_, flow)| naive_class(tables, flow.dst).0).collect();
        let services: Vec<Service> =
            queries.iter().map(|(_, flow)| Service::new(flow.protocol, flow.dst_port)).collect();
        let mut decisions = vec![Decision::allow(crate::ids::RuleId(0)); queries.len()];
        classifier.decide_batch(&pending, &classes, &services, &mut decisions);
        for (((acl, flow), class), decision) in queries.into_iter().zip(classes).zip(decisions) {
            let (class, protocol, dst_port) = (ClassId(class), flow.protocol, flow.dst_port);
            assert_eq!(decision, classifier.decide(acl, class, protocol, dst_port));
            let row = tables.acls.get(&acl).map(|acl| &tables.rows[&acl.row(class)]);
            let closed = Decision::deny(crate::ids::RuleId(0));
            assert_eq!(decision, row.map_or(closed, |row| row.decide(protocol, dst_port)));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn decides_what_the_document_says(
            tables in arbitrary::rule_tables(),
            flows in vec(arbitrary::flow(), 80),
        ) {
            agree(&Classifier::new(&tables).unwrap(), &tables, &flows);
        }

        #[test]
        fn updates_make_what_a_compile_makes_and_leave_the_last_alone(
            history in vec(arbitrary::rule_tables(), 2..4),
            flows in vec(arbitrary::flow(), 30),
        ) {
            let mut classifier = Classifier::new(&history[0]).unwrap();
            for pair in history.windows(2) {
                let updated = classifier.update(&pair[0].difference(&pair[1]), &pair[1]);
                agree(&updated, &pair[1], &flows);
                agree(&classifier, &pair[0], &flows);
                classifier = updated;
            }
        }
    }

    /// The same with another id for a row.
    fn renamed(tables: &RuleTables, from: RowId, to: RowId) -> RuleTables {
        let name = |row: RowId| if row == from { to } else { row };
        let mut tables = tables.clone();
        tables.rows = tables.rows.iter().map(|(&id, row)| (name(id), row.clone())).collect();
        let acl = |acl: &Acl| Acl {
            rows: acl.rows.iter().map(|(&class, &row)| (class, name(row))).collect(),
            default: name(acl.default),
        };
        tables.acls = tables.acls.iter().map(|(&id, of)| (id, acl(of))).collect();
        tables
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn changed_rows_reach_tables_that_inline_them(
            tables in arbitrary::rule_tables(),
            rows in vec(arbitrary::row(12), 8),
            flows in vec(arbitrary::flow(), 20),
        ) {
            let mut others = tables.clone();
            others.rows = tables.rows.keys().copied().zip(rows).collect();
            // All rows change at once; one comes under an id that nothing is known of, and another one later under its first.
            let history = [others.clone(), renamed(&others, RowId(0), RowId(1000)), others, tables.clone()];
            let (mut before, mut classifier) = (tables.clone(), Classifier::new(&tables).unwrap());
            for next in history {
                classifier = classifier.update(&before.difference(&next), &next);
                agree(&classifier, &next, &flows);
                before = next;
            }
        }
    }

    #[test]
    fn a_pod_reaches_itself_whatever_its_tables_say() {
        let tables: RuleTables = serde_json::from_value(serde_json::json!({
            "format": 1,
            "rules": {"0": {"why": "not-isolated", "direction": "ingress"}},
            "prefixes": {},
            "rows": {"0": {"other": {"verdict": "deny", "rule": 0}}},
            "acls": {"0": {"default": 0}},
            "pods": {"default/a": {"addresses": ["10.0.0.1", "10.0.0.2"], "ingress": 0, "egress": 0}},
        }))
        .unwrap();
        let classifier = Classifier::new(&tables).unwrap();
        let flow = |src: &str, dst: &str| FlowKey {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            protocol: Protocol::TCP,
            src_port: 1024,
            dst_port: 80,
        };
        let hairpin = classifier.decide_flow(&flow("10.0.0.1", "10.0.0.2"));
        assert_eq!(hairpin, FlowDecision { egress: None, ingress: None });
        assert!(hairpin.is_allow());
        assert!(!classifier.decide_flow(&flow("10.0.0.1", "192.0.2.1")).is_allow());
        assert!(!classifier.decide_flow(&flow("192.0.2.1", "10.0.0.1")).is_allow());
        assert!(
            classifier.decide_flow(&flow("192.0.2.1", "192.0.2.2")).is_allow(),
            "no pod of the tables is at an end"
        );
    }
}
