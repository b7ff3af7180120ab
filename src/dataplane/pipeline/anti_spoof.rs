//! The stage `anti_spoof`: checks of addressing (BCP 38, RFC 2827: "ingress filtering").

use std::ops::Range;

use super::batch::Batch;
use super::context::Context;
use crate::dataplane::fib::port::PortView;
use crate::dataplane::fib::snapshot::Snapshot;
use crate::dataplane::packet::{Kind, Packet};
use crate::dataplane::{DropReason, PortKind};
use crate::ids::PortId;
use crate::net::address::{self, Address};

/// Drops frames that are not addressed to the switch, are not in the VLAN of their port, or have a source
/// address that does not belong to the port. Learns the Ethernet address behind each port.
pub(super) fn anti_spoof(batch: &mut Batch, context: &Context<'_>) {
    let mut start = 0;
    while start < batch.len() {
        let run = batch.run_of_port(start);
        start = run.end;
        anti_spoof_run(batch, run, context);
    }
}

/// Checks frames of one port.
fn anti_spoof_run(batch: &mut Batch, run: Range<usize>, context: &Context<'_>) {
    let port_id = batch.in_ports[run.start];
    let port = context.snapshot.port(port_id);
    let mut behind = context.neighbors.port_mac_bits(port_id);
    for i in run {
        if !batch.is_pending(i) {
            continue;
        }
        let packet = &batch.packets[i];
        let Some(port) = port else {
            // No snapshot has the port yet: nothing is known about the pod behind it.
            batch.drop(i, DropReason::Spoofed);
            continue;
        };
        if !anti_spoof_fast(packet, port)
            && let Some(reason) =
                anti_spoof_slow(packet, port_id, port, context.snapshot, batch.by_tunnel[i] | batch.waited[i])
        {
            batch.drop(i, reason);
            continue;
        }
        // Frames of the node's sockets come from the same station as others.
        let station = packet.station_bits();
        if station != behind {
            behind = context.neighbors.learn(port_id, station);
        }
    }
}

/// Whether a packet needs no further check: from the first address of the port's pod, to the switch. Nearly
/// all packets do. The check of its endpoints ([`check_packet_endpoints`]) is left to the opening of a flow.
#[inline]
fn anti_spoof_fast(packet: &Packet, port: &PortView) -> bool {
    (packet.dst_bits == port.own_mac.to_bits())
        & (packet.kind == Kind::Flow)
        & (packet.vlan == port.vlan)
        & (packet.src == port.pod_address(packet.is_v4))
}

/// The reason for which a packet may not open a flow, whatever its port.
pub(in crate::dataplane) fn check_packet_endpoints(packet: &Packet) -> Option<DropReason> {
    check_endpoints((packet.src, packet.src_port), (packet.dst, packet.dst_port))
}

/// The reason for which no flow exists between these endpoints.
pub(in crate::dataplane) fn check_endpoints(from: (Address, u16), to: (Address, u16)) -> Option<DropReason> {
    // A packet from an endpoint to itself has no direction (the "land" attack, CVE-1999-0016).
    if from == to {
        return Some(DropReason::Spoofed);
    }
    address::is_group(to.0).then_some(DropReason::Multicast)
}

#[inline(never)]
fn anti_spoof_slow(
    packet: &Packet,
    port_id: PortId,
    port: &PortView,
    snapshot: &Snapshot,
    by_tunnel: bool,
) -> Option<DropReason> {
    if packet.vlan != port.vlan {
        return Some(DropReason::Vlan);
    }
    let is_to_us = packet.dst_bits == port.own_mac.to_bits();
    if !is_to_us && !packet.dst_mac().is_group() {
        return Some(DropReason::NotForUs);
    }
    match packet.kind {
        // The stage `deliver_locally` checks their sender.
        Kind::Arp | Kind::LinkLocal => return None,
        Kind::Flow | Kind::IcmpError | Kind::LaterFragment => {}
    }
    let is_from_here = snapshot.may_send(port, port_id, packet.src);
    let is_from_link = || address::is_link_local(packet.src) && address::is_link_local(packet.dst);
    let is_outside_tunnel =
        !by_tunnel && port.kind == PortKind::Uplink && snapshot.is_behind_tunnel(packet.src);
    if !is_from_here && !is_from_link() || is_outside_tunnel {
        return Some(DropReason::Spoofed);
    }
    check_packet_endpoints(packet).or((!is_to_us).then_some(DropReason::Multicast))
}
