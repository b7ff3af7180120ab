//! The stage `parse`: headers of any frame to a [`Packet`].

mod fast;
pub(super) mod virtio_header;

use self::fast::parse_fast;
use super::batch::{Batch, Disposition, prefetch_frame};
use super::context::Context;
use crate::dataplane::DropReason;
use crate::dataplane::packet::{Kind, Packet};
use crate::limits::PACKET_BYTES_MAX;
use crate::net::address::{from_v4, is_v4};
use crate::net::checksum::{is_folded, pseudo_v4, pseudo_v6};
use crate::net::flow::Protocol;
use crate::net::{be16, ethernet, icmp, ipv4, ipv6, sctp, tcp, udp};
use crate::xdp::{Frame, Umem};

/// Parses the frames of the batch.
pub(super) fn parse(batch: &mut Batch, context: &Context<'_>) {
    let umem = context.umem;
    let Batch { frames, packets, dispositions, has_fragments, has_others, .. } = batch;
    (*has_fragments, *has_others) = (false, false);
    for (i, ((frame, packet), disposition)) in
        frames.iter().zip(packets.iter_mut()).zip(dispositions.iter_mut()).enumerate()
    {
        prefetch_frame(frames, i, umem);
        if !parse_fast(umem.data(frame), frame.len(), packet) {
            if let Some(reason) = parse_slow(umem, frame, packet) {
                *disposition = Disposition::Dropped(reason);
            }
            *has_fragments |= !packet.whole;
            *has_others |= packet.kind != Kind::Flow;
        }
    }
}

#[inline(never)]
fn parse_slow(umem: &Umem, frame: &Frame, packet: &mut Packet) -> Option<DropReason> {
    let failure = parse_frame(umem.data(frame), frame.len(), packet);
    if frame.is_oversized() { Some(DropReason::Oversized) } else { failure }
}

/// Parses any frame into `packet`, and returns the reason to drop it, if there is one. `head` is its first
/// buffer, which has all headers, and `len` its length. A packet that [`parse_fast`] takes gives the same
/// result here.
pub(crate) fn parse_frame(head: &[u8], len: usize, packet: &mut Packet) -> Option<DropReason> {
    if len > PACKET_BYTES_MAX {
        return Some(DropReason::Oversized);
    }
    let Some(header) = ethernet::parse(head) else {
        return Some(DropReason::Truncated);
    };
    *packet = Packet {
        l3: header.header_bytes as u8,
        vlan: header.vlan.unwrap_or(0),
        src_bits: header.src.to_bits(),
        dst_bits: header.dst.to_bits(),
        ..Packet::default()
    };
    match header.ethertype {
        ethernet::IPV4 => parse_ipv4(head, len, packet),
        ethernet::IPV6 => parse_ipv6(head, len, packet),
        ethernet::ARP => {
            packet.kind = Kind::Arp;
            None
        }
        _ => Some(DropReason::UnknownEthertype),
    }
}

fn parse_ipv4(head: &[u8], len: usize, packet: &mut Packet) -> Option<DropReason> {
    let l3 = usize::from(packet.l3);
    let bytes = &head[l3..];
    let Some(ip) = ipv4::Ipv4::new(bytes) else {
        return Some(DropReason::Truncated);
    };
    let (header_bytes, total_bytes) = (ip.header_bytes(), ip.total_bytes());
    if ip.version() != 4 || header_bytes < ipv4::HEADER_BYTES || total_bytes < header_bytes {
        return Some(DropReason::Malformed);
    }
    if l3 + total_bytes > len || header_bytes > bytes.len() {
        return Some(DropReason::Truncated);
    }
    if !ipv4::checksum_holds(&bytes[..header_bytes]) {
        return Some(DropReason::BadIpChecksum);
    }
    if header_bytes > ipv4::HEADER_BYTES
        && let Some(reason) = refused_option(&bytes[ipv4::HEADER_BYTES..header_bytes])
    {
        return Some(reason);
    }
    let offset = ip.fragment_offset();
    if offset + (total_bytes - header_bytes) > usize::from(u16::MAX) {
        return Some(DropReason::Malformed);
    }
    packet.is_v4 = true;
    packet.l4 = (l3 + header_bytes) as u16;
    packet.end = (l3 + total_bytes) as u16;
    packet.src = from_v4(ip.src());
    packet.dst = from_v4(ip.dst());
    packet.ttl = ip.ttl();
    packet.protocol = ip.protocol();
    packet.dont_fragment = ip.dont_fragment();
    packet.first_fragment = ip.more_fragments() && offset == 0;
    packet.whole = !ip.more_fragments() && offset == 0;
    if offset != 0 {
        packet.kind = Kind::LaterFragment;
        return None;
    }
    parse_first(head, packet)
}

/// The reason to drop a packet with these IPv4 options. RFC 7126 advises routers to drop each of them.
#[cold]
fn refused_option(options: &[u8]) -> Option<DropReason> {
    ipv4::option_types(options).find_map(|kind| match kind {
        Some(ipv4::option::LOOSE_SOURCE_ROUTE | ipv4::option::STRICT_SOURCE_ROUTE) => {
            Some(DropReason::SourceRoute)
        }
        Some(ipv4::option::RECORD_ROUTE | ipv4::option::TIMESTAMP) => Some(DropReason::IpOption),
        Some(_) => None,
        None => Some(DropReason::Malformed),
    })
}

fn parse_ipv6(head: &[u8], len: usize, packet: &mut Packet) -> Option<DropReason> {
    let l3 = usize::from(packet.l3);
    let bytes = &head[l3..];
    let Some(ip) = ipv6::Ipv6::new(bytes) else {
        return Some(DropReason::Truncated);
    };
    let total_bytes = ipv6::HEADER_BYTES + ip.payload_bytes();
    if ip.version() != 6 {
        return Some(DropReason::Malformed);
    }
    if l3 + total_bytes > len {
        return Some(DropReason::Truncated);
    }
    let Some(upper) = ipv6::upper_layer(&bytes[..total_bytes.min(bytes.len())]) else {
        return Some(DropReason::Malformed);
    };
    // Routing headers of other types pass: a firewall "MUST NOT simply filter all traffic with a routing
    // header" (RFC 5095 section 4.2). Policy decides on the current destination.
    if upper.has_routing_type_0 {
        return Some(DropReason::SourceRoute);
    }
    packet.l4 = (l3 + upper.offset) as u16;
    packet.end = (l3 + total_bytes) as u16;
    packet.src = ip.src();
    packet.dst = ip.dst();
    packet.ttl = ip.hop_limit();
    packet.protocol = upper.protocol;
    packet.dont_fragment = true;
    // An atomic fragment is a whole packet with a fragment header, and is processed "in isolation from any
    // other packets/fragments" (RFC 6946 section 4).
    packet.first_fragment = upper.fragment.is_some_and(|fragment| fragment.offset == 0 && fragment.more);
    packet.whole = !upper.has_segments_left
        && upper.fragment.is_none_or(|fragment| fragment.offset == 0 && !fragment.more);
    if is_v4(packet.src) || is_v4(packet.dst) {
        // No packet has an IPv4-mapped address (RFC 4291 section 2.5.5.2). The tables would take it for IPv4.
        return Some(DropReason::Malformed);
    }
    if upper.fragment.is_some_and(|fragment| fragment.offset != 0) {
        packet.kind = Kind::LaterFragment;
        return None;
    }
    parse_first(head, packet)
}

/// Parses the transport header. A first fragment must have all of it: a host "MUST include the entire IPv6
/// Header Chain in the First Fragment" (RFC 7112 section 5); of IPv4, RFC 1858 section 3.1 describes the
/// attack.
#[inline]
fn parse_first(head: &[u8], packet: &mut Packet) -> Option<DropReason> {
    match parse_transport(head, packet) {
        Some(DropReason::Truncated) if packet.first_fragment => Some(DropReason::FragmentTiny),
        result => result,
    }
}

#[inline]
fn parse_transport(head: &[u8], packet: &mut Packet) -> Option<DropReason> {
    let segment = packet.transport(head);
    packet.unfinished = packet.whole && is_unfinished(packet, segment);
    match packet.protocol {
        Protocol::TCP => parse_tcp(segment, packet),
        Protocol::UDP => parse_udp(segment, packet),
        Protocol::SCTP => parse_sctp(segment, packet),
        Protocol::ICMP if packet.is_v4 => parse_icmp(segment, packet),
        Protocol::ICMPV6 if !packet.is_v4 => parse_icmpv6(segment, packet),
        _ => None,
    }
}

/// Whether the sender has left the checksum of TCP, UDP or SCTP to the hardware.
///
/// Linux does so on veth, which offers checksum offload (`CHECKSUM_PARTIAL`), and no bit of the frame tells
/// it. The field then holds exactly the folded sum over the pseudo-header. A finished checksum has that value
/// once in 65,536 packets, and computing it again gives the same value. SCTP has no pseudo-header: its field
/// is zero. Linux finishes the checksum before it fragments a packet.
fn is_unfinished(packet: &Packet, segment: &[u8]) -> bool {
    let is_pseudo_header = |offset: usize| {
        let pseudo = if packet.is_v4 {
            pseudo_v4(packet.src as u32, packet.dst as u32, packet.protocol, packet.transport_bytes())
        } else {
            pseudo_v6(packet.src, packet.dst, packet.protocol, packet.transport_bytes())
        };
        segment.len() >= offset + 2 && is_folded(be16(segment, offset), pseudo)
    };
    match packet.protocol {
        Protocol::TCP => is_pseudo_header(tcp::CHECKSUM_OFFSET),
        // The checksum of a datagram that is shorter than its packet covers another length. The kernel sends
        // none.
        Protocol::UDP => {
            udp::Udp::new(segment).is_some_and(|udp| udp.bytes() == packet.transport_bytes())
                && is_pseudo_header(udp::CHECKSUM_OFFSET)
        }
        Protocol::SCTP => segment.get(sctp::CHECKSUM_OFFSET..).is_some_and(|rest| rest.starts_with(&[0; 4])),
        _ => false,
    }
}

#[inline]
fn parse_tcp(segment: &[u8], packet: &mut Packet) -> Option<DropReason> {
    let Some(tcp) = tcp::Tcp::new(segment) else {
        return Some(DropReason::Truncated);
    };
    let flags = tcp.flags();
    if tcp.header_bytes() < tcp::HEADER_BYTES || flags.is_invalid() {
        return Some(DropReason::Malformed);
    }
    if tcp.header_bytes() > segment.len() {
        return Some(DropReason::Truncated);
    }
    packet.src_port = tcp.src_port();
    packet.dst_port = tcp.dst_port();
    packet.flags = flags.0;
    packet.sequence = tcp.sequence();
    packet.acknowledgement = tcp.acknowledgement();
    packet.window = tcp.window();
    packet.tcp_header_bytes = tcp.header_bytes() as u8;
    None
}

#[inline]
fn parse_udp(datagram: &[u8], packet: &mut Packet) -> Option<DropReason> {
    let Some(udp) = udp::Udp::new(datagram) else {
        return Some(DropReason::Truncated);
    };
    if udp.bytes() < udp::HEADER_BYTES || (packet.whole && udp.bytes() > packet.transport_bytes()) {
        return Some(DropReason::Malformed);
    }
    packet.src_port = udp.src_port();
    packet.dst_port = udp.dst_port();
    None
}

#[inline(never)]
fn parse_sctp(segment: &[u8], packet: &mut Packet) -> Option<DropReason> {
    let Some(sctp) = sctp::Sctp::new(segment) else {
        return Some(DropReason::Truncated);
    };
    packet.src_port = sctp.src_port();
    packet.dst_port = sctp.dst_port();
    packet.flags = sctp.chunk_type();
    packet.sequence = sctp.verification_tag();
    None
}

#[inline(never)]
fn parse_icmp(message: &[u8], packet: &mut Packet) -> Option<DropReason> {
    let Some(icmp) = icmp::Icmp::new(message) else {
        return Some(DropReason::Truncated);
    };
    packet.flags = icmp.kind();
    match icmp.kind() {
        kind if icmp::v4::query(kind).is_some() => set_identifier(packet, icmp.identifier()),
        kind if icmp::v4::is_error(kind) => packet.kind = Kind::IcmpError,
        icmp::v4::SOURCE_QUENCH | icmp::v4::REDIRECT => return Some(DropReason::InvalidState),
        _ => {}
    }
    None
}

#[inline(never)]
fn parse_icmpv6(message: &[u8], packet: &mut Packet) -> Option<DropReason> {
    let Some(icmp) = icmp::Icmp::new(message) else {
        return Some(DropReason::Truncated);
    };
    packet.flags = icmp.kind();
    match icmp.kind() {
        kind if icmp::v6::query(kind).is_some() => set_identifier(packet, icmp.identifier()),
        kind if icmp::v6::is_error(kind) => packet.kind = Kind::IcmpError,
        kind if icmp::v6::is_link_local(kind) => packet.kind = Kind::LinkLocal,
        _ => {}
    }
    None
}

fn set_identifier(packet: &mut Packet, identifier: u16) {
    packet.src_port = identifier;
    packet.dst_port = identifier;
}

/// Parses the packet that an ICMP error quotes: its headers up to the ports, which the "first 64 bits of the
/// original datagram's data" hold (RFC 792). Returns false where they are not there. Checksums are not
/// verified: a router on the path may have changed the quote.
pub(crate) fn parse_quoted(quote: &[u8], quoted: &mut Packet) -> bool {
    *quoted = Packet::default();
    let l4 = match quote.first().map(|byte| byte >> 4) {
        Some(4) => quoted_ipv4(quote, quoted),
        Some(6) => quoted_ipv6(quote, quoted),
        _ => None,
    };
    let Some(ports) = l4.and_then(|l4| quote.get(l4..)).and_then(|bytes| bytes.first_chunk::<8>()) else {
        return false;
    };
    match quoted.protocol {
        Protocol::TCP | Protocol::UDP | Protocol::SCTP => {
            quoted.src_port = u16::from_be_bytes([ports[0], ports[1]]);
            quoted.dst_port = u16::from_be_bytes([ports[2], ports[3]]);
            true
        }
        Protocol::ICMP | Protocol::ICMPV6 => {
            quoted.flags = ports[0];
            set_identifier(quoted, u16::from_be_bytes([ports[4], ports[5]]));
            icmp::query(quoted.protocol, quoted.flags).is_some()
        }
        _ => true,
    }
}

fn quoted_ipv4(quote: &[u8], quoted: &mut Packet) -> Option<usize> {
    let ip = ipv4::Ipv4::new(quote)?;
    quoted.is_v4 = true;
    quoted.src = from_v4(ip.src());
    quoted.dst = from_v4(ip.dst());
    quoted.protocol = ip.protocol();
    (ip.fragment_offset() == 0).then(|| ip.header_bytes())
}

fn quoted_ipv6(quote: &[u8], quoted: &mut Packet) -> Option<usize> {
    let ip = ipv6::Ipv6::new(quote)?;
    let upper = ipv6::upper_layer(quote)?;
    quoted.src = ip.src();
    quoted.dst = ip.dst();
    quoted.protocol = upper.protocol;
    if is_v4(quoted.src) || is_v4(quoted.dst) {
        return None;
    }
    upper.fragment.is_none_or(|fragment| fragment.offset == 0).then_some(upper.offset)
}

#[cfg(test)]
mod tests;
