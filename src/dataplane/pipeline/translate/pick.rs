//! The backend of a new flow.

use super::destination::{refuse, refuse_other, set_destination};
use super::hairpin::turn_reply_back;
use crate::dataplane::DropReason;
use crate::dataplane::PortKind;
use crate::dataplane::conntrack::{Key, QuotaClass};
use crate::dataplane::fib::next_hop::Hop;
use crate::dataplane::packet::Packet;
use crate::dataplane::pipeline::batch::Batch;
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::service::{BackendsFor, BindingKey, BindingKind, Pick, ServiceFib, ServiceMatch};
use crate::net::address::Address;

/// Backends that are tried for one flow.
const TRIES: usize = 64;

/// Chooses the backend of a packet to a virtual address that no binding has one for.
#[inline(never)]
pub(super) fn pick_backend(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    services: &ServiceFib,
    key: &BindingKey,
) {
    let packet = &batch.packets[i];
    let is_outside = is_outside(batch, i, context);
    let found = services.find(packet.dst, packet.protocol, packet.dst_port, is_outside);
    if context.bindings.has_hairpins() && turn_reply_back(batch, i, context, key) {
        return;
    }
    let Some(found) = found else { return refuse_other(batch, i, services) };
    let packet = &batch.packets[i];
    let from = context.snapshot.port(batch.in_ports[i]);
    // Addresses inside the cluster are for pods and the node.
    if is_outside && found.backends == BackendsFor::Cluster {
        return;
    }
    // A reply from another node would not come by the switch, which alone can translate it back.
    let must_be_local = from.is_none_or(|from| !from.is_pod());
    let Some(first) = preferred(context, packet, &found, key, must_be_local) else {
        if found.entry.count(found.backends, packet.is_v4, false) > 0 {
            return batch.drop(i, DropReason::ServiceRemote);
        }
        return refuse(batch, i, DropReason::ServiceNoBackend);
    };
    match usable(context, packet, &found, first, must_be_local) {
        Ok(pick) => set_destination(batch, i, context, (pick.address, pick.port), false),
        Err(DropReason::ServiceNoBackend) => refuse(batch, i, DropReason::ServiceNoBackend),
        Err(reason) => batch.drop(i, reason),
    }
}

/// The backend that the client's affinity, or the hash of the flow, prefers.
fn preferred(
    context: &Context<'_>,
    packet: &Packet,
    found: &ServiceMatch<'_>,
    key: &BindingKey,
    must_be_local: bool,
) -> Option<Pick> {
    let pick = |hash| found.entry.pick(found.backends, packet.is_v4, must_be_local, hash);
    let Some(seconds) = found.entry.affinity_seconds else {
        return pick(key.hash);
    };
    // Without a binding the client's address decides, so that an evicted one changes nothing.
    let client = affinity_key(context, packet, packet.dst, packet.dst_port);
    let kept = context.bindings.find(&client).filter(|kept| {
        // A binding counts in seconds of 1,024 ms.
        kept.idle_seconds(context.now_ms) * 1024 <= u64::from(seconds) * 1000
    });
    let kept = kept.and_then(|kept| found.entry.find(found.backends, packet.is_v4, kept.address, kept.port));
    kept.filter(|kept| !must_be_local || is_local(context, kept, found.backends))
        .or_else(|| pick(client.hash))
}

/// Key of the affinity of a client to a virtual address.
pub(super) fn affinity_key(
    context: &Context<'_>,
    packet: &Packet,
    address: Address,
    port: u16,
) -> BindingKey {
    let client = Packet { src_port: 0, dst: address, dst_port: port, ..*packet };
    let (key, from_low) = Key::of(&client);
    BindingKey { kind: BindingKind::Affinity, key, from_low, hash: context.conntrack.hash(&key) }
}

/// The first backend from `pick` on that the flow can have: it is local where it must be, and no other Service has the
/// client's port bound to it.
fn usable(
    context: &Context<'_>,
    packet: &Packet,
    found: &ServiceMatch<'_>,
    mut pick: Pick,
    must_be_local: bool,
) -> Result<Pick, DropReason> {
    let tries = found.entry.count(found.backends, packet.is_v4, must_be_local).min(TRIES);
    let mut reason = DropReason::ServiceNoBackend;
    for _ in 0..tries {
        if must_be_local && !is_local(context, &pick, found.backends) {
            reason = DropReason::ServiceRemote;
        } else if is_taken(context, packet, &pick) {
            reason = DropReason::ServiceCollision;
        } else if !(must_be_local && pick.address == packet.src) {
            return Ok(pick);
        }
        // Pods alone get their own packets back.
        let Some(next) = found.entry.next(found.backends, packet.is_v4, must_be_local, &pick) else {
            break;
        };
        pick = next;
    }
    Err(reason)
}

/// Whether a packet came by an uplink.
pub(super) fn is_outside(batch: &Batch, i: usize, context: &Context<'_>) -> bool {
    context.snapshot.port(batch.in_ports[i]).is_some_and(|port| port.kind == PortKind::Uplink)
}

/// Whether replies of a backend come by the switch. The node's own stack answers clients outside by its own routes.
fn is_local(context: &Context<'_>, pick: &Pick, backends: BackendsFor) -> bool {
    match context.snapshot.hop(pick.address) {
        Some(Hop::Port(port, _)) => context.snapshot.port(port).is_some_and(|port| match backends {
            BackendsFor::Outside => port.is_pod(),
            BackendsFor::Cluster | BackendsFor::ShortCircuit => port.kind != PortKind::Uplink,
        }),
        _ => false,
    }
}

/// Whether the client's port has a flow to this backend by way of another virtual address. One that has ended gives way to
/// the connection that the packet opens.
fn is_taken(context: &Context<'_>, packet: &Packet, pick: &Pick) -> bool {
    let key = reverse_key(context, packet, pick);
    // If policy admits the flow, its binding is written there.
    context.bindings.prefetch(key.hash);
    let is_to_another = context
        .bindings
        .find_by_tag(&key)
        .is_some_and(|binding| (binding.address, binding.port) != (packet.dst, packet.dst_port));
    is_to_another
        && context.conntrack.look_up(&key.key, key.hash).is_some_and(|slot| {
            let has_ended = context.conntrack.entry(slot).state().class() == QuotaClass::Ended;
            !(has_ended && packet.opens_connection())
        })
}

/// Key of the replies of a backend to the client.
fn reverse_key(context: &Context<'_>, packet: &Packet, pick: &Pick) -> BindingKey {
    let translated = Packet { dst: pick.address, dst_port: pick.port, ..*packet };
    let (key, from_low) = Key::of(&translated);
    BindingKey { kind: BindingKind::Reverse, key, from_low, hash: context.conntrack.hash(&key) }
}
