//! State change of a known flow by one of its packets.

use super::tcp_segment::tcp_segment;
use crate::dataplane::conntrack::{Entry, FlowState, Outcome, PacketFlow, QuotaClass, Side, Slot, event};
use crate::dataplane::packet::Packet;
use crate::dataplane::pipeline::batch::Batch;
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::pipeline::verify_checksum::{self, Checksum};
use crate::dataplane::{DropReason, FlowEnd, FlowEventKind};
use crate::net::flow::Protocol;
use crate::net::tcp::Flags;

/// Result of a packet for its flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StateUpdate {
    /// The packet passes.
    Pass,
    /// The connection has ended, and the packet opens the next one on the same ports.
    Reopen,
    /// The packet does not fit the state of the flow, or its receiver would not take it.
    Drop(DropReason),
}

/// Changes the state of the flow in `slot` by packet `i`.
///
/// A packet changes the state only if its receiver takes it, so its transport checksum is verified first. A fragment cannot be
/// verified: it changes the state of no connection. UDP is sent in fragments, so a first reply that cannot be verified extends
/// the life of its flow a little.
#[inline(always)]
pub(super) fn update_state(
    batch: &Batch,
    i: usize,
    context: &Context<'_>,
    flow: &PacketFlow,
    slot: Slot,
) -> StateUpdate {
    let (packet, entry) = (&batch.packets[i], context.conntrack.entry(slot));
    let (outcome, verified) = if packet.protocol == Protocol::TCP {
        update_tcp(batch, i, context, flow, slot, entry)
    } else {
        update_other(packet, context, flow, slot, entry, || {
            verify_checksum::verify(context.umem, &batch.frames[i], packet)
        })
    };
    match outcome {
        Outcome::Pass if verified == Checksum::Wrong => StateUpdate::Drop(DropReason::BadChecksum),
        Outcome::Pass => StateUpdate::Pass,
        Outcome::Reopen => StateUpdate::Reopen,
        Outcome::Invalid => StateUpdate::Drop(DropReason::InvalidState),
    }
}

/// Changes the state of a connection by a segment of it.
#[inline(always)]
fn update_tcp(
    batch: &Batch,
    i: usize,
    context: &Context<'_>,
    flow: &PacketFlow,
    slot: Slot,
    entry: &Entry,
) -> (Outcome, Checksum) {
    let packet = &batch.packets[i];
    let before = entry.load_tcp();
    let mut after = before;
    context.conntrack.take_over_numbers(slot, &mut after);
    let known = after;
    let segment = tcp_segment(packet, context.umem.data(&batch.frames[i]));
    let outcome = after.advance(&segment, entry.flow_word(flow.from_low).side(flow.from_low));
    let decides = (after.state != before.state) | segment.flags.has_any(Flags::SYN | Flags::RST | Flags::FIN);
    let verified = if decides && outcome == Outcome::Pass {
        verify_checksum::verify(context.umem, &batch.frames[i], packet)
    } else {
        Checksum::Right
    };
    if outcome == Outcome::Pass && verified == Checksum::Right {
        let is_another = entry.store_tcp(&before, &after);
        context.conntrack.note_numbers(slot, &known, &after);
        if is_another {
            note_change(context, flow, slot, before.state, after.state);
        }
    }
    (outcome, verified)
}

#[inline(always)]
fn update_other(
    packet: &Packet,
    context: &Context<'_>,
    flow: &PacketFlow,
    slot: Slot,
    entry: &Entry,
    verify: impl FnOnce() -> Checksum,
) -> (Outcome, Checksum) {
    let flow_word = entry.flow_word(flow.from_low);
    let state = if packet.protocol == Protocol::SCTP { entry.state() } else { flow_word.state() };
    let (outcome, next) = state.advance(packet, flow_word.side(flow.from_low) == Side::Initiator);
    let verified = if next == state { Checksum::Right } else { verify() };
    let is_enough =
        verified == Checksum::Right || (verified == Checksum::Unknown && packet.protocol != Protocol::SCTP);
    if next != state && is_enough {
        entry.set_state(state, next);
        note_change(context, flow, slot, state, next);
    }
    (outcome, verified)
}

/// Follows a change of the state of the flow in `slot`. Those who follow flows learn that a connection is closed.
#[inline(always)]
fn note_change(context: &Context<'_>, flow: &PacketFlow, slot: Slot, old: FlowState, new: FlowState) {
    if context.conntrack.on_state_change(slot, old, new)
        && let Some(events) = context.events
        && new.class() == QuotaClass::Ended
    {
        let entry = context.conntrack.entry(slot);
        events.add(event(FlowEventKind::Closed(FlowEnd::Finished), &flow.key, entry));
    }
}
