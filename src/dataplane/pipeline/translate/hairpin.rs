//! Packets of a pod to itself, by way of a Service.

use super::bind::{bind, forward_key, revision};
use super::fragment_key::bind_fragments;
use crate::dataplane::DropReason;
use crate::dataplane::conntrack::Key;
use crate::dataplane::fib::effective_acls::Flow;
use crate::dataplane::fib::next_hop::Adjacency;
use crate::dataplane::fib::port::PolicyMode;
use crate::dataplane::packet::Packet;
use crate::dataplane::pipeline::batch::{Batch, Disposition};
use crate::dataplane::pipeline::context::Context;
use crate::dataplane::service::{BindingEnd, BindingKey, BindingKind, Translation, TranslationKind};
use crate::net::address::Address;

/// Sends a packet of a pod to a Service whose backend is the pod itself back to it, from the virtual address: only so the
/// pod's reply comes by the switch.
#[cold]
#[inline(never)]
pub(super) fn turn_back(batch: &mut Batch, i: usize, context: &Context<'_>, port: u16, is_bound: bool) {
    let packet = &batch.packets[i];
    let (client, virtual_end) = ((packet.src, packet.src_port), (packet.dst, packet.dst_port));
    if !may_reach_itself(batch, i, context) {
        return batch.drop(i, DropReason::UnknownPod);
    }
    if let Some(reason) = denial(batch, i, context, port) {
        return deny(batch, i, port, reason);
    }
    let packet = &batch.packets[i];
    let forward = forward_key(context, packet, client.1, virtual_end);
    let is_new = context.bindings.find(&forward).is_none();
    if !is_bound {
        context.bindings.note_hairpin();
        // The pod replies from the target port to the virtual address with the client's port.
        let seen =
            Packet { src: virtual_end.0, src_port: client.1, dst: client.0, dst_port: port, ..*packet };
        let (key, from_low) = Key::of(&seen);
        let hash = context.conntrack.hash(&key);
        let back = BindingKey { kind: BindingKind::Hairpin, key, from_low, hash };
        let owner = batch.in_ports[i];
        let [to_itself, to_client] =
            [(client.0, port), virtual_end].map(|(address, port)| BindingEnd::new(address, port));
        if !bind(context, &forward, to_itself, owner) || !bind(context, &back, to_client, owner) {
            return batch.drop(i, DropReason::TableFull);
        }
    }
    if is_new
        && context.counted_by.is_some()
        && let Some(services) = context.snapshot.services()
        && let Some(found) = services.find(virtual_end.0, packet.protocol, virtual_end.1, false)
        && let Some(pick) = found.entry.find(found.backends, packet.is_v4, client.0, port)
    {
        found.entry.count_opened(found.backends, packet.is_v4, pick.index);
    }
    send_to_itself(batch, i, context, port, TranslationKind::Hairpin, (virtual_end.0, client.1));
}

/// Sends the reply of a pod to itself back to it, from the virtual address of its Service. Returns false for any other packet.
#[cold]
#[inline(never)]
pub(super) fn turn_reply_back(batch: &mut Batch, i: usize, context: &Context<'_>, key: &BindingKey) -> bool {
    let back = BindingKey { kind: BindingKind::Hairpin, from_low: !key.from_low, ..*key };
    let Some(binding) = context.bindings.find(&back) else { return false };
    if !may_reach_itself(batch, i, context) {
        return false;
    }
    context.bindings.refresh(&binding, context.now_ms, revision(context));
    let (target, port) = (batch.packets[i].src_port, batch.packets[i].dst_port);
    if let Some(reason) = denial(batch, i, context, target) {
        batch.denied_replies.push(i as u16);
        deny(batch, i, port, reason);
        return true;
    }
    send_to_itself(batch, i, context, port, TranslationKind::Hairpin, (binding.to.address, binding.to.port));
    true
}

/// Sends a later fragment of a pod to a Service back to it, as the first fragment of its datagram.
#[cold]
pub(super) fn turn_later_fragment_back(batch: &mut Batch, i: usize, context: &Context<'_>) {
    if !may_reach_itself(batch, i, context) {
        return batch.drop(i, DropReason::UnknownPod);
    }
    let service = batch.packets[i].dst;
    send_to_itself(batch, i, context, 0, TranslationKind::Hairpin, (service, 0));
}

/// Sends an ICMP error of a pod about a packet that it has got from itself, by a Service, back to it. Returns false for any
/// other error.
#[cold]
pub(super) fn turn_error_back(batch: &mut Batch, i: usize, context: &Context<'_>, quoted: &Packet) -> bool {
    let packet = &batch.packets[i];
    if quoted.dst != packet.src || !may_reach_itself(batch, i, context) {
        return false;
    }
    let (key, from_low) = Key::of(quoted);
    let hash = context.conntrack.hash(&key);
    let found = |kind, from_low| context.bindings.find(&BindingKey { kind, key, from_low, hash });
    // The pod has sent the quoted packet from its client's port, or as a reply from its target port.
    let [src_port, service_port] = if let Some(binding) = found(BindingKind::Hairpin, from_low) {
        [quoted.src_port, binding.to.port]
    } else if let Some(binding) = found(BindingKind::Forward, !from_low)
        && binding.to.address == packet.src
    {
        [binding.to.port, quoted.dst_port]
    } else {
        return false;
    };
    let service = packet.dst;
    batch.packets[i].src_port = src_port;
    send_to_itself(batch, i, context, 0, TranslationKind::ErrorToItself, (service, service_port));
    true
}

/// Reason to drop a packet of a pod's flow to its own `target` port. Policies of the cluster apply to it (clause C16). The flow has no
/// entry in conntrack: each packet asks.
fn denial(batch: &Batch, i: usize, context: &Context<'_>, target: u16) -> Option<DropReason> {
    let port = context.snapshot.port(batch.in_ports[i])?;
    let Packet { src, protocol, .. } = batch.packets[i];
    let flow = Flow { src, dst: src, protocol, dst_port: target, by_node_socket: false };
    context.snapshot.evaluate_to_itself(&flow, port, context.counted_by)
}

/// Drops a packet of a pod to itself. Its sample names the pod as the destination.
fn deny(batch: &mut Batch, i: usize, port: u16, reason: DropReason) {
    let packet = &mut batch.packets[i];
    let translation = Translation::new(TranslationKind::Forward, false, (packet.dst, packet.dst_port));
    (packet.dst, packet.dst_port, packet.translated) = (packet.src, port, true);
    batch.translate(i, translation, 0);
    batch.drop(i, reason);
}

/// Whether the port of a packet has a pod with the packet's source address that policy does not keep closed.
fn may_reach_itself(batch: &Batch, i: usize, context: &Context<'_>) -> bool {
    context.snapshot.port(batch.in_ports[i]).is_some_and(|port| {
        port.is_pod() && port.owns(batch.packets[i].src) && port.policy_mode() != PolicyMode::Closed
    })
}

/// Returns a packet to the port that it came from, with the pod's own address and `port` as destination, and another source.
/// Later fragments of its datagram take the same way. No later stage decides on it.
fn send_to_itself(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    port: u16,
    kind: TranslationKind,
    source: (Address, u16),
) {
    if batch.packets[i].first_fragment {
        let ends = [batch.packets[i].src, batch.packets[i].dst];
        bind_fragments(batch, i, context, BindingKind::Fragment, ends, BindingEnd::new(ends[0], 0));
    }
    let packet = &mut batch.packets[i];
    let adjacency = context.snapshot.hop_number(packet.src).and_then(|hop| context.snapshot.adjacency(hop));
    let Some(adjacency) = adjacency.filter(|adjacency| adjacency.out == batch.in_ports[i]) else {
        return batch.drop(i, DropReason::NoRoute);
    };
    if packet.ttl <= 1 {
        return batch.drop(i, DropReason::TtlExceeded);
    }
    batch.adjacencies[i] = Adjacency { mac: packet.station_bits(), ..adjacency };
    (packet.dst, packet.dst_port, packet.translated) = (packet.src, port, true);
    batch.translate(i, Translation::new(kind, true, source), 0);
    batch.dispositions[i] = Disposition::Routed;
}
