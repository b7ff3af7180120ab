//! Verification of transport checksums of packets that open a flow or change its state. A packet that its
//! receiver drops must not change the state that the switch keeps of the connection.
//!
//! Other packets are not verified: that would read every byte of every packet, and their receiver verifies
//! them.

use crate::dataplane::packet::Packet;
use crate::net::checksum::{Sum, pseudo_header};
use crate::net::flow::Protocol;
use crate::net::{be16, ipv4, sctp, udp};
use crate::xdp::{Frame, Umem};

/// Result of the verification of a checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checksum {
    /// The checksum is right, or absent, or left to the hardware: then the switch finishes it.
    Right,
    /// The checksum is wrong: the receiver drops the packet.
    Wrong,
    /// The checksum covers more than this packet: other fragments, or an address that a routing header hides.
    Unknown,
}

/// Verifies the transport checksum of a packet, before any rewrite.
#[inline(never)]
pub(crate) fn verify(umem: &Umem, frame: &Frame, packet: &Packet) -> Checksum {
    if !packet.whole {
        return Checksum::Unknown;
    }
    let holds = packet.unfinished
        || match packet.protocol {
            Protocol::TCP => sum(umem, frame, packet, packet.transport_bytes()) == ALL_ONES,
            Protocol::UDP => verify_udp(umem, frame, packet),
            Protocol::SCTP => verify_sctp(umem, frame, packet),
            Protocol::ICMP if packet.is_v4 => {
                add_parts(Sum::default(), umem, frame, packet, packet.transport_bytes()).fold() == ALL_ONES
            }
            Protocol::ICMPV6 if !packet.is_v4 => {
                sum(umem, frame, packet, packet.transport_bytes()) == ALL_ONES
            }
            _ => true,
        };
    if holds { Checksum::Right } else { Checksum::Wrong }
}

/// The sum over a packet with a right checksum: "all 1 bits (-0 in 1's complement arithmetic)" (RFC 1071
/// section 1).
const ALL_ONES: u16 = 0xffff;

fn verify_udp(umem: &Umem, frame: &Frame, packet: &Packet) -> bool {
    let Some(header) = udp::Udp::new(packet.transport(umem.data(frame))) else { return false };
    // "An all zero transmitted checksum value means that the transmitter generated no checksum" (RFC 768);
    // over IPv6 some tunnels go without (RFC 6935).
    be16(packet.transport(umem.data(frame)), udp::CHECKSUM_OFFSET) == 0
        || sum(umem, frame, packet, header.bytes()) == ALL_ONES
}

fn verify_sctp(umem: &Umem, frame: &Frame, packet: &Packet) -> bool {
    let field = sctp::CHECKSUM_OFFSET..sctp::CHECKSUM_OFFSET + 4;
    let head = packet.transport(umem.data(frame));
    let (Some(before), Some(found), Some(behind)) =
        (head.get(..field.start), head.get(field.clone()), head.get(field.end..))
    else {
        return false;
    };
    // The checksum covers the packet with zeros in its own field (RFC 9260 section 6.8).
    let start = [before, &[0; 4], behind];
    let rest = clip(umem.rest(frame), packet.transport_bytes() - head.len());
    sctp::checksum(start.into_iter().chain(rest)) == *found
}

/// The folded sum over the pseudo-header and the first `bytes` of header and payload.
fn sum(umem: &Umem, frame: &Frame, packet: &Packet, bytes: usize) -> u16 {
    let ip = &umem.data(frame)[usize::from(packet.l3)..];
    // An IPv4 header ends with the addresses, before its options. An IPv6 header ends with them.
    let addresses = if packet.is_v4 { &ip[12..ipv4::HEADER_BYTES] } else { &ip[8..40] };
    add_parts(pseudo_header(addresses, packet.protocol, bytes), umem, frame, packet, bytes).fold()
}

fn add_parts(pseudo: Sum, umem: &Umem, frame: &Frame, packet: &Packet, bytes: usize) -> Sum {
    let head = packet.transport(umem.data(frame));
    let head = &head[..head.len().min(bytes)];
    let start = (pseudo.add_bytes(head), head.len());
    if head.len() == bytes {
        return start.0;
    }
    let rest = clip(umem.rest(frame), bytes - head.len());
    rest.fold(start, |(sum, at), part| (sum.add_bytes_at(at, part), at + part.len())).0
}

/// The first `bytes` of these parts. Ethernet padding follows them.
fn clip<'a>(parts: impl Iterator<Item = &'a [u8]>, mut bytes: usize) -> impl Iterator<Item = &'a [u8]> {
    parts.map_while(move |part| {
        let part = &part[..part.len().min(bytes)];
        bytes -= part.len();
        (!part.is_empty()).then_some(part)
    })
}
