//! The backend of a new flow.

use super::collision::{is_taken, other_source};
use super::destination::{refuse, refuse_other, set_destination};
use super::hairpin::turn_reply_back;
use crate::dataplane::DropReason;
use crate::dataplane::PortKind;
use crate::dataplane::conntrack::Key;
use crate::dataplane::fib::next_hop::Hop;
use crate::dataplane::packet::Packet;
use crate::dataplane::pipeline::batch::Batch;
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::service::{
    BackendsFor, BindingEnd, BindingKey, BindingKind, Choice, Pick, PlaceId, ServiceFib, ServiceMatch,
    Source, SourceChoice,
};
use crate::net::address::Address;

/// Backends that are tried for one flow.
const TRIES: usize = 64;

/// Preferred backend of a packet to a virtual address.
#[derive(Clone, Copy)]
pub(super) struct Preferred {
    place: PlaceId,
    backends: BackendsFor,
    must_be_local: bool,
    pick: Pick,
    /// Hash of the key of the flow to it.
    hash: u64,
}

/// Finds the preferred backend of a packet to a virtual address that no binding has one for, and starts to load its flows.
/// Decides on a packet that has none.
#[inline]
pub(super) fn prefer_backend(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    services: &ServiceFib,
    key: &BindingKey,
    found: Option<ServiceMatch<'_>>,
) -> Option<Preferred> {
    if context.bindings.has_hairpins() && turn_reply_back(batch, i, context, key) {
        return None;
    }
    let Some(found) = found else {
        refuse_other(batch, i, services);
        return None;
    };
    let packet = &batch.packets[i];
    let from = context.snapshot.port(batch.in_ports[i]);
    // Addresses inside the cluster are for pods and the node.
    if is_outside(batch, i, context) && found.backends == BackendsFor::Cluster {
        return None;
    }
    // A reply from another node would not come by the switch, which alone can translate it back, unless the flow gets the
    // node's address.
    let must_be_local = from.is_none_or(|from| !from.is_pod())
        && !(found.backends == BackendsFor::Outside && found.entry.is_carried(packet.is_v4));
    let Some(pick) = preferred(context, packet, &found, key, must_be_local) else {
        if found.entry.count(found.backends, packet.is_v4, false) > 0 {
            batch.drop(i, DropReason::ServiceRemote);
        } else {
            refuse(batch, i, DropReason::ServiceNoBackend);
        }
        return None;
    };
    let hash = hash_to(context, packet, &pick);
    context.conntrack.prefetch_tags(hash);
    Some(Preferred { place: found.place, backends: found.backends, must_be_local, pick, hash })
}

/// Makes the preferred backend of a packet its destination, or the next one that the flow can have.
#[inline]
pub(super) fn take_backend(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    services: &ServiceFib,
    preferred: &Preferred,
) {
    let (packet, backends) = (&batch.packets[i], preferred.backends);
    match usable(context, packet, services, preferred) {
        Ok((pick, source)) => {
            let choice = Choice { place: preferred.place, backends, index: pick.index as u16 };
            let to = BindingEnd { source, ..BindingEnd::new(pick.address, pick.port) };
            set_destination(batch, i, context, &to, false, Source::Choice(choice));
        }
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
        // A binding counts begun seconds of 1,024 ms. The last one may have just begun: an affinity ends a second late,
        // and none early.
        kept.idle_seconds(context.now_ms).saturating_sub(1) * 1024 < u64::from(seconds) * 1000
    });
    let kept =
        kept.and_then(|kept| found.entry.find(found.backends, packet.is_v4, kept.to.address, kept.to.port));
    kept.filter(|kept| !must_be_local || answers(context, kept, found.backends, true))
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

/// The first backend from the preferred one on that the flow can have, and the source port of the flow to it. The backend is no
/// virtual address, and local where it must be.
#[inline]
fn usable(
    context: &Context<'_>,
    packet: &Packet,
    services: &ServiceFib,
    preferred: &Preferred,
) -> Result<(Pick, SourceChoice), DropReason> {
    let entry = services.entry(preferred.place);
    let Preferred { backends, must_be_local, mut pick, mut hash, .. } = *preferred;
    let tries = entry.count(backends, packet.is_v4, must_be_local).min(TRIES);
    let mut reason = DropReason::ServiceNoBackend;
    for _ in 0..tries {
        let is_pods = !must_be_local && backends != BackendsFor::Outside;
        if !is_pods && !answers(context, &pick, backends, must_be_local) {
            reason = DropReason::ServiceRemote;
        } else if !(!is_pods && pick.address == packet.src || services.is_cluster_address(pick.address)) {
            match free_source(context, packet, &pick, hash) {
                Some(source) => return Ok((pick, source)),
                None => reason = DropReason::ServiceCollision,
            }
        }
        // Pods alone get their own packets back.
        let Some(next) = entry.next(backends, packet.is_v4, must_be_local, &pick) else { break };
        (pick, hash) = (next, hash_to(context, packet, &next));
    }
    Err(reason)
}

/// Whether a packet came by an uplink.
pub(super) fn is_outside(batch: &Batch, i: usize, context: &Context<'_>) -> bool {
    context.snapshot.port(batch.in_ports[i]).is_some_and(|port| port.kind == PortKind::Uplink)
}

/// Whether replies of a backend to a client that is no pod come by the switch. The node's own stack answers clients outside by
/// its own routes.
fn answers(context: &Context<'_>, pick: &Pick, backends: BackendsFor, must_be_local: bool) -> bool {
    match context.snapshot.hop(pick.address) {
        Some(Hop::Port(port, _)) => context.snapshot.port(port).is_some_and(|port| match backends {
            BackendsFor::Outside => port.is_pod() || !must_be_local && port.kind == PortKind::Uplink,
            BackendsFor::Cluster | BackendsFor::ShortCircuit => port.kind != PortKind::Uplink,
        }),
        _ => false,
    }
}

/// Hash of the key of the flow of a packet to a backend.
#[inline]
fn hash_to(context: &Context<'_>, packet: &Packet, pick: &Pick) -> u64 {
    let (key, _) = Key::of(&Packet { dst: pick.address, dst_port: pick.port, ..*packet });
    context.conntrack.hash(&key)
}

/// Source port from which a packet's flow can go to a backend: the client's own, unless a flow by way of another front end has
/// it. `hash` is that of the flow's key with the client's own port.
#[inline]
fn free_source(context: &Context<'_>, packet: &Packet, pick: &Pick, hash: u64) -> Option<SourceChoice> {
    if !context.conntrack.may_have(hash) {
        return Some(SourceChoice::OWN);
    }
    let to = BindingEnd::new(pick.address, pick.port);
    if is_taken(context, packet, &to) { other_source(context, packet, &to) } else { Some(SourceChoice::OWN) }
}
