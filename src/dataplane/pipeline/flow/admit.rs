//! Admission of the first packet of a flow.

use super::init::{FlowInit, flow_of};
use super::tcp_segment::tcp_segment;
use crate::dataplane::DropReason;
use crate::dataplane::conntrack::{FlowState, FrontEnd, NewFlow, PacketFlow, TcpFlow};
use crate::dataplane::packet::Kind;
use crate::dataplane::pipeline::batch::Batch;
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::pipeline::translate::leaves_masqueraded;
use crate::dataplane::pipeline::verify_checksum::{self, Checksum};
use crate::net::flow::Protocol;
use crate::net::icmp;
use crate::net::tcp::Flags;

/// State that a flow begins with, and its TCP part where it is a connection.
pub(in crate::dataplane::pipeline) type InitialState = (FlowState, Option<TcpFlow>);

/// Class of a packet of no known flow, before policy.
#[derive(Debug, Clone, Copy)]
enum FirstPacket {
    /// Opens a flow in this state.
    Opens(InitialState),
    /// Opens no flow, because no reply exists. Policy evaluates each such packet.
    Untracked,
    /// Belongs to a flow that does not exist: a reply to nothing, a segment outside any connection, an error about no flow.
    Invalid,
}

/// Admits packet `i` if it may open a flow, policy does not deny it, and its receiver takes it. Returns the state of the flow; `None`
/// where the packet is dropped, or passes without a flow.
///
/// A first fragment may open a flow though its checksum cannot be verified: that flow is one without a reply, as any packet
/// opens that does not arrive.
#[inline(always)]
pub(in crate::dataplane::pipeline) fn admit(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    denial: impl FnOnce() -> Option<DropReason>,
) -> Option<InitialState> {
    let first = classify_first_packet(batch, i, context);
    if matches!(first, FirstPacket::Invalid) {
        if context.conntrack.tcp_reset_unknown() {
            note_unknown_segment(batch, i, context, denial);
        }
        batch.drop(i, DropReason::InvalidState);
        return None;
    }
    if let Some(reason) = denial() {
        batch.drop(i, reason);
        return None;
    }
    let FirstPacket::Opens(state) = first else {
        if leaves_masqueraded(batch, i, context) {
            // Without a flow it has no external port.
            batch.drop(i, DropReason::Masquerade);
        }
        return None;
    };
    if verify_checksum::verify(context.umem, &batch.frames[i], &batch.packets[i]) == Checksum::Wrong {
        batch.drop(i, DropReason::BadChecksum);
        return None;
    }
    Some(state)
}

/// Notes a TCP segment of no flow for an answer, if policy lets its sender open the connection. "An incoming segment containing a
/// RST is discarded" (RFC 9293 section 3.10.7.1).
#[cold]
#[inline(never)]
fn note_unknown_segment(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    denial: impl FnOnce() -> Option<DropReason>,
) {
    let packet = &batch.packets[i];
    let has_answer = packet.kind == Kind::Flow
        && packet.protocol == Protocol::TCP
        && packet.whole
        && !packet.tcp_flags().has(Flags::RST);
    if has_answer
        && denial().is_none()
        && verify_checksum::verify(context.umem, &batch.frames[i], packet) != Checksum::Wrong
    {
        batch.unknown_segments.push(i as u16);
    }
}

/// Describes the flow that a packet opens, for conntrack; `None` where one of its ports is closed. `hop` is the hop of the packet,
/// `virtual_end` is the front end to which it was sent.
#[inline(always)]
pub(in crate::dataplane::pipeline) fn new_flow(
    context: &Context<'_>,
    packet_flow: &PacketFlow,
    init: FlowInit,
    hop: Option<u16>,
    virtual_end: Option<FrontEnd>,
    (state, tcp): InitialState,
) -> Option<NewFlow> {
    let FlowInit { opened_by_low, from: from_id, to: to_id, .. } = init;
    let (from, to) = (context.snapshot.port(from_id)?, context.snapshot.port(to_id)?);
    let by_node_socket = init.by_node_socket(from);
    let flow = flow_of(&packet_flow.key, opened_by_low, by_node_socket);
    Some(NewFlow {
        opened_by_low,
        by_node_socket,
        pods: [from.has_pod_address(flow.src), to.has_pod_address(flow.dst)],
        owner_port: from_id,
        policy_epoch: context.snapshot.generation,
        state,
        tcp,
        virtual_end,
        hops: if packet_flow.from_low { [hop, None] } else { [None, hop] },
    })
}

#[inline(always)]
fn classify_first_packet(batch: &Batch, i: usize, context: &Context<'_>) -> FirstPacket {
    let packet = &batch.packets[i];
    if packet.kind == Kind::Flow && packet.protocol == Protocol::UDP {
        return FirstPacket::Opens((FlowState::UdpOneWay, None));
    }
    classify_first_packet_slow(batch, i, context)
}

#[inline(never)]
fn classify_first_packet_slow(batch: &Batch, i: usize, context: &Context<'_>) -> FirstPacket {
    let packet = &batch.packets[i];
    if packet.kind == Kind::IcmpError {
        return FirstPacket::Invalid;
    }
    match packet.protocol {
        Protocol::TCP => {
            let frame = context.umem.data(&batch.frames[i]);
            let flow = TcpFlow::open(&tcp_segment(packet, frame), context.conntrack.tcp_pickup());
            flow.map_or(FirstPacket::Invalid, |flow| FirstPacket::Opens((flow.state, Some(flow))))
        }
        protocol @ (Protocol::ICMP | Protocol::ICMPV6) => match icmp::query(protocol, packet.flags) {
            Some(query) if query.is_reply => FirstPacket::Invalid,
            Some(_) => FirstPacket::Opens((FlowState::Echo, None)),
            None => FirstPacket::Untracked,
        },
        protocol => FirstPacket::Opens((FlowState::initial(protocol), None)),
    }
}
