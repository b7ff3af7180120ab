//! The fast path of the parser, for untagged and unfragmented TCP and UDP over IPv4 without options or IPv6
//! without extension headers. Nearly all packets are such.
//!
//! All checks of a header make one branch, and all fields are read from arrays of a length that the compiler
//! knows. Any other packet is left to [`super::parse_frame`], which gives the same result for the
//! packets of the fast path.

use crate::dataplane::packet::Packet;
use crate::net::address::{Address, from_v4, is_v4};
use crate::net::checksum::{is_folded, pseudo_v4, pseudo_v6};
use crate::net::ethernet::HEADER_BYTES as L3;
use crate::net::flow::Protocol;
use crate::net::tcp::{self, Flags};
use crate::net::{be16, be32, ipv4, ipv6, udp};

const L4_OF_V4: usize = L3 + ipv4::HEADER_BYTES;
const L4_OF_V6: usize = L3 + ipv6::HEADER_BYTES;
/// Ethertype, version and length of the header.
const V4: u32 = 0x08_0045;
/// Ethertype and version.
const V6: u32 = 0x8_6dd6;

/// Bits of an Ethernet address in [`crate::net::mac::Mac::to_bits`].
const MAC: u64 = (1 << 48) - 1;

/// Parses a frame into `packet`, if it takes the fast path. `frame` is its first buffer, which has all
/// headers, and `len` its length. Returns false where it does not; `packet` then has no meaning.
#[inline(always)]
pub(super) fn parse_fast(frame: &[u8], len: usize, packet: &mut Packet) -> bool {
    let Some(head) = frame.first_chunk::<{ L4_OF_V4 + udp::HEADER_BYTES }>() else { return false };
    match be32(head, 12) >> 8 {
        V4 => parse_ipv4(frame, len, packet),
        start if start >> 4 == V6 => parse_ipv6(frame, len, packet),
        _ => false,
    }
}

/// Fields of the headers up to IP.
struct Outer {
    is_v4: bool,
    protocol: Protocol,
    ttl: u8,
    dont_fragment: bool,
    end: usize,
    src: Address,
    dst: Address,
    /// Sum over the pseudo-header.
    pseudo: u64,
}

#[inline(always)]
fn parse_ipv4(frame: &[u8], len: usize, packet: &mut Packet) -> bool {
    let Some(head) = frame.first_chunk::<L4_OF_V4>() else { return false };
    let Some(ip) = head.last_chunk::<{ ipv4::HEADER_BYTES }>() else { return false };
    let snapshot = ipv4::Ipv4::of(ip);
    let end = L3 + snapshot.total_bytes();
    let fits = (end >= L4_OF_V4) & (end <= len);
    if !(fits & !snapshot.is_fragment() & ipv4::plain_checksum_holds(ip)) {
        return false;
    }
    let protocol = snapshot.protocol();
    let outer = Outer {
        is_v4: true,
        protocol,
        ttl: snapshot.ttl(),
        dont_fragment: snapshot.dont_fragment(),
        end,
        src: from_v4(snapshot.src()),
        dst: from_v4(snapshot.dst()),
        pseudo: pseudo_v4(snapshot.src(), snapshot.dst(), protocol, end.wrapping_sub(L4_OF_V4)),
    };
    parse_transport::<L4_OF_V4, { L4_OF_V4 + udp::HEADER_BYTES }, { L4_OF_V4 + tcp::HEADER_BYTES }>(
        frame, &outer, packet,
    )
}

#[inline(always)]
fn parse_ipv6(frame: &[u8], len: usize, packet: &mut Packet) -> bool {
    let Some(head) = frame.first_chunk::<L4_OF_V6>() else { return false };
    let Some(ip) = head.last_chunk::<{ ipv6::HEADER_BYTES }>() else { return false };
    let snapshot = ipv6::Ipv6::of(ip);
    let end = L4_OF_V6 + snapshot.payload_bytes();
    let (src, dst) = (snapshot.src(), snapshot.dst());
    if (end > len) | is_v4(src) | is_v4(dst) {
        return false;
    }
    let protocol = Protocol(snapshot.next_header());
    let outer = Outer {
        is_v4: false,
        protocol,
        ttl: snapshot.hop_limit(),
        dont_fragment: true,
        end,
        src,
        dst,
        pseudo: pseudo_v6(src, dst, protocol, end - L4_OF_V6),
    };
    parse_transport::<L4_OF_V6, { L4_OF_V6 + udp::HEADER_BYTES }, { L4_OF_V6 + tcp::HEADER_BYTES }>(
        frame, &outer, packet,
    )
}

/// Parses the transport header at offset `L4`. The fixed headers end at `UDP` and `TCP`.
#[inline(always)]
fn parse_transport<const L4: usize, const UDP: usize, const TCP: usize>(
    frame: &[u8],
    outer: &Outer,
    packet: &mut Packet,
) -> bool {
    let ports = |head: &[u8]| (be16(head, L4), be16(head, L4 + 2));
    match outer.protocol {
        Protocol::UDP => {
            let Some(head) = frame.first_chunk::<UDP>() else { return false };
            let bytes = usize::from(be16(head, L4 + 4));
            if (bytes < udp::HEADER_BYTES) | (L4 + bytes > outer.end) {
                return false;
            }
            let checksum = be16(head, L4 + udp::CHECKSUM_OFFSET);
            write::<L4>(outer, head, ports(head), packet);
            packet.unfinished = (L4 + bytes == outer.end) & is_folded(checksum, outer.pseudo);
        }
        Protocol::TCP => {
            let Some(head) = frame.first_chunk::<TCP>() else { return false };
            let (header_bytes, flags) = (usize::from(head[L4 + 12] >> 4) * 4, Flags(head[L4 + 13]));
            let fits = (header_bytes >= tcp::HEADER_BYTES) & (L4 + header_bytes <= outer.end);
            if !fits || flags.is_invalid() {
                return false;
            }
            write::<L4>(outer, head, ports(head), packet);
            packet.flags = flags.0;
            packet.sequence = be32(head, L4 + 4);
            packet.acknowledgement = be32(head, L4 + 8);
            packet.window = be16(head, L4 + 14);
            packet.tcp_header_bytes = header_bytes as u8;
            packet.unfinished = is_folded(be16(head, L4 + tcp::CHECKSUM_OFFSET), outer.pseudo);
        }
        _ => return false,
    }
    true
}

#[inline(always)]
fn write<const L4: usize>(outer: &Outer, head: &[u8], (src_port, dst_port): (u16, u16), packet: &mut Packet) {
    let Some(link) = head.first_chunk::<L3>() else { return };
    let word = |at: usize| link[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    *packet = Packet {
        l3: L3 as u8,
        l4: L4 as u16,
        end: outer.end as u16,
        whole: true,
        is_v4: outer.is_v4,
        protocol: outer.protocol,
        ttl: outer.ttl,
        dont_fragment: outer.dont_fragment,
        src: outer.src,
        dst: outer.dst,
        src_port,
        dst_port,
        dst_bits: word(0) & MAC,
        src_bits: word(6) & MAC,
        ..Packet::default()
    };
}
