//! Classifier: rule tables compiled for lookup by the workers.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::acl_store::{AclStore, Cell};
use super::document::{Decision, PodName, RuleTables, TablesDiff, TablesError};
use super::pod_index::{PodAcls, PodIndex};
use super::prefix_table::PrefixTable;
use super::row_store::{self, RowStore, Service};
use crate::ids::{AclId, ClassId, RowId};
use crate::limits::BATCH_FRAMES_MAX;
use crate::net::flow::{FlowKey, Protocol};

/// Compiled form of [`RuleTables`]. Clones and updates share unchanged memory.
///
/// Ids belong to one classifier. An absent ACL table denies.
#[derive(Clone)]
pub struct Classifier {
    classes: PrefixTable,
    acls: AclStore,
    rows: RowStore,
    pods: PodIndex,
}

/// Number of queries processed together: enough for their loads to overlap, and few enough for their cache
/// lines and TLB entries to stay cached until use.
const RUN: usize = 16;

/// Decisions of both sides of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowDecision {
    /// Decision of the egress table of the source, if that is a pod of the tables.
    pub egress: Option<Decision>,
    /// Decision of the ingress table of the destination, if that is a pod of the tables.
    pub ingress: Option<Decision>,
}

impl FlowDecision {
    /// Tests whether the flow passes: no side denies it.
    pub fn is_allow(self) -> bool {
        self.egress.into_iter().chain(self.ingress).all(Decision::is_allow)
    }
}

/// Compilation and updates.
impl Classifier {
    /// Compiles `tables`. Returns an error if they fail their check.
    pub fn new(tables: &RuleTables) -> Result<Classifier, TablesError> {
        tables.check()?;
        let mut rows = RowStore::default();
        tables.rows.iter().for_each(|(&id, row)| rows.set(id, Some(row)));
        let mut acls = AclStore::default();
        tables.acls.iter().for_each(|(&id, acl)| acls.set(id, Some(acl), &rows));
        Ok(Classifier { classes: compile_classes(tables), acls, rows, pods: PodIndex::new(tables) })
    }

    /// Classifier of `next`, to which `change` leads from the tables of `self`. The caller has checked
    /// `next`.
    ///
    /// The cost is that of the difference. `self` stays valid for its readers.
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

/// Updates of ACL tables that contain the decisions of changed rows.
impl Classifier {
    /// Rebuilds tables whose rows have another form than in `before`. Inspects all tables if there is such a
    /// row.
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

/// Single lookups.
impl Classifier {
    /// Class of `address`.
    #[inline]
    pub fn class(&self, address: IpAddr) -> ClassId {
        self.classes.lookup(address).map_or(ClassId::WORLD, ClassId)
    }

    /// Class of an IPv4 address in host byte order.
    #[inline]
    pub fn class_v4(&self, address: u32) -> ClassId {
        self.classes.lookup_v4(address).map_or(ClassId::WORLD, ClassId)
    }

    /// Class of an IPv6 address in host byte order.
    #[inline]
    pub fn class_v6(&self, address: u128) -> ClassId {
        self.classes.lookup_v6(address).map_or(ClassId::WORLD, ClassId)
    }

    /// Class of the addresses of `prefix` that no longer prefix covers.
    pub(super) fn class_covering(&self, prefix: IpNet) -> ClassId {
        self.classes.covering(prefix).map_or(ClassId::WORLD, ClassId)
    }

    /// Decision of table `acl` on a flow whose peer has `class`.
    #[inline]
    pub fn decide(&self, acl: AclId, class: ClassId, protocol: Protocol, dst_port: u16) -> Decision {
        let service = Service::new(protocol, dst_port);
        self.rows.decide(self.acls.slot(acl, class, service), service)
    }

    /// ACL tables of `pod`, if known.
    pub fn pod(&self, pod: &PodName) -> Option<PodAcls> {
        self.pods.acls(pod)
    }

    /// First pod by name that claims `address`.
    pub fn pod_at(&self, address: IpAddr) -> Option<&PodName> {
        self.pods.at(address).next()
    }

    /// Pods that claim `address`, by name.
    pub fn pods_at(&self, address: IpAddr) -> impl Iterator<Item = &PodName> {
        self.pods.at(address)
    }

    /// Decides a flow on both sides. A pod reaches itself regardless of its tables. If several pods claim an
    /// address, the first that denies decides.
    pub fn decide_flow(&self, flow: &FlowKey) -> FlowDecision {
        if self.is_to_itself(flow) {
            return FlowDecision { egress: None, ingress: None };
        }
        self.decide_sides(flow)
    }

    /// Decides a flow on both sides, also one of a pod to itself.
    pub(crate) fn decide_sides(&self, flow: &FlowKey) -> FlowDecision {
        let decide = |acl, peer| self.decide(acl, self.class(peer), flow.protocol, flow.dst_port);
        let acls = |address| self.pods_at(address).filter_map(|pod| self.pod(pod));
        FlowDecision {
            egress: strictest(acls(flow.src).map(|acls| decide(acls.egress, flow.dst))),
            ingress: strictest(acls(flow.dst).map(|acls| decide(acls.ingress, flow.src))),
        }
    }

    /// Tests whether source and destination are certainly one pod: equal addresses, or addresses that only
    /// that pod claims.
    pub(crate) fn is_to_itself(&self, flow: &FlowKey) -> bool {
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

/// First decision that denies, else the first.
fn strictest(mut decisions: impl Iterator<Item = Decision>) -> Option<Decision> {
    let first = decisions.next()?;
    let denies = |decision: &Decision| !decision.is_allow();
    Some(std::iter::once(first).chain(decisions).find(denies).unwrap_or(first))
}

/// Batched lookups.
impl Classifier {
    /// Classes of IPv4 addresses (host byte order).
    #[inline]
    pub fn classes_v4(&self, addresses: &[u32], classes: &mut [u32]) {
        self.classes.lookup_batch_v4(addresses, classes);
    }

    /// Classes of IPv6 addresses (host byte order).
    #[inline]
    pub fn classes_v6(&self, addresses: &[u128], classes: &mut [u32]) {
        self.classes.lookup_batch_v6(addresses, classes);
    }

    /// Decides a batch of queries: the decision of table `acls[i]` on service `services[i]` with peer class
    /// `classes[i]`.
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

    /// Continues the queries whose rows have inner blocks.
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

/// Undecided queries of a chunk. They are collected without a branch: the branch would be unpredictable, and
/// the processor can start the next run early.
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
mod tests;
