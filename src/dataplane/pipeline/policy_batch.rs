//! New flows of a batch, and the queries about them to the ACL tables of both ends.
//!
//! The queries of a batch stand in columns, and the classifier answers them column by column, so that the cache misses of many
//! queries overlap.

use super::batch::Batch;
use super::flow::init::FlowInit;
use crate::dataplane::DropReason;
use crate::dataplane::conntrack::LookupBatch;
use crate::dataplane::fib::effective_acls::{EffectiveAcls, Flow};
use crate::dataplane::fib::port::PortView;
use crate::dataplane::fib::rules::Rules;
use crate::dataplane::fib::snapshot::Snapshot;
use crate::dataplane::packet::Packet;
use crate::ids::{AclId, ClassId, RuleId};
use crate::limits::BATCH_FRAMES_MAX;
use crate::net::address::{self, Address};
use crate::tables::{Classifier, Decision, Service};

/// Packets of a batch that open flows, and the queries about them. Every batch uses the same memory.
pub(crate) struct PolicyBatch {
    /// Place of each packet in the batch, and its hop.
    packets: Vec<(u16, Option<u16>)>,
    /// Flow of each packet, and the queries about it.
    flows: Box<[(FlowInit, FlowQueries); BATCH_FRAMES_MAX]>,
    queries: Box<Queries>,
    inserted: InsertedHashes,
    denial_heavy: bool,
}

/// A packet of no known flow.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewPacket {
    /// Place in the batch.
    pub(super) index: usize,
    /// Number of the hop, where the flow can remember it.
    pub(super) hop: Option<u16>,
    /// Direction and ports of the flow that the packet opens.
    pub(super) init: FlowInit,
}

/// Queries to ACL tables, one for each end of a flow that has a table.
struct Queries {
    len: usize,
    acls: [AclId; QUERIES_MAX],
    /// Class of the address at the other end.
    classes: [u32; QUERIES_MAX],
    services: [Service; QUERIES_MAX],
    /// Results.
    decisions: [Decision; QUERIES_MAX],
    peers_v4: Peers<u32>,
    peers_v6: Peers<u128>,
}

/// Addresses whose class the prefix tables give, and the queries that they belong to. The class of a local pod's first address is known
/// beforehand.
struct Peers<A> {
    addresses: Vec<A>,
    queries: Vec<u16>,
    classes: Vec<u32>,
}

/// Queries about one flow: none, one, or that of its source and after it that of its destination.
#[derive(Debug, Clone, Copy)]
struct FlowQueries {
    /// Number of the first query.
    first: u16,
    egress: bool,
    ingress: bool,
    /// Reason to drop the packet if no table denies it.
    closed: Option<DropReason>,
}

/// Most queries of a batch: two a packet.
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
    fn add(&mut self, address: A, query: usize) {
        self.addresses.push(address);
        self.queries.push(query as u16);
    }

    /// Classifies all addresses by `look_up`, and writes each class into the query of its address.
    fn classify(&mut self, classes: &mut [u32], look_up: impl Fn(&[A], &mut [u32])) {
        if self.addresses.is_empty() {
            return;
        }
        self.classes.resize(self.addresses.len(), 0);
        look_up(&self.addresses, &mut self.classes);
        for (&query, &class) in self.queries.iter().zip(&self.classes) {
            classes[usize::from(query)] = class;
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

    /// Adds the queries about the flow that a packet opens between two ports.
    #[inline(always)]
    fn add_flow(
        &mut self,
        packet: &Packet,
        from: &PortView,
        to: &PortView,
        rules: Option<&Rules>,
    ) -> FlowQueries {
        let Packet { src, dst, protocol, dst_port, .. } = *packet;
        let by_node_socket = from.is_by_node_socket(packet);
        let flow = Flow { src, dst, protocol, dst_port, by_node_socket };
        let acls = EffectiveAcls::between(&flow, from, to);
        let first = self.len;
        let service = Service::new(flow.protocol, flow.dst_port);
        // The table of each end decides on the address of the other.
        if let Some(acl) = acls.egress {
            self.add(acl, service, flow.dst, to, packet.is_v4);
        }
        if let Some(acl) = acls.ingress {
            let peer = match rules {
                Some(rules) if acls.is_forwarded => rules.peer_of_forwarded(acl, &flow),
                _ => flow.src,
            };
            self.add(acl, service, peer, from, packet.is_v4);
        }
        let (egress, ingress) = (acls.egress.is_some(), acls.ingress.is_some());
        FlowQueries { first: first as u16, egress, ingress, closed: acls.closed }
    }

    #[inline(always)]
    fn add(&mut self, acl: AclId, service: Service, peer: Address, peer_port: &PortView, is_v4: bool) {
        let number = self.len % QUERIES_MAX;
        self.len = number + 1;
        let class = peer_port.class_of_pod(peer, is_v4).unwrap_or_else(|| {
            self.add_peer(peer, number);
            ClassId::WORLD
        });
        self.acls[number] = acl;
        self.classes[number] = class.0;
        self.services[number] = service;
    }

    #[inline(never)]
    fn add_peer(&mut self, peer: Address, query: usize) {
        if address::is_v4(peer) {
            self.peers_v4.add(peer as u32, query);
        } else {
            self.peers_v6.add(peer, query);
        }
    }
}

/// Filter over the hashes of flows that this batch has inserted: only a packet whose hash it may hold is looked up again.
struct InsertedHashes([u64; InsertedHashes::BITS / 64]);

impl InsertedHashes {
    /// Sixteen for each packet of a batch.
    const BITS: usize = 16 * BATCH_FRAMES_MAX;

    fn add(&mut self, hash: u64) {
        self.0[hash as usize % InsertedHashes::BITS / 64] |= 1 << (hash % 64);
    }

    #[inline]
    fn may_hold(&self, hash: u64) -> bool {
        self.0[hash as usize % InsertedHashes::BITS / 64] >> (hash % 64) & 1 != 0
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
            flows: Box::new([(FlowInit::NONE, FlowQueries::NONE); BATCH_FRAMES_MAX]),
            queries: Box::new(queries),
            inserted: InsertedHashes([0; InsertedHashes::BITS / 64]),
            denial_heavy: false,
        }
    }

    /// Whether most flows of the last batch with new flows were dropped. Then a lookup does not load the slots of new flows.
    pub(super) fn denial_heavy(&self) -> bool {
        self.denial_heavy
    }

    pub(super) fn set_denial_heavy(&mut self, denial_heavy: bool) {
        self.denial_heavy = denial_heavy;
    }

    /// Removes the packets of the last batch.
    pub(super) fn clear(&mut self) {
        self.packets.clear();
    }

    /// Number of packets.
    pub(super) fn len(&self) -> usize {
        self.packets.len().min(BATCH_FRAMES_MAX)
    }

    /// Whether no packet opens a flow.
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Adds packet `i` of the batch, which has been routed to this hop.
    pub(super) fn add(&mut self, i: usize, hop: Option<u16>) {
        self.packets.push((i as u16, hop));
    }

    /// Places of the packets in the batch.
    pub(super) fn places(&self) -> impl Iterator<Item = usize> {
        self.packets.iter().map(|(i, _)| usize::from(*i))
    }

    /// The packet with this number, after [`PolicyBatch::evaluate`].
    pub(super) fn packet(&self, n: usize) -> NewPacket {
        let (i, hop) = self.packets[n];
        NewPacket { index: i.into(), hop, init: self.flows[n].0 }
    }

    /// Makes the queries about all packets, and evaluates them.
    pub(super) fn evaluate(&mut self, batch: &Batch, lookups: &LookupBatch, snapshot: &Snapshot) {
        self.inserted.0.fill(0);
        let queries = &mut *self.queries;
        let rules = snapshot.rules().map(|rules| &**rules);
        queries.clear();
        for n in 0..self.packets.len().min(BATCH_FRAMES_MAX) {
            let i = usize::from(self.packets[n].0);
            let init = FlowInit::of(batch, i, lookups.flow(i));
            let flow_queries = match (snapshot.port(init.from), snapshot.port(init.to)) {
                (Some(from), Some(to)) => queries.add_flow(&batch.packets[i], from, to, rules),
                _ => FlowQueries { closed: Some(DropReason::NoRoute), ..FlowQueries::NONE },
            };
            self.flows[n] = (init, flow_queries);
        }
        if let Some(rules) = rules {
            queries.evaluate(rules.classifier());
        }
    }

    /// The reason to drop packet number `n`, if policy denies it. Counts the decisive rules.
    #[inline(always)]
    pub(super) fn denial(
        &self,
        n: usize,
        rules: Option<&Rules>,
        counted_by: Option<usize>,
    ) -> Option<DropReason> {
        let queries = self.flows[n].1;
        let passes = |number: usize| {
            let decision = self.queries.decisions[number % QUERIES_MAX];
            rules.is_some_and(|rules| {
                if let Some(worker) = counted_by {
                    rules.count(worker, decision);
                }
                decision.is_allow()
            })
        };
        let first = usize::from(queries.first);
        if queries.egress && !passes(first) {
            Some(DropReason::PolicyEgress)
        } else if queries.ingress && !passes(first + usize::from(queries.egress)) {
            Some(DropReason::PolicyIngress)
        } else {
            queries.closed
        }
    }

    /// Notes that the batch has inserted a flow with this hash.
    pub(super) fn note_inserted(&mut self, hash: u64) {
        self.inserted.add(hash);
    }

    /// Whether the batch may have inserted a flow with this hash.
    #[inline]
    pub(super) fn may_have_inserted(&self, hash: u64) -> bool {
        self.inserted.may_hold(hash)
    }
}

impl FlowQueries {
    const NONE: FlowQueries = FlowQueries { first: 0, egress: false, ingress: false, closed: None };
}
