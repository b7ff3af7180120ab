//! Flows of one client's port to one backend by way of several front ends: virtual addresses of Services, and the backend's own.
//!
//! They have one key. The first flow keeps the client's port, and each other one gets another source port, which the reply
//! loses again. A front end that is the backend's own address is no candidate of the stage `translate`: its packets are found
//! here, when the stage `advance` meets the flow of their key.

use super::bind::{forward_key, is_by_way_of, translated_to};
use crate::dataplane::DropReason;
use crate::dataplane::conntrack::{Key, PacketFlow, QuotaClass};
use crate::dataplane::packet::{Kind, Packet};
use crate::dataplane::pipeline::batch::Batch;
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::service::{
    BindingEnd, BindingKey, BindingKind, Source, SourceChoice, Translation, TranslationKind,
};
use crate::net::flow::Protocol;

/// Whether a flow by way of another front end has the key of a packet that goes to this end.
#[inline(never)]
pub(super) fn is_taken(context: &Context<'_>, packet: &Packet, to: &BindingEnd) -> bool {
    let (translated, front_end) = translated_to(packet, to);
    let (key, from_low) = Key::of(&translated);
    context.conntrack.look_up(&key, context.conntrack.hash(&key)).is_some_and(|slot| {
        let has_ended = || context.conntrack.entry(slot).state().class() == QuotaClass::Ended;
        let is_same = is_by_way_of(context, slot, from_low, front_end);
        !(is_same || packet.opens_connection() && has_ended())
    })
}

/// Another source port than the client's from which a packet can go to this end.
#[cold]
pub(super) fn other_source(context: &Context<'_>, packet: &Packet, to: &BindingEnd) -> Option<SourceChoice> {
    let is_free = |source: &SourceChoice| {
        let is_other = source.port_of(packet.src_port) != packet.src_port;
        is_other && !is_taken(context, packet, &BindingEnd { source: *source, ..*to })
    };
    SourceChoice::others().find(is_free)
}

/// Whether packet `i`, whose key another flow has, may have another source port.
pub(super) fn may_have_other_port(batch: &Batch, i: usize) -> bool {
    let packet = &batch.packets[i];
    packet.kind == Kind::Flow && packet.protocol.has_ports() && (packet.whole || packet.first_fragment)
}

/// Whether packet `i` is of a flow to no virtual address that has another source port, though no flow has the packet's own key
/// any more.
#[cold]
#[inline(never)]
pub(in crate::dataplane::pipeline) fn has_flow_from_other_port(
    batch: &Batch,
    i: usize,
    context: &Context<'_>,
    flow: &PacketFlow,
) -> bool {
    let packet = &batch.packets[i];
    if packet.translated || !may_have_other_port(batch, i) {
        return false;
    }
    let PacketFlow { key, hash, from_low, .. } = *flow;
    let binding = context.bindings.find(&BindingKey { kind: BindingKind::Forward, key, from_low, hash });
    let to = binding.map(|binding| binding.to).filter(|to| is_from_other_port(packet, to));
    to.is_some_and(|to| {
        let (key, _) = Key::of(&translated_to(packet, &to).0);
        context.conntrack.look_up(&key, context.conntrack.hash(&key)).is_some()
    })
}

/// Whether the end of a binding is the one that a packet has already, from another source port.
fn is_from_other_port(packet: &Packet, to: &BindingEnd) -> bool {
    to.source != SourceChoice::OWN && (to.address, to.port) == (packet.dst, packet.dst_port)
}

/// Gives packet `i`, whose key another flow has, the source port of its own flow, or that of a new one. Drops it if there is
/// none.
#[cold]
#[inline(never)]
pub(in crate::dataplane::pipeline) fn replace_source_port(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
) -> bool {
    let mut packet = batch.packets[i];
    if packet.translated {
        // Another flow may have taken the source port of its binding.
        packet.src_port = batch.client_port(i);
    }
    let Translation { address, port, source, .. } = batch.translations[i];
    let front_end = if packet.translated { (address, port) } else { (packet.dst, packet.dst_port) };
    let key = forward_key(context, &packet, packet.src_port, front_end);
    let bound = context.bindings.find(&key).filter(|binding| is_from_other_port(&packet, &binding.to));
    let opens = || packet.protocol == Protocol::UDP || packet.opens_connection();
    let choice = match bound {
        Some(binding) => Some(binding.to.source),
        None if opens() => {
            let sent = Packet { dst: front_end.0, dst_port: front_end.1, ..packet };
            other_source(context, &sent, &BindingEnd::new(packet.dst, packet.dst_port))
        }
        None => None,
    };
    let Some(choice) = choice else {
        batch.drop(i, DropReason::ServiceCollision);
        return false;
    };
    let source = match (bound, source) {
        (Some(binding), _) => Source::Binding(binding.place()),
        (None, Source::Choice(choice)) if packet.translated => Source::Choice(choice),
        _ => Source::Other,
    };
    let translation = Translation { source, ..Translation::new(TranslationKind::Forward, false, front_end) };
    let sent = &mut batch.packets[i];
    (sent.src_port, sent.translated) = (choice.port_of(packet.src_port), true);
    if packet.translated {
        // The list of translated packets has it.
        (batch.translations[i], batch.client_ports[i]) = (translation, packet.src_port);
    } else {
        context.bindings.note_replaced_port();
        batch.translate(i, translation, packet.src_port);
    }
    true
}
