//! Routing: the adjacency of a packet, and the answers where it has none.

use super::batch::{Batch, Disposition};
use super::context::Context;
use super::gateway::{self, IcmpError};
use super::parse::virtio_header::transport_header_bytes;
use crate::dataplane::conntrack::Side;
use crate::dataplane::fib::next_hop::{Adjacency, Hop};
use crate::dataplane::neighbor::solicit::RateLimits;
use crate::dataplane::packet::{Kind, Packet};
use crate::dataplane::{DropReason, PortKind};
use crate::ids::PortId;
use crate::limits::PORT_SEGMENTS_MAX;
use crate::net::address::{self, Address};
use crate::net::flow::Protocol;
use crate::net::mac::Mac;
use crate::net::virtio_net::VirtioNet;

/// Routes packet `i` by its destination, and sets its adjacency. Returns the number of the hop, if there is a
/// route.
#[inline(always)]
pub(in crate::dataplane) fn route(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    rate_limits: &mut RateLimits,
) -> Option<u32> {
    let number = context.snapshot.hop_number(batch.packets[i].dst);
    route_by(batch, i, context, rate_limits, number);
    number
}

/// Whether packet `i` of a flow goes to its initiator. `sender`: the side of the packet, or of the one that it is an error about.
#[inline(always)]
pub(super) fn goes_back(batch: &Batch, i: usize, sender: Side) -> bool {
    (sender == Side::Responder) != (batch.packets[i].kind == Kind::IcmpError)
}

/// Routes packet `i` to the initiator of a flow whose first packet came by the port `owner`. One that the node's kernel has
/// forwarded goes back by the host port, whatever the route to its source: the kernel may have translated the flow.
#[inline(never)]
pub(in crate::dataplane) fn route_back(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    rate_limits: &mut RateLimits,
    owner: Option<PortId>,
) -> Option<u32> {
    let snapshot = context.snapshot;
    let host = owner.and_then(|owner| snapshot.port(owner)).filter(|port| port.kind == PortKind::Host);
    let is_v4 = batch.packets[i].is_v4;
    let node = host.and_then(|host| host.addresses().iter().find(|own| address::is_v4(**own) == is_v4));
    match node.and_then(|node| snapshot.hop_number(*node)) {
        Some(number) => {
            route_by(batch, i, context, rate_limits, Some(number));
            Some(number)
        }
        None => route(batch, i, context, rate_limits),
    }
}

/// Sets the adjacency of packet `i` to that of a hop.
#[inline(always)]
pub(super) fn route_by(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    rate_limits: &mut RateLimits,
    number: Option<u32>,
) {
    let packet = &batch.packets[i];
    match number.and_then(|number| context.snapshot.adjacency(number)) {
        Some(adjacency) if adjacency.takes(packet) && !is_link_scoped(packet) => {
            batch.adjacencies[i] = adjacency;
        }
        _ => route_slow(batch, i, context, rate_limits, number),
    }
}

/// Whether a packet stays on its link: "Routers must not forward any packets with Link-Local source or
/// destination addresses to other links" (RFC 4291 section 2.5.6).
#[inline(always)]
fn is_link_scoped(packet: &Packet) -> bool {
    !packet.is_v4 && !is_routable(packet.src, packet.dst)
}

/// Whether packets between these addresses may leave their link.
#[inline(always)]
pub(in crate::dataplane) fn is_routable(src: Address, dst: Address) -> bool {
    !address::is_link_local(src) && !address::is_link_local(dst)
}

/// Routes a packet that is not forwarded at once.
#[inline(never)]
fn route_slow(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    rate_limits: &mut RateLimits,
    number: Option<u32>,
) {
    let stays = is_link_scoped(&batch.packets[i]);
    match number.map(|number| (number, context.snapshot.hop_and_adjacency(number))) {
        None | Some((_, (Hop::Nowhere, _))) => batch.drop(i, DropReason::NoRoute),
        Some((_, (Hop::Port(..), _))) if stays => batch.drop(i, DropReason::NoRoute),
        Some((_, (Hop::Gateway, _))) => {
            let frame = context.umem.data_mut(&mut batch.frames[i]);
            let is_answer = gateway::echo(frame, &batch.packets[i]);
            batch.answers[i] = is_answer;
            batch.dispositions[i] =
                if is_answer { Disposition::Consumed } else { Disposition::Dropped(DropReason::NoRoute) };
        }
        Some((_, (Hop::Port(..), adjacency))) if adjacency.mtu == 0 => batch.drop(i, DropReason::PortDown),
        Some((number, (Hop::Port(..), adjacency))) => {
            forward_via(batch, i, context, rate_limits, number, adjacency);
        }
    }
}

fn is_translated(batch: &Batch, i: usize) -> bool {
    batch.packets[i].translated || batch.external_ports[i] != 0
}

fn came_by_uplink(batch: &Batch, i: usize, context: &Context<'_>) -> bool {
    context.snapshot.port(batch.in_ports[i]).is_some_and(|port| port.kind == PortKind::Uplink)
}

/// Sets the adjacency of packet `i`, and drops the packet where the adjacency does not take it.
#[inline(always)]
pub(in crate::dataplane) fn forward_via(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    rate_limits: &mut RateLimits,
    number: u32,
    adjacency: Adjacency,
) {
    // The switch forwards no transit traffic: frames from an uplink are for this node, or of flows to Services with backends
    // elsewhere.
    if adjacency.is_uplink() && came_by_uplink(batch, i, context) && !is_translated(batch, i) {
        return batch.drop(i, DropReason::NoRoute);
    }
    let mac =
        if adjacency.mac == 0 { learned_mac(batch, i, context, number, adjacency) } else { adjacency.mac };
    let packet = &batch.packets[i];
    let mtu = usize::from(adjacency.mtu);
    let is_oversize = packet.ip_bytes() > mtu && !segments_fit(batch, i, context, mtu);
    if (packet.ttl <= 1) | (is_oversize && !note_oversize(batch, i, context, mtu)) {
        report_unforwardable(batch, i, context, rate_limits, adjacency);
    } else if mac == 0 {
        solicit(batch, i, context, rate_limits, number);
    }
    batch.adjacencies[i] = Adjacency { mac, ..adjacency };
}

/// The learned Ethernet address of the next station, for an adjacency without one; zero where it is unknown.
#[inline(never)]
fn learned_mac(batch: &mut Batch, i: usize, context: &Context<'_>, number: u32, adjacency: Adjacency) -> u64 {
    if !adjacency.is_uplink() {
        return context.neighbors.port_mac_bits(adjacency.out);
    }
    let neighbor = context.snapshot.neighbor(number, batch.packets[i].dst);
    neighbor.and_then(|(out, address)| context.neighbors.uplink_mac(out, address)).map_or(0, Mac::to_bits)
}

/// Whether each segment of packet `i` fits the MTU. False for a packet of the wire.
#[inline(never)]
fn segments_fit(batch: &Batch, i: usize, context: &Context<'_>, mtu: usize) -> bool {
    let (frame, packet) = (&batch.frames[i], &batch.packets[i]);
    context.umem.virtio_header(frame).is_some_and(|header| {
        let headers = packet.ip_header_bytes() + transport_header_bytes(packet, context.umem.data(frame));
        headers + usize::from(header.gso_size) <= mtu
    })
}

/// Has packet `i` cut into fragments, or into smaller segments of TCP. Returns false for one that no router may fragment, and for
/// datagrams that the sender's kernel has put together: each is one that would have to be fragmented.
#[cold]
#[inline(never)]
fn note_oversize(batch: &mut Batch, i: usize, context: &Context<'_>, mtu: usize) -> bool {
    if batch.packets[i].dont_fragment {
        return false;
    }
    if let Some(header) = context.umem.virtio_header(&batch.frames[i]).filter(|header| header.gso_size > 0) {
        return shorten_segments(batch, i, context, header, mtu);
    }
    let may = batch.oversize.len() < batch.oversize.capacity();
    if may {
        batch.oversize.push(i as u16);
    }
    may
}

/// Gives the segments of packet `i` a size that fits the MTU: the bytes of the stream are the same. Returns false, and does nothing,
/// for any other packet than one of TCP, and where they would be too many.
fn shorten_segments(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    header: VirtioNet,
    mtu: usize,
) -> bool {
    let (frame, packet) = (&mut batch.frames[i], &batch.packets[i]);
    let headers = packet.ip_header_bytes() + transport_header_bytes(packet, context.umem.data(frame));
    let gso_size = mtu.saturating_sub(headers) as u16;
    let header = VirtioNet { gso_size, ..header };
    let may = packet.protocol == Protocol::TCP
        && gso_size > 0
        && header.segments(packet.end.into()) <= PORT_SEGMENTS_MAX;
    if may {
        context.umem.set_virtio_header(frame, header);
    }
    may
}

/// Drops a packet that its adjacency does not take, and reports it to the sender.
#[cold]
fn report_unforwardable(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    rate_limits: &mut RateLimits,
    adjacency: Adjacency,
) {
    let (icmp_error, reason) = if batch.packets[i].ttl <= 1 {
        (IcmpError::TimeExceeded, DropReason::TtlExceeded)
    } else {
        (IcmpError::TooBig(adjacency.mtu), DropReason::TooBig)
    };
    send_icmp_error(batch, i, context, rate_limits, icmp_error);
    batch.drop(i, reason);
}

/// Drops a packet to an unresolved neighbour, and solicits that neighbour.
#[cold]
fn solicit(batch: &mut Batch, i: usize, context: &Context<'_>, rate_limits: &mut RateLimits, number: u32) {
    let Some((out, neighbor)) = context.snapshot.neighbor(number, batch.packets[i].dst) else {
        return batch.drop(i, DropReason::NoRoute);
    };
    if context.snapshot.hop_and_adjacency(number).1.is_uplink() {
        rate_limits.solicit_on_uplink(batch.in_ports[i], out, neighbor, context.now_ms);
    } else {
        rate_limits.solicit(out, neighbor, context.now_ms);
    }
    batch.drop(i, DropReason::Unresolved);
}

fn send_icmp_error(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    rate_limits: &mut RateLimits,
    icmp_error: IcmpError,
) {
    let packet = &batch.packets[i];
    // An ICMP error causes no further one, and takes nothing from the rate limit.
    if packet.kind == Kind::Flow && rate_limits.allow_icmp_error(batch.in_ports[i], context.now_ms) {
        batch.answers[i] = gateway::icmp_error(
            context.umem,
            &mut batch.frames[i],
            packet,
            (context.snapshot, batch.in_ports[i]),
            icmp_error,
        );
    }
}
