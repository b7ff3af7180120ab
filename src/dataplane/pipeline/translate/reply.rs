//! Packets of known flows against the translation of these.

use super::bind::forward_key;
use super::collision::may_have_other_port;
use super::masquerade::{is_masqueraded_only, mark};
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
    let front_end = if is_translated { context.conntrack.virtual_end(slot) } else { FrontEnd::default() };
    let is_of_flow = is_translated
        && match (by_client, packet.translated) {
            (true, true) => has_virtual_end(batch, i, &front_end),
            (true, false) => is_masqueraded_only(&front_end, packet),
            // A reply to a masqueraded flow comes to its external port.
            (false, false) => batch.external_ports[i] == front_end.external_port,
            (false, true) => false,
        };
    let is_next =
        packet.opens_connection() && context.conntrack.entry(slot).state().class() == QuotaClass::Ended;
    if is_of_flow {
        if by_client {
            if front_end.external_port != 0 {
                mark(batch, i, front_end.external_port);
            }
            return FlowMatch::Same;
        }
        if is_next {
            return FlowMatch::Ended;
        }
        mark_reply(batch, i, front_end);
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

/// Whether a flow is by way of the virtual address of a client's packet: another Service may have the same backend.
fn has_virtual_end(batch: &Batch, i: usize, front_end: &FrontEnd) -> bool {
    is_checked(batch, i) || batch.virtual_end(i).is_some_and(|end| end.is_same_front(front_end))
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
    let is_translated = batch.packets[i].translated;
    if by_client && is_translated && context.external_ports.is_none() {
        return is_checked(batch, i);
    }
    let front_end = context.conntrack.virtual_end(slot);
    match (by_client, is_translated) {
        (true, true) if front_end.external_port == 0 => is_checked(batch, i),
        (true, false) if is_masqueraded_only(&front_end, &batch.packets[i]) => {
            mark(batch, i, front_end.external_port);
            true
        }
        (false, false) if batch.external_ports[i] == front_end.external_port => {
            mark_reply(batch, i, front_end);
            true
        }
        _ => false,
    }
}

/// Marks a reply of the flow with this front end for translation to it.
#[inline(always)]
fn mark_reply(batch: &mut Batch, i: usize, front_end: FrontEnd) {
    let FrontEnd { address, port, client_port, external_port } = front_end;
    let translation = Translation::new(TranslationKind::Reply, true, (address, port));
    if external_port == 0 {
        return batch.translate(i, translation, client_port);
    }
    // The list of translated packets has it. A flow to the responder's own address changes nothing but the destination.
    let packet = &batch.packets[i];
    if client_port != 0 || (address, port) != (packet.src, packet.src_port) {
        (batch.translations[i], batch.client_ports[i]) = (translation, client_port);
    }
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
    let FrontEnd { address, port, client_port, external_port } = context.conntrack.virtual_end(slot);
    if !by_client {
        // About a reply: the stage `translate` has found the binding, or the reporter knows the backend.
        if external_port != 0 {
            mark_error_to_outside(batch, i, external_port);
        }
        return FlowMatch::Same;
    }
    if batch.external_ports[i] != external_port {
        // About a packet that has not left with these ends.
        batch.drop(i, DropReason::InvalidState);
        return FlowMatch::Dropped;
    }
    let backend = if flow.from_low { flow.key.high() } else { flow.key.low() };
    let is_from_backend = packet.src == backend;
    let translation = Translation::new(TranslationKind::ErrorToClient, is_from_backend, (address, port));
    if external_port == 0 {
        batch.translate(i, translation, client_port);
    } else {
        (batch.translations[i], batch.client_ports[i]) = (translation, client_port);
    }
    FlowMatch::Same
}

/// Marks an ICMP error of a pod about a reply to its masqueraded flow.
#[cold]
fn mark_error_to_outside(batch: &mut Batch, i: usize, external_port: u16) {
    let packet = &batch.packets[i];
    batch.external_ports[i] = external_port;
    if !packet.translated {
        let translation = Translation::new(TranslationKind::ErrorToOutside, true, (packet.dst, 0));
        batch.translate(i, translation, 0);
    }
}

/// The packet that ICMP error `i` quotes, to a virtual address or an external port, as the backend or the pod has sent it.
pub(in crate::dataplane::pipeline) fn translate_quoted(batch: &Batch, i: usize, quoted: &mut Packet) {
    let packet = &batch.packets[i];
    if packet.translated || batch.external_ports[i] != 0 {
        (quoted.src, quoted.src_port) = (packet.dst, packet.dst_port);
        quoted.dst_port = packet.src_port;
    }
}
