//! Bindings, and the flows in conntrack that they belong to.

use crate::dataplane::conntrack::{FrontEnd, Key, QuotaClass, Side, Slot};
use crate::dataplane::packet::Packet;
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::service::{Binding, BindingEnd, BindingKey, BindingKind, Held, SourceChoice};
use crate::ids::PortId;
use crate::limits::FRAGMENT_TIMEOUT_MS;
use crate::net::address::Address;

/// Binds `key` to an end, for a flow from the port `owner`. Returns false if there is no slot for the binding.
pub(super) fn bind(context: &Context<'_>, key: &BindingKey, to: BindingEnd, owner: PortId) -> bool {
    context.bindings.bind(key, to, owner, context.now_ms, revision(context), |held| class_of(held, context))
}

/// Number of the last change of the Services.
pub(super) fn revision(context: &Context<'_>) -> u16 {
    context.snapshot.services().map_or(0, |services| services.revision)
}

/// The flow of a packet to a virtual address, by way of this binding.
pub(super) fn flow_of_binding(context: &Context<'_>, packet: &Packet, binding: &Binding) -> Option<Slot> {
    let (translated, front_end) = translated_to(packet, &binding.to);
    translated_flow(context, &translated, front_end)
}

/// A packet to a front end as it goes to the end of a binding, and that front end.
pub(super) fn translated_to(packet: &Packet, to: &BindingEnd) -> (Packet, FrontEnd) {
    let src_port = to.source.port_of(packet.src_port);
    let client_port = if to.source == SourceChoice::OWN { 0 } else { packet.src_port };
    let front_end = FrontEnd { address: packet.dst, port: packet.dst_port, client_port, external_port: 0 };
    (Packet { src_port, dst: to.address, dst_port: to.port, ..*packet }, front_end)
}

/// Whether a datagram of the binding of a fragment may still be under way.
pub(super) fn may_have_fragments(idle_seconds: u64) -> bool {
    // A binding counts in seconds of 1,024 ms.
    idle_seconds * 1024 <= u64::from(FRAGMENT_TIMEOUT_MS)
}

/// The flow of a packet that has been sent to a front end, by way of that front end.
fn translated_flow(context: &Context<'_>, translated: &Packet, virtual_end: FrontEnd) -> Option<Slot> {
    let (key, from_low) = Key::of(translated);
    let slot = context.conntrack.look_up(&key, context.conntrack.hash(&key))?;
    is_by_way_of(context, slot, from_low, virtual_end).then_some(slot)
}

/// Whether the flow in a slot is translated, and the packets of this end of its key are those to this front end.
pub(super) fn is_by_way_of(context: &Context<'_>, slot: Slot, from_low: bool, virtual_end: FrontEnd) -> bool {
    let flow_word = context.conntrack.entry(slot).flow_word(from_low);
    flow_word.is_translated()
        && flow_word.side(from_low) == Side::Initiator
        && context.conntrack.virtual_end(slot).is_same_front(&virtual_end)
}

/// Class of the flow that a binding belongs to: ended where there is none.
#[cold]
fn class_of(held: &Held, context: &Context<'_>) -> QuotaClass {
    match held.kind {
        BindingKind::Forward => {
            let ends = [(held.key.low(), held.key.low_port()), (held.key.high(), held.key.high_port())];
            let [client, virtual_end] = if held.from_low { ends } else { [ends[1], ends[0]] };
            if client.0 == held.to.address {
                // A pod that reaches itself has no flow.
                return QuotaClass::Unassured;
            }
            let ((src, src_port), (dst, dst_port)) = (client, virtual_end);
            let (protocol, is_v4) = (held.key.protocol(), held.key.is_v4());
            let packet = Packet { protocol, is_v4, src_port, dst_port, src, dst, ..Packet::default() };
            let (translated, front_end) = translated_to(&packet, &held.to);
            let flow = translated_flow(context, &translated, front_end);
            let owner = flow.and_then(|slot| context.conntrack.entry(slot).quota_owner());
            owner.map_or(QuotaClass::Ended, |owner| owner.class)
        }
        BindingKind::Fragment | BindingKind::ReplyFragment | BindingKind::ReturnFragment
            if !may_have_fragments(held.idle_seconds) =>
        {
            QuotaClass::Ended
        }
        _ => QuotaClass::Unassured,
    }
}

/// Key of the binding of a client's packet, which it has sent from this port to this virtual address and port, to its backend.
#[inline]
pub(in crate::dataplane::pipeline) fn forward_key(
    context: &Context<'_>,
    packet: &Packet,
    src_port: u16,
    (dst, dst_port): (Address, u16),
) -> BindingKey {
    let (key, from_low) = Key::of(&Packet { src_port, dst_port, dst, ..*packet });
    BindingKey { kind: BindingKind::Forward, key, from_low, hash: context.conntrack.hash(&key) }
}
