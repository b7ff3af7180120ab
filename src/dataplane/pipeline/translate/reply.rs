//! Packets of known flows against the translation of these.

use super::bind::{forward_key, revision};
use crate::dataplane::DropReason;
use crate::dataplane::conntrack::{Entry, FlowWord, PacketFlow, QuotaClass, Side};
use crate::dataplane::packet::{Kind, Packet};
use crate::dataplane::pipeline::batch::Batch;
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::service::{BindingKey, Translation, TranslationKind};
use crate::net::address::Address;

/// Whether a packet belongs to the flow that its key names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::dataplane::pipeline) enum FlowMatch {
    /// It does.
    Same,
    /// The flow has ended, and the packet opens another one under the same key, with another translation.
    Ended,
    /// The packet is dropped.
    Dropped,
}

/// Compares packet `i` with the flow of its key, and marks replies and ICMP errors of a translated flow for translation. A
/// client may reach a backend by its own address and by a virtual one from the same port: these are two flows with one key,
/// of which the first one has it.
#[inline]
pub(in crate::dataplane::pipeline) fn match_known_flow(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    flow: &PacketFlow,
    (entry, flow_word): (&Entry, FlowWord),
) -> FlowMatch {
    let is_translated = flow_word.is_translated();
    if !is_translated && !batch.packets[i].translated {
        return FlowMatch::Same;
    }
    match_translated(batch, i, context, flow, (entry, flow_word))
}

#[inline(never)]
fn match_translated(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    flow: &PacketFlow,
    (entry, flow_word): (&Entry, FlowWord),
) -> FlowMatch {
    let packet = &batch.packets[i];
    let by_client = flow_word.side(flow.from_low) == Side::Initiator;
    let is_translated = flow_word.is_translated();
    if packet.kind == Kind::IcmpError {
        return match_error(batch, i, context, flow, (by_client, is_translated));
    }
    if is_translated && by_client == packet.translated {
        return if by_client {
            match_virtual_end(batch, i, context, flow, entry)
        } else {
            translate_reply(batch, i, context, flow, entry)
        };
    }
    if entry.state().class() == QuotaClass::Ended && packet.opens_connection() {
        return FlowMatch::Ended;
    }
    batch.drop(i, DropReason::ServiceCollision);
    FlowMatch::Dropped
}

/// Compares the virtual address of a client's packet with that of its flow: another Service may have the same backend.
fn match_virtual_end(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    flow: &PacketFlow,
    entry: &Entry,
) -> FlowMatch {
    let (packet, translation) = (&batch.packets[i], batch.translations[i]);
    // The packet of an ended flow that opens the next one binds it anew.
    if translation.is_bound || entry.state().class() == QuotaClass::Ended && packet.opens_connection() {
        return FlowMatch::Same;
    }
    let sent_to = (translation.address, translation.port);
    let reverse = BindingKey::reverse(&flow.key, flow.from_low, flow.hash);
    if context.bindings.find(&reverse).is_none_or(|binding| (binding.address, binding.port) == sent_to) {
        return FlowMatch::Same;
    }
    // The next packet takes another backend.
    context.bindings.remove(&forward_key(context, packet, sent_to));
    batch.drop(i, DropReason::ServiceCollision);
    FlowMatch::Dropped
}

/// Marks a reply for translation to the virtual address that the client knows.
fn translate_reply(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    flow: &PacketFlow,
    entry: &Entry,
) -> FlowMatch {
    let packet = &batch.packets[i];
    if entry.state().class() == QuotaClass::Ended && packet.opens_connection() {
        return FlowMatch::Ended;
    }
    if !mark_reply(batch, i, context, flow) {
        batch.drop(i, DropReason::InvalidState);
        return FlowMatch::Dropped;
    }
    FlowMatch::Same
}

/// Marks a packet of a translated flow that does not change the flow: a client's, if its bindings were checked in this second,
/// or a reply. Returns false, and does nothing, for any other packet.
#[inline(always)]
pub(in crate::dataplane::pipeline) fn translate_plain(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    flow: &PacketFlow,
    flow_word: FlowWord,
) -> bool {
    let by_client = flow_word.side(flow.from_low) == Side::Initiator;
    match (by_client, batch.packets[i].translated) {
        (true, true) => batch.translations[i].is_bound,
        (false, false) => mark_reply(batch, i, context, flow),
        _ => false,
    }
}

/// Marks a reply for translation to its virtual address. Returns false if the flow has none.
#[inline(always)]
fn mark_reply(batch: &mut Batch, i: usize, context: &Context<'_>, flow: &PacketFlow) -> bool {
    let Some((address, port)) = virtual_end(context, flow, !flow.from_low) else { return false };
    batch.translations[i] = Translation { kind: TranslationKind::Reply, is_bound: true, address, port };
    batch.translated.push(i as u16);
    true
}

/// The virtual address of a translated flow, whose client is the lower end or not.
fn virtual_end(context: &Context<'_>, flow: &PacketFlow, client_is_low: bool) -> Option<(Address, u16)> {
    let binding = context.bindings.find(&BindingKey::reverse(&flow.key, client_is_low, flow.hash))?;
    context.bindings.refresh(&binding, context.now_ms, revision(context));
    Some((binding.address, binding.port))
}

/// Marks an ICMP error about a packet of a translated flow.
#[cold]
fn match_error(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    flow: &PacketFlow,
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
    let Some((address, port)) = virtual_end(context, flow, flow.from_low) else {
        batch.drop(i, DropReason::InvalidState);
        return FlowMatch::Dropped;
    };
    let backend = if flow.from_low { flow.key.high() } else { flow.key.low() };
    let is_from_backend = packet.src == backend;
    let kind = TranslationKind::ErrorToClient;
    batch.translations[i] = Translation { kind, is_bound: is_from_backend, address, port };
    batch.translated.push(i as u16);
    FlowMatch::Same
}

/// The quoted packet of an ICMP error to a virtual address, as the backend has sent it: `packet` is the error.
pub(in crate::dataplane::pipeline) fn translate_quoted(packet: &Packet, quoted: &mut Packet) {
    if packet.translated {
        (quoted.src, quoted.src_port) = (packet.dst, packet.dst_port);
    }
}
