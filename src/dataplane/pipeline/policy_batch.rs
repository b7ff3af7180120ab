//! The policy questions of a batch.

use super::batch::Batch;
use crate::dataplane::DropReason;
use crate::dataplane::conntrack::{LookupBatch, PacketFlow};
use crate::dataplane::fib::effective_acls::{EffectiveAcls, Flow};
use crate::dataplane::fib::port::PortView;
use crate::dataplane::fib::rules::Rules;
use crate::dataplane::fib::snapshot::Snapshot;
use crate::dataplane::packet::Packet;
use crate::ids::{AclId, ClassId, PortId, RuleId};
use crate::limits::BATCH_FRAMES_MAX;
use crate::net::address::{self, Address};
use crate::tables::{Classifier, Decision, Service};

/// Packets of a batch that open flows, and what is queried about them: memory that every batch uses again.
pub(crate) struct PolicyBatch {
    /// Their places in the batch.
    pub(super) packets: Vec<u16>,
    /// What they open, and what is queried about it.
    pub(super) inits: Box<[(FlowInit, FlowQueries); BATCH_FRAMES_MAX]>,
    queries: Box<Queries>,
    pub(super) inserted: Inserted,
    /// Whether most of the last flows that were queried about were dropped.
    pub(super) denial_heavy: bool,
}

/// What the tables are queried: one question for each side that has a table.
struct Queries {
    len: usize,
    acls: [AclId; QUERIES_MAX],
    /// Of the address at the other end.
    classes: [u32; QUERIES_MAX],
    services: [Service; QUERIES_MAX],
    /// The answers.
    decisions: [Decision; QUERIES_MAX],
    peers_v4: Peers<u32>,
    peers_v6: Peers<u128>,
}

/// Addresses whose classes are queried for, because no pod of this node has them first, and the queries that they belong to.
struct Peers<A> {
    addresses: Vec<A>,
    queries: Vec<u16>,
    classes: Vec<u32>,
}

/// What was queried about a flow: no question, one, or that of its source's side and after it that of its destination's.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlowQueries {
    /// The number of the first question.
    first: u16,
    egress: bool,
    ingress: bool,
    /// Why it is dropped whatever the answers.
    closed: Option<DropReason>,
}

/// Each packet asks two sides at most.
const QUERIES_MAX: usize = 2 * BATCH_FRAMES_MAX;

impl<A: Copy> Peers<A> {
    fn new() -> Peers<A> {
        Peers {
            addresses: Vec::with_capacity(QUERIES_MAX),
            queries: Vec::with_capacity(QUERIES_MAX),
            classes: Vec::with_capacity(QUERIES_MAX),
        }
    }

    fn clear(&mut self) {
        self.addresses.clear();
        self.queries.clear();
    }

    #[inline]
    fn add(&mut self, address: A, question: usize) {
        self.addresses.push(address);
        self.queries.push(question as u16);
    }

    /// Lets `look_up` write the class of every address, and puts each into its question.
    fn classify(&mut self, classes: &mut [u32], look_up: impl Fn(&[A], &mut [u32])) {
        if self.addresses.is_empty() {
            return;
        }
        self.classes.resize(self.addresses.len(), 0);
        look_up(&self.addresses, &mut self.classes);
        for (&question, &class) in self.queries.iter().zip(&self.classes) {
            classes[usize::from(question)] = class;
        }
    }
}

impl Queries {
    fn clear(&mut self) {
        self.len = 0;
        self.peers_v4.clear();
        self.peers_v6.clear();
    }

    fn evaluate(&mut self, classifier: &Classifier) {
        let Queries { len, acls, classes, services, decisions, peers_v4, peers_v6 } = self;
        peers_v4.classify(classes, |addresses, found| classifier.classes_v4(addresses, found));
        peers_v6.classify(classes, |addresses, found| classifier.classes_v6(addresses, found));
        let all = ..*len;
        classifier.decide_batch(&acls[all], &classes[all], &services[all], &mut decisions[all]);
    }

    /// Asks about a flow between two ports.
    #[inline(always)]
    fn query_flow(&mut self, packet: &Packet, from: &PortView, to: &PortView) -> FlowQueries {
        let Packet { src, dst, protocol, dst_port, .. } = *packet;
        let flow = Flow { src, dst, protocol, dst_port };
        let acls = EffectiveAcls::between(&flow, from, to);
        let first = self.len;
        let service = Service::new(flow.protocol, flow.dst_port);
        // Each side is queried about the other end.
        if let Some(acl) = acls.egress {
            self.add(acl, service, flow.dst, to, packet.is_v4);
        }
        if let Some(acl) = acls.ingress {
            self.add(acl, service, flow.src, from, packet.is_v4);
        }
        let (egress, ingress) = (acls.egress.is_some(), acls.ingress.is_some());
        FlowQueries { first: first as u16, egress, ingress, closed: acls.closed }
    }

    #[inline(always)]
    fn add(&mut self, acl: AclId, service: Service, peer: Address, behind: &PortView, is_v4: bool) {
        let number = self.len % QUERIES_MAX;
        self.len = number + 1;
        let class = behind.class_of_pod(peer, is_v4).unwrap_or_else(|| {
            self.query_class(peer, number);
            ClassId::WORLD
        });
        self.acls[number] = acl;
        self.classes[number] = class.0;
        self.services[number] = service;
    }

    #[inline(never)]
    fn query_class(&mut self, peer: Address, question: usize) {
        if address::is_v4(peer) {
            self.peers_v4.add(peer as u32, question);
        } else {
            self.peers_v6.add(peer, question);
        }
    }
}

/// Flows that this batch has entered, by bits of their hashes: whether an earlier packet of the batch may have opened the flow
/// of a later one. Only then it is looked up again.
pub(super) struct Inserted([u64; Inserted::BITS / 64]);

impl Inserted {
    /// Sixteen for each packet of a batch.
    const BITS: usize = 16 * BATCH_FRAMES_MAX;

    pub(super) fn add(&mut self, hash: u64) {
        self.0[hash as usize % Inserted::BITS / 64] |= 1 << (hash % 64);
    }

    #[inline]
    pub(super) fn may_hold(&self, hash: u64) -> bool {
        self.0[hash as usize % Inserted::BITS / 64] >> (hash % 64) & 1 != 0
    }
}

impl PolicyBatch {
    pub(crate) fn new() -> PolicyBatch {
        let queries = Queries {
            len: 0,
            acls: [AclId(0); QUERIES_MAX],
            classes: [ClassId::WORLD.0; QUERIES_MAX],
            services: [Service::OTHER; QUERIES_MAX],
            decisions: [Decision::deny(RuleId(0)); QUERIES_MAX],
            peers_v4: Peers::new(),
            peers_v6: Peers::new(),
        };
        PolicyBatch {
            packets: Vec::with_capacity(BATCH_FRAMES_MAX),
            inits: Box::new([(FlowInit::NONE, FlowQueries::NOTHING); BATCH_FRAMES_MAX]),
            queries: Box::new(queries),
            inserted: Inserted([0; Inserted::BITS / 64]),
            denial_heavy: false,
        }
    }

    /// Whether most of the last flows that were queried about were dropped: then there is no use in preparing places for the next.
    pub(in crate::dataplane) fn denial_heavy(&self) -> bool {
        self.denial_heavy
    }

    /// Forgets the last batch.
    pub(in crate::dataplane) fn clear(&mut self) {
        self.packets.clear();
    }

    /// Whether no packet opens a flow.
    pub(in crate::dataplane) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Adds packet `i` of the batch.
    pub(in crate::dataplane) fn add(&mut self, i: usize) {
        self.packets.push(i as u16);
    }

    /// Asks what the tables say of every packet.
    pub(super) fn evaluate(&mut self, batch: &Batch, lookups: &LookupBatch, snapshot: &Snapshot) {
        self.inserted.0.fill(0);
        let queries = &mut *self.queries;
        queries.clear();
        for n in 0..self.packets.len().min(BATCH_FRAMES_MAX) {
            let i = usize::from(self.packets[n]);
            let init = FlowInit::of(batch, i, lookups.flow(i));
            let queried = match (snapshot.port(init.from), snapshot.port(init.to)) {
                (Some(from), Some(to)) => queries.query_flow(&batch.packets[i], from, to),
                _ => FlowQueries { closed: Some(DropReason::NoRoute), ..FlowQueries::NOTHING },
            };
            self.inits[n] = (init, queried);
        }
        if let Some(rules) = snapshot.rules() {
            queries.evaluate(rules.classifier());
        }
    }

    /// Why the tables drop packet number `n` of the inquiry, if they do. Counts what decides.
    #[inline(always)]
    pub(super) fn denial(&self, n: usize, rules: Option<&Rules>, worker: usize) -> Option<DropReason> {
        let queried = self.inits[n].1;
        let passes = |number: usize| {
            let decision = self.queries.decisions[number % QUERIES_MAX];
            rules.is_some_and(|rules| {
                rules.count(worker, decision);
                decision.is_allow()
            })
        };
        let first = usize::from(queried.first);
        if queried.egress && !passes(first) {
            Some(DropReason::PolicyEgress)
        } else if queried.ingress && !passes(first + usize::from(queried.egress)) {
            Some(DropReason::PolicyIngress)
        } else {
            queried.closed
        }
    }
}

impl FlowQueries {
    const NOTHING: FlowQueries = FlowQueries { first: 0, egress: false, ingress: false, closed: None };
}

/// Facts of a flow from the packet that opens it. Its sender is the initiator, always: nothing else in a packet says who opened a
/// connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlowInit {
    pub(super) opened_by_low: bool,
    /// The port that the initiator lies behind.
    pub(super) from: PortId,
    /// The port that the responder lies behind.
    pub(super) to: PortId,
}

impl FlowInit {
    const NONE: FlowInit = FlowInit { opened_by_low: false, from: PortId(0), to: PortId(0) };

    #[inline(always)]
    pub(super) fn of(batch: &Batch, i: usize, flow: &PacketFlow) -> FlowInit {
        FlowInit { opened_by_low: flow.from_low, from: batch.in_ports[i], to: batch.adjacencies[i].out }
    }
}
