//! New flows: judged by the tables of both ends, all of a batch step by step so that no look-up waits alone for memory,
//! and entered into conntrack. And flows that an earlier generation has judged: judged again.

use super::Context;
use super::advance::{segment, update_state};
use super::batch::{Batch, FlowStatus};
use crate::dataplane::DropReason;
use crate::dataplane::conntrack::tcp::TcpFlow;
use crate::dataplane::conntrack::{Admission, FlowState, FlowWord, Key, NewFlow, Side, Slot};
use crate::dataplane::fib::rules::Rules;
use crate::dataplane::fib::snapshot::{EffectiveAcls, Flow, PortView, Snapshot};
use crate::dataplane::packet::checksum::{self, Checksum};
use crate::dataplane::packet::{self, Address, Kind, Packet};
use crate::ids::{AclId, ClassId, PortId, RuleId};
use crate::limits::BATCH_FRAMES_MAX;
use crate::net::flow::Protocol;
use crate::tables::{Classifier, Decision, Service};

/// Packets of a batch that open flows, and what is queried about them: memory that every batch uses again.
pub(crate) struct PolicyBatch {
    /// Their places in the batch.
    packets: Vec<u16>,
    /// What they open, and what is queried about it.
    inits: Box<[(FlowInit, FlowQueries); BATCH_FRAMES_MAX]>,
    queries: Box<Queries>,
    inserted: Inserted,
    /// Whether most of the last flows that were queried about were dropped.
    denial_heavy: bool,
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
struct FlowQueries {
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
        if packet::is_v4(peer) {
            self.peers_v4.add(peer as u32, question);
        } else {
            self.peers_v6.add(peer, question);
        }
    }
}

/// Flows that this batch has entered, by bits of their hashes: whether an earlier packet of the batch may have opened the flow
/// of a later one. Only then it is looked up again.
struct Inserted([u64; Inserted::BITS / 64]);

impl Inserted {
    /// Sixteen for each packet of a batch.
    const BITS: usize = 16 * BATCH_FRAMES_MAX;

    fn add(&mut self, hash: u64) {
        self.0[hash as usize % Inserted::BITS / 64] |= 1 << (hash % 64);
    }

    #[inline]
    fn may_hold(&self, hash: u64) -> bool {
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
    fn evaluate(&mut self, batch: &Batch, snapshot: &Snapshot) {
        self.inserted.0.fill(0);
        let queries = &mut *self.queries;
        queries.clear();
        for n in 0..self.packets.len().min(BATCH_FRAMES_MAX) {
            let i = usize::from(self.packets[n]);
            let init = FlowInit::of(batch, i);
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
    fn denial(&self, n: usize, rules: Option<&Rules>, worker: usize) -> Option<DropReason> {
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

/// Judges the first packets of new flows, and enters these.
pub(in crate::dataplane) fn classify_new_flows(batch: &mut Batch, context: &mut Context<'_>) {
    context.policy_batch.evaluate(batch, context.snapshot);
    let rules = context.snapshot.rules().map(|rules| &**rules);
    let (mut queried, entered) = (0, context.worker_state.entered);
    for n in 0..context.policy_batch.packets.len() {
        let i = usize::from(context.policy_batch.packets[n]);
        if let Some(slot) = inserted_earlier(batch, i, context) {
            batch.tracks[i].slot = slot;
            update_state(batch, i, context, context.conntrack.entry(slot));
        } else {
            queried += 1;
            let init = context.policy_batch.inits[n].0;
            open_flow(batch, i, context, init, |context| {
                context.policy_batch.denial(n, rules, context.worker)
            });
        }
    }
    let entered = context.worker_state.entered - entered;
    context.policy_batch.denial_heavy = 2 * entered < queried;
}

/// The slot of a packet's flow, if an earlier packet of this batch has opened it.
#[inline]
fn inserted_earlier(batch: &Batch, i: usize, context: &Context<'_>) -> Option<Slot> {
    let track = &batch.tracks[i];
    let may_be = context.policy_batch.inserted.may_hold(track.hash);
    if may_be { context.conntrack.look_up(&track.key, track.hash) } else { None }
}

/// Judges a flow that an earlier generation has judged, from its original direction, which is as the facts for its packet say.
#[inline(never)]
pub(in crate::dataplane) fn revalidate(
    batch: &mut Batch,
    i: usize,
    context: &mut Context<'_>,
    flow_word: FlowWord,
) {
    let track = &mut batch.tracks[i];
    let opened_by_low = (flow_word.side(track.from_low) == Side::Initiator) == track.from_low;
    let flow = flow_of(&track.key, opened_by_low);
    let snapshot = context.snapshot;
    let judged = flow_word.judged();
    let [low_was_pod, high_was_pod] = flow_word.pods();
    let ends = [(track.key.low(), low_was_pod), (track.key.high(), high_was_pod)];
    if ends.into_iter().any(|(end, was_pod)| !snapshot.is_same_endpoint(end, was_pod, judged)) {
        if snapshot.awaits_endpoints(ends, judged, context.now_ms) {
            return batch.drop(i, DropReason::UnknownPod);
        }
        // One of its ends is somebody else by now, who inherits nothing.
        context.conntrack.remove(track.slot, context.worker_state);
        track.status = FlowStatus::New;
        context.policy_batch.add(i);
        return;
    }
    // What stays allowed has been counted when it was entered.
    let origin = snapshot.port_of_address(flow.src);
    let judge = |counted_by| match (origin, snapshot.port_of_address(flow.dst)) {
        (Some((_, from)), Some((_, to))) => snapshot.evaluate(&flow, from, to, counted_by),
        _ => Some(DropReason::NoRoute),
    };
    let reason = judge(None).and_then(|_| judge(Some(context.worker)));
    if let Some(reason) = reason {
        // While no tables are loaded nothing passes, and nothing has been decided on either.
        if snapshot.rules().is_some() || reason != DropReason::UnknownPod {
            context.conntrack.remove(track.slot, context.worker_state);
        }
        batch.drop(i, reason);
    } else if let Some((port, _)) = origin {
        context.conntrack.charge_to(track.slot, port);
    }
}

/// Opens a connection anew that has ended, on the same ports.
#[inline(never)]
pub(in crate::dataplane) fn reopen_flow(batch: &mut Batch, i: usize, context: &mut Context<'_>) {
    batch.tracks[i].status = FlowStatus::Reopen;
    let init = FlowInit::of(batch, i);
    let flow = flow_of(&batch.tracks[i].key, init.opened_by_low);
    open_flow(batch, i, context, init, |context| {
        match (context.snapshot.port(init.from), context.snapshot.port(init.to)) {
            (Some(from), Some(to)) => context.snapshot.evaluate(&flow, from, to, Some(context.worker)),
            _ => Some(DropReason::NoRoute),
        }
    });
}

/// Enters the flow that a packet opens, if it is one that may, the tables say nothing against it, and its receiver will take it.
///
/// The first fragment of a datagram may open a flow though its checksum says nothing: what it opens is a flow that nobody has
/// answered, as any packet could open it that does not arrive.
#[inline(always)]
fn open_flow(
    batch: &mut Batch,
    i: usize,
    context: &mut Context<'_>,
    init: FlowInit,
    denial: impl FnOnce(&Context<'_>) -> Option<DropReason>,
) {
    let first = classify_opening(batch, i, context);
    if matches!(first, FirstPacket::Invalid) {
        return batch.drop(i, DropReason::InvalidState);
    }
    if let Some(reason) = denial(context) {
        return batch.drop(i, reason);
    }
    let FirstPacket::Opens(state, tcp) = first else {
        batch.tracks[i].status = FlowStatus::Untracked;
        return;
    };
    if checksum::verify(context.umem, &batch.frames[i], &batch.packets[i]) == Checksum::Wrong {
        return batch.drop(i, DropReason::BadChecksum);
    }
    insert_flow(batch, i, context, init, state, tcp);
}

/// Classes of packets of no known flow, before any table is queried.
#[derive(Debug, Clone, Copy)]
enum FirstPacket {
    /// It opens a flow, with this state.
    Opens(FlowState, Option<TcpFlow>),
    /// Nothing answers it: it is judged by itself, and enters no flow.
    Untracked,
    /// It is part of a flow that there is not: a reply to nothing, a segment outside any connection, an error about no flow.
    Invalid,
}

/// Facts of a flow from the packet that opens it. Its sender is the initiator, always: nothing else in a packet says who opened a
/// connection.
#[derive(Debug, Clone, Copy)]
struct FlowInit {
    opened_by_low: bool,
    /// The port that the initiator lies behind.
    from: PortId,
    /// The port that the responder lies behind.
    to: PortId,
}

impl FlowQueries {
    const NOTHING: FlowQueries = FlowQueries { first: 0, egress: false, ingress: false, closed: None };
}

impl FlowInit {
    const NONE: FlowInit = FlowInit { opened_by_low: false, from: PortId(0), to: PortId(0) };

    #[inline(always)]
    fn of(batch: &Batch, i: usize) -> FlowInit {
        let opened_by_low = batch.tracks[i].from_low;
        FlowInit { opened_by_low, from: batch.in_ports[i], to: batch.adjacencies[i].out }
    }
}

/// Enters a flow, or starts it anew.
fn insert_flow(
    batch: &mut Batch,
    i: usize,
    context: &mut Context<'_>,
    init: FlowInit,
    state: FlowState,
    tcp: Option<TcpFlow>,
) {
    let FlowInit { opened_by_low, from: from_id, to: to_id } = init;
    let (Some(from), Some(to)) = (context.snapshot.port(from_id), context.snapshot.port(to_id)) else {
        return batch.drop(i, DropReason::NoRoute);
    };
    let track = &mut batch.tracks[i];
    let flow = flow_of(&track.key, opened_by_low);
    let new = NewFlow {
        opened_by_low,
        pods: [from.has_pod_address(flow.src), to.has_pod_address(flow.dst)],
        charged: from_id,
        judged: context.snapshot.generation,
        state,
        tcp,
        hops: if track.from_low { [track.hop, None] } else { [None, track.hop] },
    };
    let (from_low, bytes) = (track.from_low, batch.packets[i].ip_bytes());
    if track.status == FlowStatus::Reopen {
        context.conntrack.restart(track.slot, &new, context.now_ms);
        return context.conntrack.entry(track.slot).count(from_low, bytes, context.now_ms);
    }
    match context.conntrack.enter(&track.key, track.hash, &new, context.now_ms, context.worker_state) {
        Admission::Entered(slot) => {
            track.slot = slot;
            context.policy_batch.inserted.add(track.hash);
            context.conntrack.entry(slot).count(from_low, bytes, context.now_ms);
        }
        Admission::Exists(slot) => {
            track.slot = slot;
            track.status = FlowStatus::Known;
            update_state(batch, i, context, context.conntrack.entry(slot));
        }
        Admission::Full => batch.drop(i, DropReason::TableFull),
    }
}

/// Class of a packet of no known flow.
#[inline(always)]
fn classify_opening(batch: &Batch, i: usize, context: &Context<'_>) -> FirstPacket {
    let packet = &batch.packets[i];
    if packet.kind == Kind::Flow && packet.protocol == Protocol::UDP {
        return FirstPacket::Opens(FlowState::UdpOneWay, None);
    }
    classify_opening_slow(batch, i, context)
}

#[inline(never)]
fn classify_opening_slow(batch: &Batch, i: usize, context: &Context<'_>) -> FirstPacket {
    let packet = &batch.packets[i];
    if packet.kind == Kind::IcmpError {
        return FirstPacket::Invalid;
    }
    match packet.protocol {
        Protocol::TCP => {
            let frame = context.umem.data(&batch.frames[i]);
            let flow = TcpFlow::open(&segment(packet, frame), context.conntrack.tcp_pickup());
            flow.map_or(FirstPacket::Invalid, |flow| FirstPacket::Opens(flow.state, Some(flow)))
        }
        protocol @ (Protocol::ICMP | Protocol::ICMPV6) => match packet::query(protocol, packet.flags) {
            Some(query) if query.is_reply => FirstPacket::Invalid,
            Some(_) => FirstPacket::Opens(FlowState::Echo, None),
            None => FirstPacket::Untracked,
        },
        protocol => FirstPacket::Opens(FlowState::first(protocol), None),
    }
}

/// What is judged of the flow with this key.
pub(in crate::dataplane) fn flow_of(key: &Key, opened_by_low: bool) -> Flow {
    let protocol = key.protocol();
    if opened_by_low {
        Flow { src: key.low(), dst: key.high(), protocol, dst_port: key.high_port() }
    } else {
        Flow { src: key.high(), dst: key.low(), protocol, dst_port: key.low_port() }
    }
}
