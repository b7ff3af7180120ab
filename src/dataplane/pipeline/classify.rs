//! New flows: judged by the tables of both ends, all of a batch step by step so that no look-up waits alone for memory,
//! and entered into conntrack. And flows that an earlier generation has judged: judged again.

use super::batch::{Batch, FlowStatus};
use super::context::Context;
use super::policy_batch::FlowInit;
use super::tcp_segment::tcp_segment;
use super::verify_checksum::{self, Checksum};
use crate::dataplane::DropReason;
use crate::dataplane::conntrack::{
    FlowState, FlowWord, InsertOutcome, Key, LookupBatch, NewFlow, Outcome, PacketFlow, Side, Slot, TcpFlow,
};
use crate::dataplane::fib::effective_acls::Flow;
use crate::dataplane::packet::Kind;
use crate::net::flow::Protocol;
use crate::net::icmp;
use crate::net::tcp::Flags;

/// Judges the first packets of new flows, and enters these.
pub(in crate::dataplane) fn classify_new_flows(
    batch: &mut Batch,
    lookups: &LookupBatch,
    context: &mut Context<'_>,
) {
    context.policy_batch.evaluate(batch, lookups, context.snapshot);
    let rules = context.snapshot.rules().map(|rules| &**rules);
    let (mut queried, entered) = (0, context.worker_state.inserted);
    for n in 0..context.policy_batch.packets.len() {
        let i = usize::from(context.policy_batch.packets[n]);
        let flow = lookups.flow(i);
        if let Some(slot) = inserted_earlier(flow, context) {
            batch.tracks[i].status = FlowStatus::Known(slot);
            update_state(batch, i, context, flow, slot);
        } else {
            queried += 1;
            let init = context.policy_batch.inits[n].0;
            open_flow(batch, i, context, flow, init, |context| {
                context.policy_batch.denial(n, rules, context.worker)
            });
        }
    }
    let entered = context.worker_state.inserted - entered;
    context.policy_batch.denial_heavy = 2 * entered < queried;
}

/// The slot of a packet's flow, if an earlier packet of this batch has opened it.
#[inline]
fn inserted_earlier(flow: &PacketFlow, context: &Context<'_>) -> Option<Slot> {
    let may_be = context.policy_batch.inserted.may_hold(flow.hash);
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
    if ends.into_iter().any(|(end, was_pod)| !snapshot.is_same_endpoint(end, was_pod, judged)) {
        if snapshot.awaits_endpoints(ends, judged, context.now_ms) {
            return batch.drop(i, DropReason::UnknownPod);
        }
        // One of its ends is somebody else by now, who inherits nothing.
        context.conntrack.remove(slot, context.worker_state);
        batch.tracks[i].status = FlowStatus::New;
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
            context.conntrack.remove(slot, context.worker_state);
        }
        batch.drop(i, reason);
    } else if let Some((port, _)) = origin {
        context.conntrack.set_owner_port(slot, port);
    }
}

/// Opens a connection anew that has ended, on the same ports.
#[inline(never)]
pub(in crate::dataplane) fn reopen_flow(
    batch: &mut Batch,
    i: usize,
    context: &mut Context<'_>,
    packet_flow: &PacketFlow,
    slot: Slot,
) {
    batch.tracks[i].status = FlowStatus::Reopen(slot);
    let init = FlowInit::of(batch, i, packet_flow);
    let flow = flow_of(&packet_flow.key, init.opened_by_low);
    open_flow(batch, i, context, packet_flow, init, |context| {
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
    flow: &PacketFlow,
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
    if verify_checksum::verify(context.umem, &batch.frames[i], &batch.packets[i]) == Checksum::Wrong {
        return batch.drop(i, DropReason::BadChecksum);
    }
    insert_flow(batch, i, context, flow, init, state, tcp);
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

/// Enters a flow, or starts it anew.
fn insert_flow(
    batch: &mut Batch,
    i: usize,
    context: &mut Context<'_>,
    packet_flow: &PacketFlow,
    init: FlowInit,
    state: FlowState,
    tcp: Option<TcpFlow>,
) {
    let FlowInit { opened_by_low, from: from_id, to: to_id } = init;
    let (Some(from), Some(to)) = (context.snapshot.port(from_id), context.snapshot.port(to_id)) else {
        return batch.drop(i, DropReason::NoRoute);
    };
    let PacketFlow { key, hash, from_low, .. } = packet_flow;
    let (track, from_low) = (&mut batch.tracks[i], *from_low);
    let flow = flow_of(key, opened_by_low);
    let new = NewFlow {
        opened_by_low,
        pods: [from.has_pod_address(flow.src), to.has_pod_address(flow.dst)],
        owner_port: from_id,
        policy_epoch: context.snapshot.generation,
        state,
        tcp,
        hops: if from_low { [track.hop, None] } else { [None, track.hop] },
    };
    let bytes = batch.packets[i].ip_bytes();
    if let FlowStatus::Reopen(slot) = track.status {
        context.conntrack.restart(slot, &new, context.now_ms);
        return context.conntrack.entry(slot).count(from_low, bytes, context.now_ms);
    }
    match context.conntrack.insert(key, *hash, &new, context.now_ms, context.worker_state) {
        InsertOutcome::Inserted(slot) => {
            context.policy_batch.inserted.add(*hash);
            context.conntrack.entry(slot).count(from_low, bytes, context.now_ms);
        }
        InsertOutcome::Exists(slot) => {
            track.status = FlowStatus::Known(slot);
            update_state(batch, i, context, packet_flow, slot);
        }
        InsertOutcome::Full => batch.drop(i, DropReason::TableFull),
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
            let flow = TcpFlow::open(&tcp_segment(packet, frame), context.conntrack.tcp_pickup());
            flow.map_or(FirstPacket::Invalid, |flow| FirstPacket::Opens(flow.state, Some(flow)))
        }
        protocol @ (Protocol::ICMP | Protocol::ICMPV6) => match icmp::query(protocol, packet.flags) {
            Some(query) if query.is_reply => FirstPacket::Invalid,
            Some(_) => FirstPacket::Opens(FlowState::Echo, None),
            None => FirstPacket::Untracked,
        },
        protocol => FirstPacket::Opens(FlowState::initial(protocol), None),
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

/// Lets a packet of a known flow move the flow's state.
#[inline(always)]
pub(in crate::dataplane) fn update_state(
    batch: &mut Batch,
    i: usize,
    context: &mut Context<'_>,
    flow: &PacketFlow,
    slot: Slot,
) {
    let (packet, entry) = (&batch.packets[i], context.conntrack.entry(slot));
    if packet.kind == Kind::IcmpError {
        return; // It passes, and its flow is none the livelier for it.
    }
    let from_low = flow.from_low;
    let flow_word = entry.flow_word(from_low);
    let checksum = || verify_checksum::verify(context.umem, &batch.frames[i], packet);
    // A packet that cannot be verified, a fragment, changes the state of no connection; its receiver takes it or does not. Of UDP,
    // which is sent in fragments, the first answer makes the flow live a little longer.
    let (outcome, verified) = if packet.protocol == Protocol::TCP {
        let before = entry.load_tcp();
        let mut after = before;
        let segment = tcp_segment(packet, context.umem.data(&batch.frames[i]));
        let outcome = after.advance(&segment, flow_word.side(from_low));
        let decides =
            (after.state != before.state) | segment.flags.has_any(Flags::SYN | Flags::RST | Flags::FIN);
        let verified = if decides && outcome == Outcome::Pass { checksum() } else { Checksum::Right };
        if outcome == Outcome::Pass && verified == Checksum::Right && entry.store_tcp(&before, &after) {
            context.conntrack.on_state_change(slot, before.state, after.state);
        }
        (outcome, verified)
    } else {
        let state = if packet.protocol == Protocol::SCTP { entry.state() } else { flow_word.state() };
        let (outcome, next) = state.advance(packet, flow_word.side(from_low) == Side::Initiator);
        let verified = if next == state { Checksum::Right } else { checksum() };
        let is_enough = verified == Checksum::Right
            || (verified == Checksum::Unknown && packet.protocol != Protocol::SCTP);
        if next != state && is_enough {
            entry.set_state(state, next);
            context.conntrack.on_state_change(slot, state, next);
        }
        (outcome, verified)
    };
    match outcome {
        Outcome::Pass if verified == Checksum::Wrong => return batch.drop(i, DropReason::BadChecksum),
        Outcome::Pass => {}
        Outcome::Reopen => return reopen_flow(batch, i, context, flow, slot),
        Outcome::Invalid => return batch.drop(i, DropReason::InvalidState),
    }
    entry.count(from_low, packet.ip_bytes(), context.now_ms);
}
