//! Packets of known flows that change the state of these.

use super::admit::{admit, new_flow};
use super::early_syn::hold_early_syn;
use super::init::{FlowInit, flow_of};
use super::state::{StateUpdate, update_state};
use crate::dataplane::conntrack::{PacketFlow, Side, Slot, event};
use crate::dataplane::packet::{Kind, Packet};
use crate::dataplane::pipeline::batch::Batch;
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::{DropReason, FlowEventKind};

/// Applies packet `i` to the flow in `slot`: changes its state, and counts the packet. `hop` is the hop of the packet where the caller
/// knows it: a connection that the packet reopens remembers it.
#[inline(always)]
pub(in crate::dataplane::pipeline) fn apply_to_flow(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    flow: &PacketFlow,
    slot: Slot,
    hop: Option<u16>,
) {
    if batch.packets[i].kind == Kind::IcmpError {
        return; // An error passes, and does not extend the life of its flow.
    }
    let flow_word = context.conntrack.entry(slot).flow_word(flow.from_low);
    if flow_word.is_by_node_socket() && is_forwarded(&batch.packets[i], flow_word.side(flow.from_low)) {
        return batch.drop(i, DropReason::InvalidState);
    }
    if hold_early_syn(batch, i, context, flow, slot) {
        return;
    }
    match update_state(batch, i, context, flow, slot) {
        StateUpdate::Pass => count(batch, i, context, flow, slot),
        StateUpdate::Reopen => reopen_flow(batch, i, context, flow, slot, hop),
        StateUpdate::Drop(reason) => batch.drop(i, reason),
    }
}

/// Whether a packet of a flow that a socket of the node has opened has its addresses and ports by chance or by guess, and is
/// one that the node forwards. The kernel marks all packets of a socket, resets of a closed one too.
#[inline]
fn is_forwarded(packet: &Packet, sender: Side) -> bool {
    sender == Side::Initiator && !packet.is_marked()
}

/// Restarts the flow in `slot` as a connection that packet `i` opens on the same ports.
#[inline(never)]
fn reopen_flow(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    packet_flow: &PacketFlow,
    slot: Slot,
    hop: Option<u16>,
) {
    let init = FlowInit::of(batch, i, packet_flow);
    let snapshot = context.snapshot;
    let admitted = admit(batch, i, context, || match (snapshot.port(init.from), snapshot.port(init.to)) {
        (Some(from), Some(to)) => {
            let by_node_socket = init.by_node_socket(from);
            let flow = flow_of(&packet_flow.key, init.opened_by_low, by_node_socket);
            snapshot.evaluate_new(&flow, from, to, context.counted_by)
        }
        _ => Some(DropReason::NoRoute),
    });
    let Some(state) = admitted else { return };
    match new_flow(context, packet_flow, init, hop, batch.virtual_end(i), state) {
        Some(new) => {
            let before = |_| context.conntrack.before_restart(slot, &packet_flow.key, context.now_ms);
            let ended = context.events.map(before);
            context.conntrack.restart(slot, &new, context.now_ms);
            if let (Some(events), Some(ended)) = (context.events, ended) {
                // A walk over the table does not meet the ended flow any more.
                events.add_ended(ended);
                let entry = context.conntrack.entry(slot);
                events.add(event(FlowEventKind::Opened, &packet_flow.key, entry));
            }
            count(batch, i, context, packet_flow, slot);
        }
        None => batch.drop(i, DropReason::NoRoute),
    }
}

#[inline(always)]
fn count(batch: &Batch, i: usize, context: &Context<'_>, flow: &PacketFlow, slot: Slot) {
    context.conntrack.entry(slot).count(flow.from_low, batch.packets[i].ip_bytes(), context.now_ms);
}
