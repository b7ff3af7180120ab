//! Packets of known flows against the translation of these.

use super::bind::forward_key;
use super::collision::may_have_other_port;
use crate::dataplane::DropReason;
use crate::dataplane::conntrack::{FlowWord, FrontEnd, PacketFlow, QuotaClass, Side, Slot};
use crate::dataplane::packet::{Kind, Packet};
use crate::dataplane::pipeline::batch::Batch;
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::service::{Translation, TranslationKind};

/// Whether a packet belongs to the flow that its key names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::dataplane::pipeline) enum FlowMatch {
    /// It does.
    Same,
    /// The flow has ended, and the packet opens another one under the same key, with another translation.
    Ended,
    /// It does not. It is of a flow with another source port.
    Collides,
    /// The packet is dropped.
    Dropped,
}

/// Compares packet `i` with the flow of its key, in `slot`, and marks replies and ICMP errors of a translated flow for
/// translation. A client may reach a backend by its own address and by a virtual one from the same port: these would be two
/// flows with one key, of which the first one has it.
#[inline]
pub(in crate::dataplane::pipeline) fn match_known_flow(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    flow: &PacketFlow,
    (slot, flow_word): (Slot, FlowWord),
) -> FlowMatch {
    let is_translated = flow_word.is_translated();
    if !is_translated && !batch.packets[i].translated {
        return FlowMatch::Same;
    }
    match_translated(batch, i, context, flow, (slot, flow_word))
}

#[inline(never)]
fn match_translated(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    flow: &PacketFlow,
    (slot, flow_word): (Slot, FlowWord),
) -> FlowMatch {
    let packet = &batch.packets[i];
    let by_client = flow_word.side(flow.from_low) == Side::Initiator;
    let is_translated = flow_word.is_translated();
    if packet.kind == Kind::IcmpError {
        return match_error(batch, i, context, flow, slot, (by_client, is_translated));
    }
    let is_of_flow = is_translated
        && by_client == packet.translated
        && (!by_client || has_virtual_end(batch, i, context, slot));
    let is_next =
        packet.opens_connection() && context.conntrack.entry(slot).state().class() == QuotaClass::Ended;
    if is_of_flow {
        if by_client {
            return FlowMatch::Same;
        }
        if is_next {
            return FlowMatch::Ended;
        }
        mark_reply(batch, i, context, slot);
        return FlowMatch::Same;
    }
    if is_next {
        return FlowMatch::Ended;
    }
    if packet.translated {
        // The packet, or the next one, takes another source port.
        let translation = batch.translations[i];
        let end = (translation.address, translation.port);
        context.bindings.remove(&forward_key(context, packet, batch.client_port(i), end));
    }
    if may_have_other_port(batch, i) {
        return FlowMatch::Collides;
    }
    batch.drop(i, DropReason::ServiceCollision);
    FlowMatch::Dropped
}

/// Whether the flow in `slot` is by way of the virtual address of a client's packet: another Service may have the same
/// backend.
fn has_virtual_end(batch: &Batch, i: usize, context: &Context<'_>, slot: Slot) -> bool {
    is_checked(batch, i) || batch.virtual_end(i) == Some(context.conntrack.virtual_end(slot))
}

/// Whether the binding of a client's packet was compared with its flow in this second. A flow with another source port is compared
/// with each packet: its key may be that of another port of the client meanwhile.
#[inline(always)]
fn is_checked(batch: &Batch, i: usize) -> bool {
    batch.translations[i].is_bound && batch.client_ports[i] == 0
}

/// Marks a packet of a translated flow that does not change the flow: a client's, if its binding was checked in this second,
/// or a reply. Returns false, and does nothing, for any other packet.
#[inline(always)]
pub(in crate::dataplane::pipeline) fn translate_plain(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    by_client: bool,
    slot: Slot,
) -> bool {
    match (by_client, batch.packets[i].translated) {
        (true, true) => is_checked(batch, i),
        (false, false) => {
            mark_reply(batch, i, context, slot);
            true
        }
        _ => false,
    }
}

/// Marks a reply of the flow in `slot` for translation to the flow's virtual address.
#[inline(always)]
fn mark_reply(batch: &mut Batch, i: usize, context: &Context<'_>, slot: Slot) {
    let FrontEnd { address, port, client_port } = context.conntrack.virtual_end(slot);
    batch.translate(i, Translation::new(TranslationKind::Reply, true, (address, port)), client_port);
}

/// Marks an ICMP error about a packet of a translated flow.
#[cold]
fn match_error(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    flow: &PacketFlow,
    slot: Slot,
    (by_client, is_translated): (bool, bool),
) -> FlowMatch {
    let packet = &batch.packets[i];
    if !is_translated {
        // The flow between the same ends has no virtual address.
        batch.drop(i, DropReason::ServiceCollision);
        return FlowMatch::Dropped;
    }
    if by_client && packet.translated {
        // About a packet that the backend has sent as a client: it went to another address.
        batch.drop(i, DropReason::ServiceCollision);
        return FlowMatch::Dropped;
    }
    if !by_client {
        // About a reply: the stage `translate` has found the binding, or the reporter knows the backend.
        return FlowMatch::Same;
    }
    let FrontEnd { address, port, client_port } = context.conntrack.virtual_end(slot);
    let backend = if flow.from_low { flow.key.high() } else { flow.key.low() };
    let is_from_backend = packet.src == backend;
    let kind = TranslationKind::ErrorToClient;
    batch.translate(i, Translation::new(kind, is_from_backend, (address, port)), client_port);
    FlowMatch::Same
}

/// The quoted packet of an ICMP error to a virtual address, as the backend has sent it: `packet` is the error.
pub(in crate::dataplane::pipeline) fn translate_quoted(packet: &Packet, quoted: &mut Packet) {
    if packet.translated {
        (quoted.src, quoted.src_port) = (packet.dst, packet.dst_port);
        quoted.dst_port = packet.src_port;
    }
}
