//! Bindings, and the flows in conntrack that they belong to.

use crate::dataplane::conntrack::{Entry, Key, QuotaClass, Side};
use crate::dataplane::packet::Packet;
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::service::{Binding, BindingKey, BindingKind, Held};
use crate::ids::PortId;
use crate::limits::FRAGMENT_TIMEOUT_MS;
use crate::net::address::Address;

/// Binds `key` to an address and port, for a flow from the port `owner`. Returns false if there is no slot for the binding.
pub(super) fn bind(context: &Context<'_>, key: &BindingKey, to: (Address, u16), owner: PortId) -> bool {
    context.bindings.bind(key, to, owner, context.now_ms, revision(context), |held| class_of(held, context))
}

/// Number of the last change of the Services.
pub(super) fn revision(context: &Context<'_>) -> u16 {
    context.snapshot.services().map_or(0, |services| services.revision)
}

/// Whether conntrack has the flow of a packet to a virtual address, by way of this binding.
pub(super) fn has_flow(context: &Context<'_>, packet: &Packet, binding: &Binding) -> bool {
    let translated = Packet { dst: binding.address, dst_port: binding.port, ..*packet };
    let (key, from_low) = Key::of(&translated);
    translated_flow(context, &key, from_low).is_some()
}

/// Whether a datagram of the binding of a fragment may still be under way.
pub(super) fn may_have_fragments(idle_seconds: u64) -> bool {
    // A binding counts in seconds of 1,024 ms.
    idle_seconds * 1024 <= u64::from(FRAGMENT_TIMEOUT_MS)
}

/// The translated flow under a key, whose client is the lower end or not.
fn translated_flow<'a>(context: &Context<'a>, key: &Key, client_is_low: bool) -> Option<&'a Entry> {
    let conntrack = context.conntrack;
    let entry = conntrack.entry(conntrack.look_up(key, conntrack.hash(key))?);
    let is_its = entry.flow_word(true).is_translated() && entry.sender(client_is_low) == Side::Initiator;
    is_its.then_some(entry)
}

/// Class of the flow that a binding belongs to: ended where there is none.
#[cold]
fn class_of(held: &Held, context: &Context<'_>) -> QuotaClass {
    let of_flow = |key: &Key, client_is_low: bool| {
        let owner = translated_flow(context, key, client_is_low).and_then(Entry::quota_owner);
        owner.map_or(QuotaClass::Ended, |owner| owner.class)
    };
    match held.kind {
        BindingKind::Reverse => of_flow(&held.key, held.from_low),
        BindingKind::Forward => {
            let (low, high) =
                ((held.key.low(), held.key.low_port()), (held.key.high(), held.key.high_port()));
            let (src, src_port) = if held.from_low { low } else { high };
            let (dst, dst_port) = held.to;
            if src == dst {
                // A pod that reaches itself has no flow.
                return QuotaClass::Unassured;
            }
            let (protocol, is_v4) = (held.key.protocol(), held.key.is_v4());
            let (key, from_low) =
                Key::of(&Packet { protocol, is_v4, src_port, dst_port, src, dst, ..Packet::default() });
            of_flow(&key, from_low)
        }
        BindingKind::Fragment | BindingKind::ReplyFragment if !may_have_fragments(held.idle_seconds) => {
            QuotaClass::Ended
        }
        _ => QuotaClass::Unassured,
    }
}

/// Key of the binding of a translated packet's flow to its backend.
pub(super) fn forward_key(
    context: &Context<'_>,
    packet: &Packet,
    (dst, dst_port): (Address, u16),
) -> BindingKey {
    let (key, from_low) = Key::of(&Packet { dst_port, dst, ..*packet });
    BindingKey { kind: BindingKind::Forward, key, from_low, hash: context.conntrack.hash(&key) }
}
