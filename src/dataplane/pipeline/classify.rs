//! New flows: judged by the tables of both ends, all of a batch step by step so that no look-up waits alone for memory,
//! and entered into conntrack. And flows that an earlier generation has judged: judged again.

use super::Context;
use super::advance::{follow, segment};
use super::batch::{Batch, Fate};
use crate::dataplane::DropReason;
use crate::dataplane::conntrack::{
    FlowState, FlowWord, InsertOutcome, Key, LookupBatch, NewFlow, PacketFlow, Side, Slot, TcpFlow,
};
use crate::dataplane::fib::rules::Rules;
use crate::dataplane::fib::snapshot::{EffectiveAcls, Flow, PortView, Snapshot};
use crate::dataplane::packet::checksum::{self, Checksum};
use crate::dataplane::packet::{self, Kind, Packet};
use crate::ids::{AclId, ClassId, PortId, RuleId};
use crate::limits::BATCH_FRAMES_MAX;
use crate::net::address::{self, Address};
use crate::net::flow::Protocol;
use crate::tables::{Classifier, Decision, Service};

/// Packets of a batch that open flows, and what is asked about them: memory that every batch uses again.
pub(crate) struct PolicyBatch {
    /// Their places in the batch.
    packets: Vec<u16>,
    /// What they open, and what is asked about it.
    openings: Box<[(Opening, Asked); BATCH_FRAMES_MAX]>,
    questions: Box<Questions>,
    entered: Entered,
    /// Whether most of the last flows that were asked about were dropped.
    denial_heavy: bool,
}

/// What the tables are asked: one question for each side that has a table.
struct Questions {
    len: usize,
    acls: [AclId; QUESTIONS_MAX],
    /// Of the address at the other end.
    classes: [u32; QUESTIONS_MAX],
    services: [Service; QUESTIONS_MAX],
    /// The answers.
    decisions: [Decision; QUESTIONS_MAX],
    peers_v4: Peers<u32>,
    peers_v6: Peers<u128>,
}

/// Addresses whose classes are asked for, because no pod of this node has them first, and the questions that they belong to.
struct Peers<A> {
    addresses: Vec<A>,
    questions: Vec<u16>,
    classes: Vec<u32>,
}

/// What was asked about a flow: no question, one, or that of its source's side and after it that of its destination's.
#[derive(Debug, Clone, Copy)]
struct Asked {
    /// The number of the first question.
    first: u16,
    egress: bool,
    ingress: bool,
    /// Why it is dropped whatever the answers.
    closed: Option<DropReason>,
}

/// Each packet asks two sides at most.
const QUESTIONS_MAX: usize = 2 * BATCH_FRAMES_MAX;

impl<A: Copy> Peers<A> {
    fn new() -> Peers<A> {
        Peers {
            addresses: Vec::with_capacity(QUESTIONS_MAX),
            questions: Vec::with_capacity(QUESTIONS_MAX),
            classes: Vec::with_capacity(QUESTIONS_MAX),
        }
    }

    fn clear(&mut self) {
        self.addresses.clear();
        self.questions.clear();
    }

    #[inline]
    fn add(&mut self, address: A, question: usize) {
        self.addresses.push(address);
        self.questions.push(question as u16);
    }

    /// Lets `look_up` write the class of every address, and puts each into its question.
    fn classify(&mut self, classes: &mut [u32], look_up: impl Fn(&[A], &mut [u32])) {
        if self.addresses.is_empty() {
            return;
        }
        self.classes.resize(self.addresses.len(), 0);
        look_up(&self.addresses, &mut self.classes);
        for (&question, &class) in self.questions.iter().zip(&self.classes) {
            classes[usize::from(question)] = class;
        }
    }
}

impl Questions {
    fn clear(&mut self) {
        self.len = 0;
        self.peers_v4.clear();
        self.peers_v6.clear();
    }

    fn answer(&mut self, classifier: &Classifier) {
        let Questions { len, acls, classes, services, decisions, peers_v4, peers_v6 } = self;
        peers_v4.classify(classes, |addresses, found| classifier.classes_v4(addresses, found));
        peers_v6.classify(classes, |addresses, found| classifier.classes_v6(addresses, found));
        let all = ..*len;
        classifier.decide_batch(&acls[all], &classes[all], &services[all], &mut decisions[all]);
    }

    /// Asks about a flow between two ports.
    #[inline(always)]
    fn ask_about(&mut self, packet: &Packet, from: &PortView, to: &PortView) -> Asked {
        let Packet { src, dst, protocol, dst_port, .. } = *packet;
        let flow = Flow { src, dst, protocol, dst_port };
        let gates = EffectiveAcls::of(&flow, from, to);
        let first = self.len;
        let service = Service::new(flow.protocol, flow.dst_port);
        // Each side is asked about the other end.
        if let Some(acl) = gates.egress {
            self.add(acl, service, flow.dst, to, packet.is_v4);
        }
        if let Some(acl) = gates.ingress {
            self.add(acl, service, flow.src, from, packet.is_v4);
        }
        let (egress, ingress) = (gates.egress.is_some(), gates.ingress.is_some());
        Asked { first: first as u16, egress, ingress, closed: gates.closed }
    }

    #[inline(always)]
    fn add(&mut self, acl: AclId, service: Service, peer: Address, behind: &PortView, is_v4: bool) {
        let number = self.len % QUESTIONS_MAX;
        self.len = number + 1;
        let class = behind.class_of_pod(peer, is_v4).unwrap_or_else(|| {
            self.ask_class(peer, number);
            ClassId::WORLD
        });
        self.acls[number] = acl;
        self.classes[number] = class.0;
        self.services[number] = service;
    }

    #[inline(never)]
    fn ask_class(&mut self, peer: Address, question: usize) {
        if address::is_v4(peer) {
            self.peers_v4.add(peer as u32, question);
        } else {
            self.peers_v6.add(peer, question);
        }
    }
}

/// Flows that this batch has entered, by bits of their hashes: whether an earlier packet of the batch may have opened the flow
/// of a later one. Only then it is looked up again.
struct Entered([u64; Entered::BITS / 64]);

impl Entered {
    /// Sixteen for each packet of a batch.
    const BITS: usize = 16 * BATCH_FRAMES_MAX;

    fn add(&mut self, hash: u64) {
        self.0[hash as usize % Entered::BITS / 64] |= 1 << (hash % 64);
    }

    #[inline]
    fn may_hold(&self, hash: u64) -> bool {
        self.0[hash as usize % Entered::BITS / 64] >> (hash % 64) & 1 != 0
    }
}

impl PolicyBatch {
    pub(crate) fn new() -> PolicyBatch {
        let questions = Questions {
            len: 0,
            acls: [AclId(0); QUESTIONS_MAX],
            classes: [ClassId::WORLD.0; QUESTIONS_MAX],
            services: [Service::OTHER; QUESTIONS_MAX],
            decisions: [Decision::deny(RuleId(0)); QUESTIONS_MAX],
            peers_v4: Peers::new(),
            peers_v6: Peers::new(),
        };
        PolicyBatch {
            packets: Vec::with_capacity(BATCH_FRAMES_MAX),
            openings: Box::new([(Opening::NONE, Asked::NOTHING); BATCH_FRAMES_MAX]),
            questions: Box::new(questions),
            entered: Entered([0; Entered::BITS / 64]),
            denial_heavy: false,
        }
    }

    /// Whether most of the last flows that were asked about were dropped: then there is no use in preparing places for the next.
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
    fn ask(&mut self, batch: &Batch, lookups: &LookupBatch, snapshot: &Snapshot) {
        self.entered.0.fill(0);
        let questions = &mut *self.questions;
        questions.clear();
        for n in 0..self.packets.len().min(BATCH_FRAMES_MAX) {
            let i = usize::from(self.packets[n]);
            let opening = Opening::of(batch, i, lookups.flow(i));
            let asked = match (snapshot.port(opening.from), snapshot.port(opening.to)) {
                (Some(from), Some(to)) => questions.ask_about(&batch.packets[i], from, to),
                _ => Asked { closed: Some(DropReason::NoRoute), ..Asked::NOTHING },
            };
            self.openings[n] = (opening, asked);
        }
        if let Some(rules) = snapshot.rules() {
            questions.answer(rules.classifier());
        }
    }

    /// Why the tables drop packet number `n` of the inquiry, if they do. Counts what decides.
    #[inline(always)]
    fn denied(&self, n: usize, rules: Option<&Rules>, worker: usize) -> Option<DropReason> {
        let asked = self.openings[n].1;
        let passes = |number: usize| {
            let decision = self.questions.decisions[number % QUESTIONS_MAX];
            rules.is_some_and(|rules| {
                rules.count(worker, decision);
                decision.is_allow()
            })
        };
        let first = usize::from(asked.first);
        if asked.egress && !passes(first) {
            Some(DropReason::PolicyEgress)
        } else if asked.ingress && !passes(first + usize::from(asked.egress)) {
            Some(DropReason::PolicyIngress)
        } else {
            asked.closed
        }
    }
}

/// Judges the first packets of new flows, and enters these.
pub(in crate::dataplane) fn classify_and_admit(
    batch: &mut Batch,
    lookups: &LookupBatch,
    context: &mut Context<'_>,
) {
    context.policy_batch.ask(batch, lookups, context.snapshot);
    let rules = context.snapshot.rules().map(|rules| &**rules);
    let (mut asked, entered) = (0, context.worker_state.inserted);
    for n in 0..context.policy_batch.packets.len() {
        let i = usize::from(context.policy_batch.packets[n]);
        let flow = lookups.flow(i);
        if let Some(slot) = opened_before(flow, context) {
            batch.tracks[i].fate = Fate::Known(slot);
            follow(batch, i, context, flow, slot);
        } else {
            asked += 1;
            let opening = context.policy_batch.openings[n].0;
            open(batch, i, context, flow, opening, |context| {
                context.policy_batch.denied(n, rules, context.worker)
            });
        }
    }
    let entered = context.worker_state.inserted - entered;
    context.policy_batch.denial_heavy = 2 * entered < asked;
}

/// The slot of a packet's flow, if an earlier packet of this batch has opened it.
#[inline]
fn opened_before(flow: &PacketFlow, context: &Context<'_>) -> Option<Slot> {
    let may_be = context.policy_batch.entered.may_hold(flow.hash);
    if may_be { context.conntrack.look_up(&flow.key, flow.hash) } else { None }
}

/// Judges a flow that an earlier generation has judged, from its original direction, which is as the facts for its packet say.
#[inline(never)]
pub(in crate::dataplane) fn revalidate(
    batch: &mut Batch,
    i: usize,
    context: &mut Context<'_>,
    packet_flow: &PacketFlow,
    slot: Slot,
    flow_word: FlowWord,
) {
    let PacketFlow { key, from_low, .. } = packet_flow;
    let opened_by_low = (flow_word.side(*from_low) == Side::Initiator) == *from_low;
    let flow = flow_of(key, opened_by_low);
    let snapshot = context.snapshot;
    let judged = flow_word.policy_epoch();
    let [low_was_pod, high_was_pod] = flow_word.pods();
    let ends = [(key.low(), low_was_pod), (key.high(), high_was_pod)];
    if ends.into_iter().any(|(end, was_pod)| !snapshot.is_same_end(end, was_pod, judged)) {
        if snapshot.awaits_ends(ends, judged, context.now_ms) {
            return batch.drop(i, DropReason::UnknownPod);
        }
        // One of its ends is somebody else by now, who inherits nothing.
        context.conntrack.remove(slot, context.worker_state);
        batch.tracks[i].fate = Fate::New;
        context.policy_batch.add(i);
        return;
    }
    // What stays allowed has been counted when it was entered.
    let origin = snapshot.port_towards(flow.src);
    let judge = |counted_by| match (origin, snapshot.port_towards(flow.dst)) {
        (Some((_, from)), Some((_, to))) => snapshot.judge(&flow, from, to, counted_by),
        _ => Some(DropReason::NoRoute),
    };
    let reason = judge(None).and_then(|_| judge(Some(context.worker)));
    if let Some(reason) = reason {
        // While no tables are loaded nothing passes, and nothing has been decided on either.
        if snapshot.rules().is_some() || reason != DropReason::UnknownPod {
            context.conntrack.remove(slot, context.worker_state);
        }
        batch.drop(i, reason);
    } else if let Some((port, _)) = origin {
        context.conntrack.set_owner_port(slot, port);
    }
}

/// Opens a connection anew that has ended, on the same ports.
#[inline(never)]
pub(in crate::dataplane) fn reopen(
    batch: &mut Batch,
    i: usize,
    context: &mut Context<'_>,
    packet_flow: &PacketFlow,
    slot: Slot,
) {
    batch.tracks[i].fate = Fate::Reopen(slot);
    let opening = Opening::of(batch, i, packet_flow);
    let flow = flow_of(&packet_flow.key, opening.opened_by_low);
    open(batch, i, context, packet_flow, opening, |context| {
        match (context.snapshot.port(opening.from), context.snapshot.port(opening.to)) {
            (Some(from), Some(to)) => context.snapshot.judge(&flow, from, to, Some(context.worker)),
            _ => Some(DropReason::NoRoute),
        }
    });
}

/// Enters the flow that a packet opens, if it is one that may, the tables say nothing against it, and its receiver will take it.
///
/// The first fragment of a datagram may open a flow though its checksum says nothing: what it opens is a flow that nobody has
/// answered, as any packet could open it that does not arrive.
#[inline(always)]
fn open(
    batch: &mut Batch,
    i: usize,
    context: &mut Context<'_>,
    flow: &PacketFlow,
    opening: Opening,
    denied: impl FnOnce(&Context<'_>) -> Option<DropReason>,
) {
    let first = first_state(batch, i, context);
    if matches!(first, FirstVerdict::Invalid) {
        return batch.drop(i, DropReason::InvalidState);
    }
    if let Some(reason) = denied(context) {
        return batch.drop(i, reason);
    }
    let FirstVerdict::Opens(state, tcp) = first else {
        batch.tracks[i].fate = Fate::Untracked;
        return;
    };
    if checksum::verify(context.umem, &batch.frames[i], &batch.packets[i]) == Checksum::Wrong {
        return batch.drop(i, DropReason::BadChecksum);
    }
    admit(batch, i, context, flow, opening, state, tcp);
}

/// Classes of packets of no known flow, before any table is asked.
#[derive(Debug, Clone, Copy)]
enum FirstVerdict {
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
struct Opening {
    opened_by_low: bool,
    /// The port that the initiator lies behind.
    from: PortId,
    /// The port that the responder lies behind.
    to: PortId,
}

impl Asked {
    const NOTHING: Asked = Asked { first: 0, egress: false, ingress: false, closed: None };
}

impl Opening {
    const NONE: Opening = Opening { opened_by_low: false, from: PortId(0), to: PortId(0) };

    #[inline(always)]
    fn of(batch: &Batch, i: usize, flow: &PacketFlow) -> Opening {
        Opening { opened_by_low: flow.from_low, from: batch.in_ports[i], to: batch.adjacencies[i].out }
    }
}

/// Enters a flow, or starts it anew.
fn admit(
    batch: &mut Batch,
    i: usize,
    context: &mut Context<'_>,
    packet_flow: &PacketFlow,
    opening: Opening,
    state: FlowState,
    tcp: Option<TcpFlow>,
) {
    let Opening { opened_by_low, from: from_id, to: to_id } = opening;
    let (Some(from), Some(to)) = (context.snapshot.port(from_id), context.snapshot.port(to_id)) else {
        return batch.drop(i, DropReason::NoRoute);
    };
    let PacketFlow { key, hash, from_low, .. } = packet_flow;
    let (track, from_low) = (&mut batch.tracks[i], *from_low);
    let flow = flow_of(key, opened_by_low);
    let new = NewFlow {
        opened_by_low,
        pods: [from.is_of_pod(flow.src), to.is_of_pod(flow.dst)],
        owner_port: from_id,
        policy_epoch: context.snapshot.generation,
        state,
        tcp,
        hops: if from_low { [track.hop, None] } else { [None, track.hop] },
    };
    let bytes = batch.packets[i].ip_bytes();
    if let Fate::Reopen(slot) = track.fate {
        context.conntrack.restart(slot, &new, context.now_ms);
        return context.conntrack.entry(slot).count(from_low, bytes, context.now_ms);
    }
    match context.conntrack.insert(key, *hash, &new, context.now_ms, context.worker_state) {
        InsertOutcome::Inserted(slot) => {
            context.policy_batch.entered.add(*hash);
            context.conntrack.entry(slot).count(from_low, bytes, context.now_ms);
        }
        InsertOutcome::Exists(slot) => {
            track.fate = Fate::Known(slot);
            follow(batch, i, context, packet_flow, slot);
        }
        InsertOutcome::Full => batch.drop(i, DropReason::TableFull),
    }
}

/// Class of a packet of no known flow.
#[inline(always)]
fn first_state(batch: &Batch, i: usize, context: &Context<'_>) -> FirstVerdict {
    let packet = &batch.packets[i];
    if packet.kind == Kind::Flow && packet.protocol == Protocol::UDP {
        return FirstVerdict::Opens(FlowState::UdpOneWay, None);
    }
    first_state_of_other(batch, i, context)
}

#[inline(never)]
fn first_state_of_other(batch: &Batch, i: usize, context: &Context<'_>) -> FirstVerdict {
    let packet = &batch.packets[i];
    if packet.kind == Kind::IcmpError {
        return FirstVerdict::Invalid;
    }
    match packet.protocol {
        Protocol::TCP => {
            let frame = context.umem.data(&batch.frames[i]);
            let flow = TcpFlow::open(&segment(packet, frame), context.conntrack.tcp_pickup());
            flow.map_or(FirstVerdict::Invalid, |flow| FirstVerdict::Opens(flow.state, Some(flow)))
        }
        protocol @ (Protocol::ICMP | Protocol::ICMPV6) => match packet::query(protocol, packet.flags) {
            Some(query) if query.is_reply => FirstVerdict::Invalid,
            Some(_) => FirstVerdict::Opens(FlowState::Echo, None),
            None => FirstVerdict::Untracked,
        },
        protocol => FirstVerdict::Opens(FlowState::initial(protocol), None),
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
