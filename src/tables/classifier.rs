//! Rule tables laid out for look-up: what the workers ask.

use std::net::IpAddr;
use std::sync::Arc;

use super::acl_matrix::AclMatrix;
use super::pod_index::PodIndex;
use super::row_store::{self, RowStore};
use super::{Decision, PodName, PrefixTable, RuleTables, TablesDiff, TablesError};
use crate::ids::{AclId, ClassId};
use crate::limits::BATCH_FRAMES_MAX;
use crate::net::flow::{FlowKey, Protocol};

/// The same content as [`RuleTables`], compiled. Clones and updates share all memory that does not change.
///
/// Ids of one classifier mean nothing to another. What is asked of an ACL table that is not there is denied.
#[derive(Clone)]
pub struct Classifier {
    classes: PrefixTable,
    acls: AclMatrix,
    rows: RowStore,
    pods: Arc<PodIndex>,
}

/// The tables that judge flows of one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodAcls {
    /// Judges flows to the pod, by the class of the source.
    pub ingress: AclId,
    /// Judges flows from the pod, by the class of the destination.
    pub egress: AclId,
}

/// One side of a flow, to be decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// The pod's table for the direction.
    pub acl: AclId,
    /// The class of the address at the other end.
    pub class: ClassId,
    /// Destination port of the flow, zero if there are none.
    pub dst_port: u16,
    /// Protocol of the flow.
    pub protocol: Protocol,
}

/// What the tables say of a whole flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judgement {
    /// By the egress table of the source, if that is a pod of the tables.
    pub egress: Option<Decision>,
    /// By the ingress table of the destination, if that is a pod of the tables.
    pub ingress: Option<Decision>,
}

impl Judgement {
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
        let mut acls = AclMatrix::default();
        tables.acls.iter().for_each(|(&id, acl)| acls.set(id, Some(acl)));
        Ok(Classifier { classes: compile_classes(tables), acls, rows, pods: Arc::new(PodIndex::new(tables)) })
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
        change.acls.iter().for_each(|(&id, acl)| updated.acls.set(id, acl.as_ref()));
        if !change.pods.is_empty() {
            Arc::make_mut(&mut updated.pods).update(&change.pods);
        }
        updated
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

    /// What table `acl` decides on a flow whose other end has `class`.
    #[inline]
    pub fn decide(&self, acl: AclId, class: ClassId, protocol: Protocol, dst_port: u16) -> Decision {
        self.rows.decide(self.acls.row(acl, class), protocol, dst_port)
    }

    /// The tables of `pod`, if it is known.
    pub fn pod(&self, pod: &PodName) -> Option<PodAcls> {
        self.pods.acls(pod)
    }

    /// The pod that has `address`.
    pub fn pod_at(&self, address: IpAddr) -> Option<&PodName> {
        self.pods.at(address)
    }

    /// Judges a flow by both its ends. A pod reaches itself whatever its tables say: neither side is asked.
    pub fn judge(&self, flow: &FlowKey) -> Judgement {
        let (source, destination) = (self.pod_at(flow.src), self.pod_at(flow.dst));
        if source.is_some() && source == destination {
            return Judgement { egress: None, ingress: None };
        }
        let decide = |acl, peer| self.decide(acl, self.class(peer), flow.protocol, flow.dst_port);
        Judgement {
            egress: source.and_then(|pod| self.pod(pod)).map(|acls| decide(acls.egress, flow.dst)),
            ingress: destination.and_then(|pod| self.pod(pod)).map(|acls| decide(acls.ingress, flow.src)),
        }
    }
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

    /// Answers every question: all take one step before any takes the next, so that loads overlap.
    pub fn decide_batch(&self, questions: &[Question], decisions: &mut [Decision]) {
        assert_eq!(questions.len(), decisions.len(), "one decision for each question");
        let chunks = questions.chunks(BATCH_FRAMES_MAX).zip(decisions.chunks_mut(BATCH_FRAMES_MAX));
        chunks.for_each(|(questions, decisions)| self.decide_chunk(questions, decisions));
    }

    fn decide_chunk(&self, questions: &[Question], decisions: &mut [Decision]) {
        let mut waiting = [0_u16; BATCH_FRAMES_MAX];
        let mut count = 0;
        for (i, (question, decision)) in questions.iter().zip(&mut *decisions).enumerate() {
            let row = self.acls.row(question.acl, question.class);
            let slot = self.rows.head(row_store::head_word(row, question.protocol));
            *decision = Decision::from_bits(slot);
            waiting[count % BATCH_FRAMES_MAX] = i as u16;
            count += usize::from(row_store::height(slot) > 0);
        }
        while count > 0 {
            let now = std::mem::take(&mut count);
            for at in 0..now {
                let i = waiting[at] as usize;
                let slot = self.rows.step(decisions[i].to_bits(), questions[i].dst_port);
                decisions[i] = Decision::from_bits(slot);
                waiting[count] = i as u16;
                count += usize::from(row_store::height(slot) > 0);
            }
        }
    }
}
