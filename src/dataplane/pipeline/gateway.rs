//! The gateway responder: answers of the switch to stations.
//!
//! The switch is the gateway of every pod. It answers ARP requests and neighbour solicitations for every
//! address that is not the asking pod's own, so that a pod sends all of its traffic to it. It answers ICMP
//! echo requests to its own addresses, and reports packets that it cannot forward to their sender (RFC 1812
//! section 4.3, RFC 4443). An answer is written into the frame of the request, which then leaves by the port
//! that it came from.

pub(super) mod reject;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::batch::{Batch, Disposition};
use super::context::Context;
use crate::dataplane::fib::next_hop::Hop;
use crate::dataplane::fib::port::PortView;
use crate::dataplane::fib::snapshot::Snapshot;
use crate::dataplane::packet::{Kind, Packet};
use crate::dataplane::{DropReason, PortKind};
use crate::ids::PortId;
use crate::net::address::{Address, from_v4, is_group, is_link_local, is_v4, unpack};
use crate::net::checksum::{Sum, pseudo_header_of};
use crate::net::flow::Protocol;
use crate::net::mac::Mac;
use crate::net::{arp, ethernet, icmp, ipv4, ipv6};
use crate::xdp::{Frame, Umem};

/// Hop limit of neighbour discovery: 255, so that "the packet could not possibly have been forwarded by a
/// router" (RFC 4861 section 7.1).
const NEIGHBOR_HOP_LIMIT: u8 = 255;
/// TTL of other packets of the switch (RFC 1700).
const TTL: u8 = 64;
/// Largest IPv4 packet of an ICMP error, "as much of the original datagram as possible without the length of
/// the ICMP datagram exceeding 576 bytes" (RFC 1812 section 4.3.2.3); largest IPv6 packet, the minimum MTU
/// (RFC 4443 section 2.4).
const ERROR_BYTES_MAX_V4: usize = 576;
const ERROR_BYTES_MAX_V6: usize = 1280;

/// Flags of an advertisement: Router, Solicited, Override (RFC 4861 section 4.4).
const ADVERTISEMENT_FLAGS: u8 = 0xe0;

/// The stage `deliver_locally`: answers ARP and neighbour discovery, and consumes their frames. Leaves later
/// fragments to the stage `fragments`.
pub(super) fn deliver_locally(batch: &mut Batch, context: &Context<'_>) {
    for i in 0..batch.len() {
        if !batch.is_pending(i) {
            continue;
        }
        let packet = &batch.packets[i];
        let Some(port) = context.snapshot.port(batch.in_ports[i]) else { continue };
        let answer = match packet.kind {
            // The kernel answers for the NIC, and the XDP program passes these frames to it.
            Kind::Arp | Kind::LinkLocal if port.kind == PortKind::Uplink => Some(false),
            Kind::Arp => arp(context.umem.data_mut(&mut batch.frames[i]), packet, port, context.snapshot),
            Kind::LinkLocal => link_local(context.umem, &mut batch.frames[i], packet, port, context.snapshot),
            Kind::LaterFragment => {
                batch.dispositions[i] = Disposition::Held;
                continue;
            }
            Kind::Flow | Kind::IcmpError => continue,
        };
        match answer {
            Some(is_answer) => {
                batch.dispositions[i] = Disposition::Consumed;
                batch.answers[i] = is_answer;
            }
            None => batch.drop(i, DropReason::Spoofed),
        }
    }
}

/// Answers an ARP packet of the station behind `port`. Returns whether the frame holds an answer; `None`
/// where the station uses a sender address that is not its own.
pub(crate) fn arp(frame: &mut [u8], packet: &Packet, port: &PortView, snapshot: &Snapshot) -> Option<bool> {
    let l3 = usize::from(packet.l3);
    let Some(message) = arp::parse(&frame[l3..]) else { return Some(false) };
    let sender = from_v4(message.sender.into());
    let owns_sender = port.owns(sender) || !port.is_pod();
    if !message.sender.is_unspecified() && !owns_sender {
        return None;
    }
    let target = from_v4(message.target.into());
    // A station that asks for its own address, or from the unspecified one, probes for conflicts before it
    // uses the address (RFC 5227 section 2.1.1). No other station has the address.
    let is_probe = message.sender.is_unspecified() || port.owns(target) || target == sender;
    if message.operation != arp::Operation::Request || is_probe || is_group(target) {
        return Some(false);
    }
    let answer = arp::Arp {
        operation: arp::Operation::Reply,
        sender_mac: snapshot.mac,
        sender: message.target,
        target_mac: message.sender_mac,
        target: message.sender,
    };
    ethernet::set_addresses(frame, packet.src_mac(), snapshot.mac);
    answer.write(&mut frame[l3..]);
    Some(true)
}

/// Answers link-local `ICMPv6`. Returns whether the frame holds an answer; `None` where the station uses a
/// source address that is not its own.
pub(crate) fn link_local(
    umem: &Umem,
    frame: &mut Frame,
    packet: &Packet,
    port: &PortView,
    snapshot: &Snapshot,
) -> Option<bool> {
    let source_fits = packet.src == 0 || is_link_local(packet.src) || port.owns(packet.src) || !port.is_pod();
    if !source_fits {
        return None;
    }
    let bytes = umem.data_mut(frame);
    if packet.flags != icmp::v6::NEIGHBOR_SOLICITATION || packet.ttl != NEIGHBOR_HOP_LIMIT || packet.src == 0
    {
        return Some(false);
    }
    let Some(solicitation) = icmp::parse_neighbor(packet.transport(bytes)) else {
        return Some(false);
    };
    let target = Address::from(solicitation.target);
    let ours = snapshot.hop(target) == Some(Hop::Gateway);
    if port.owns(target) || is_group(target) || (is_link_local(target) && !ours) {
        return Some(false);
    }
    let l3 = usize::from(packet.l3);
    let l4 = l3 + ipv6::HEADER_BYTES;
    ethernet::set_addresses(bytes, packet.src_mac(), snapshot.mac);
    ipv6::write(
        &mut bytes[l3..],
        target,
        packet.src,
        Protocol::ICMPV6,
        icmp::NEIGHBOR_BYTES,
        NEIGHBOR_HOP_LIMIT,
    );
    let (kind, flags) = (icmp::v6::NEIGHBOR_ADVERTISEMENT, ADVERTISEMENT_FLAGS);
    if frame.set_len(l4 + icmp::NEIGHBOR_BYTES).is_err() {
        return Some(false);
    }
    let message = &mut umem.data_mut(frame)[l4..];
    icmp::write_neighbor(
        message,
        kind,
        flags,
        (solicitation.target, snapshot.mac),
        solicitation.target,
        Ipv6Addr::from(packet.src),
    );
    Some(true)
}

/// Answers an ICMP echo request to an address of the switch. Returns whether the frame holds an answer.
pub(crate) fn echo(frame: &mut [u8], packet: &Packet) -> bool {
    let (l3, l4, end) = (usize::from(packet.l3), usize::from(packet.l4), usize::from(packet.end));
    if !packet.whole {
        return false;
    }
    let reply = match (packet.protocol, packet.flags) {
        (Protocol::ICMP, icmp::v4::ECHO_REQUEST) => icmp::v4::ECHO_REPLY,
        (Protocol::ICMPV6, icmp::v6::ECHO_REQUEST) => icmp::v6::ECHO_REPLY,
        _ => return false,
    };
    // The sum over the pseudo-header does not change when source and destination change places.
    icmp::change_kind(&mut frame[l4..], reply);
    ethernet::set_addresses(frame, packet.src_mac(), packet.dst_mac());
    if is_v4(packet.src) {
        // The options of a request (record route and the like) describe a path that the reply does not take.
        let payload_bytes = end - l3 - ipv4::HEADER_BYTES;
        if l4 - l3 != ipv4::HEADER_BYTES {
            return false;
        }
        let (src, dst) = (packet.dst as u32, packet.src as u32);
        ipv4::write(&mut frame[l3..], src, dst, Protocol::ICMP, payload_bytes, TTL);
    } else {
        if l4 - l3 != ipv6::HEADER_BYTES {
            return false;
        }
        ipv6::write(&mut frame[l3..], packet.dst, packet.src, Protocol::ICMPV6, end - l4, TTL);
    }
    true
}

/// ICMP error to a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IcmpError {
    /// The TTL or hop limit ran out.
    TimeExceeded,
    /// The packet is larger than this MTU.
    TooBig(u16),
    /// Policy denies the packet.
    Prohibited,
    /// No backend serves the destination.
    PortUnreachable,
}

/// Replaces a frame by an ICMP error about its packet. Returns whether it has: an ICMP error "MUST NOT be
/// sent as the result of receiving: an ICMP error message, or a datagram destined to an IP broadcast or IP
/// multicast address, or [...] a non-initial fragment" (RFC 1122 section 3.2.2).
pub(crate) fn icmp_error(
    umem: &Umem,
    frame: &mut Frame,
    packet: &Packet,
    (snapshot, in_port): (&Snapshot, PortId),
    icmp_error: IcmpError,
) -> bool {
    if packet.kind != Kind::Flow {
        return false;
    }
    let own = if packet.is_v4 { snapshot.icmp_source_v4 } else { snapshot.icmp_source_v6 };
    // The node drops what comes from its own address. It has a route by the switch to the destination.
    let is_receivers = snapshot.port(in_port).is_some_and(|port| port.owns(own));
    let src = if is_receivers { packet.dst } else { own };
    if packet.is_v4 {
        icmp_error_v4(umem, frame, packet, src, icmp_error)
    } else {
        icmp_error_v6(umem, frame, packet, src, icmp_error)
    }
}

fn icmp_error_v4(
    umem: &Umem,
    frame: &mut Frame,
    packet: &Packet,
    src: Address,
    icmp_error: IcmpError,
) -> bool {
    let header_bytes = ipv4::HEADER_BYTES + icmp::HEADER_BYTES;
    let quote_bytes = packet.ip_bytes().min(ERROR_BYTES_MAX_V4 - header_bytes);
    let Some(l3) = wrap(umem, frame, packet, header_bytes, quote_bytes) else { return false };
    let (kind, code, mtu) = match icmp_error {
        IcmpError::TimeExceeded => (icmp::v4::TIME_EXCEEDED, 0, 0),
        IcmpError::TooBig(mtu) => (icmp::v4::UNREACHABLE, icmp::v4::FRAGMENTATION_NEEDED, mtu),
        IcmpError::Prohibited => (icmp::v4::UNREACHABLE, icmp::v4::PROHIBITED, 0),
        IcmpError::PortUnreachable => (icmp::v4::UNREACHABLE, icmp::v4::PORT_UNREACHABLE, 0),
    };
    let bytes = &mut umem.data_mut(frame)[l3..];
    let payload_bytes = icmp::HEADER_BYTES + quote_bytes;
    ipv4::write(bytes, src as u32, packet.src as u32, Protocol::ICMP, payload_bytes, TTL);
    let message = &mut bytes[ipv4::HEADER_BYTES..];
    let [high, low] = mtu.to_be_bytes();
    message[..icmp::HEADER_BYTES].copy_from_slice(&[kind, code, 0, 0, 0, 0, high, low]);
    icmp::finish(message, Sum::default());
    true
}

fn icmp_error_v6(
    umem: &Umem,
    frame: &mut Frame,
    packet: &Packet,
    src: Address,
    icmp_error: IcmpError,
) -> bool {
    let header_bytes = ipv6::HEADER_BYTES + icmp::HEADER_BYTES;
    let quote_bytes = packet.ip_bytes().min(ERROR_BYTES_MAX_V6 - header_bytes);
    let Some(l3) = wrap(umem, frame, packet, header_bytes, quote_bytes) else { return false };
    let (kind, code, mtu) = match icmp_error {
        IcmpError::TimeExceeded => (icmp::v6::TIME_EXCEEDED, 0, 0),
        IcmpError::TooBig(mtu) => (icmp::v6::PACKET_TOO_BIG, 0, mtu),
        IcmpError::Prohibited => (icmp::v6::UNREACHABLE, icmp::v6::PROHIBITED, 0),
        IcmpError::PortUnreachable => (icmp::v6::UNREACHABLE, icmp::v6::PORT_UNREACHABLE, 0),
    };
    let bytes = &mut umem.data_mut(frame)[l3..];
    let payload_bytes = icmp::HEADER_BYTES + quote_bytes;
    ipv6::write(bytes, src, packet.src, Protocol::ICMPV6, payload_bytes, TTL);
    let message = &mut bytes[ipv6::HEADER_BYTES..];
    let [high, low] = mtu.to_be_bytes();
    message[..icmp::HEADER_BYTES].copy_from_slice(&[kind, code, 0, 0, 0, 0, high, low]);
    let (src, dst) = (unpack(src), unpack(packet.src));
    icmp::finish(message, pseudo_header_of(src, dst, Protocol::ICMPV6, payload_bytes));
    true
}

/// Puts an Ethernet header and `header_bytes` free bytes before the first `quote_bytes` of the frame's IP
/// packet, which stay in place. Returns the offset of the free bytes.
fn wrap(
    umem: &Umem,
    frame: &mut Frame,
    packet: &Packet,
    header_bytes: usize,
    quote_bytes: usize,
) -> Option<usize> {
    let l3 = usize::from(packet.l3);
    let tagged = packet.vlan != 0;
    let l2_bytes = ethernet::HEADER_BYTES + if tagged { ethernet::TAG_BYTES } else { 0 };
    frame.drop_virtio_header();
    frame.truncate(l3 + quote_bytes);
    frame.grow_head(l2_bytes + header_bytes - l3).ok()?;
    let ethertype = if is_v4(packet.src) { ethernet::IPV4 } else { ethernet::IPV6 };
    write_ethernet(umem.data_mut(frame), packet.src_mac(), packet.dst_mac(), packet.vlan, ethertype);
    Some(l2_bytes)
}

fn write_ethernet(frame: &mut [u8], dst: Mac, src: Mac, vlan: u16, ethertype: u16) -> usize {
    ethernet::set_addresses(frame, dst, src);
    let mut at = 12;
    if vlan != 0 {
        frame[12..14].copy_from_slice(&ethernet::VLAN.to_be_bytes());
        frame[14..16].copy_from_slice(&vlan.to_be_bytes());
        at = 16;
    }
    frame[at..at + 2].copy_from_slice(&ethertype.to_be_bytes());
    at + 2
}

/// Writes an ARP request or a neighbour solicitation for `address` into a frame, for a port with this VLAN
/// identifier, 0 without. Returns whether it fits.
pub(crate) fn write_solicitation(
    umem: &Umem,
    frame: &mut Frame,
    address: Address,
    vlan: u16,
    snapshot: &Snapshot,
) -> bool {
    let tag_bytes = if vlan == 0 { 0 } else { ethernet::TAG_BYTES };
    let payload_bytes = match unpack(address) {
        IpAddr::V4(_) => arp::PACKET_BYTES,
        IpAddr::V6(_) => ipv6::HEADER_BYTES + icmp::NEIGHBOR_BYTES,
    };
    if frame.set_len(ethernet::HEADER_BYTES + tag_bytes + payload_bytes).is_err() {
        return false;
    }
    let bytes = umem.data_mut(frame);
    match unpack(address) {
        IpAddr::V4(target) => {
            let l3 = write_ethernet(bytes, Mac::BROADCAST, snapshot.mac, vlan, ethernet::ARP);
            let sender =
                snapshot.gateway_v4.map_or(Ipv4Addr::UNSPECIFIED, |gateway| Ipv4Addr::from(gateway as u32));
            let request = arp::Arp {
                operation: arp::Operation::Request,
                sender_mac: snapshot.mac,
                sender,
                target_mac: Mac::default(),
                target,
            };
            request.write(&mut bytes[l3..]);
        }
        IpAddr::V6(target) => {
            let (group, source) = (icmp::solicited_node(target), icmp::link_local(snapshot.mac));
            let l3 =
                write_ethernet(bytes, ethernet::ipv6_multicast(group), snapshot.mac, vlan, ethernet::IPV6);
            let (src, dst) = (source.into(), group.into());
            ipv6::write(
                &mut bytes[l3..],
                src,
                dst,
                Protocol::ICMPV6,
                icmp::NEIGHBOR_BYTES,
                NEIGHBOR_HOP_LIMIT,
            );
            let message = &mut bytes[l3 + ipv6::HEADER_BYTES..];
            icmp::write_neighbor(
                message,
                icmp::v6::NEIGHBOR_SOLICITATION,
                0,
                (target, snapshot.mac),
                source,
                group,
            );
        }
    }
    true
}

#[cfg(test)]
mod tests;
