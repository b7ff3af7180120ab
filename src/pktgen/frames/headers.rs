//! Headers of generated frames, with zeroes for every field that differs from frame to frame.

use etherparse::err::packet::BuildVecWriteError;
use etherparse::{
    IpHeaders, Ipv4Extensions, Ipv4Header, Ipv6Extensions, Ipv6Header, PacketBuilder, PacketBuilderStep,
    TcpHeader, VlanId, ip_number,
};

use crate::net::sctp;
use crate::net::tcp::Flags;
use crate::pktgen::traffic::stamp::{MAGIC, STAMP_BYTES};
use crate::pktgen::traffic::{Kind, SCTP_DATA_BYTES, SCTP_INIT_BYTES, Traffic};

/// Time to live, and hop limit.
const TTL: u8 = 64;

/// Builds a frame of `bytes` bytes. Addresses, ports and sequence numbers are zero; checksums are those of
/// such a frame. The payload begins with the magic number of a stamp where it has room for one, and is zero
/// otherwise.
pub(super) fn build(traffic: &Traffic, bytes: usize) -> Vec<u8> {
    let mut payload = vec![0; bytes - traffic.header_bytes()];
    if payload.len() >= STAMP_BYTES {
        payload[..2].copy_from_slice(&MAGIC.to_be_bytes());
    }
    let mut frame = Vec::with_capacity(bytes);
    write(traffic, &payload, &mut frame).expect("traffic has sizes that frames can have");
    frame
}

fn write(traffic: &Traffic, payload: &[u8], frame: &mut Vec<u8>) -> Result<(), BuildVecWriteError> {
    let packet = packet(traffic);
    match traffic.kind {
        Kind::Udp => packet.udp(0, 0).write_to_vec(frame, payload),
        Kind::Tcp(flags) => packet.tcp_header(tcp_header(Flags(flags))).write_to_vec(frame, payload),
        Kind::IcmpEcho if traffic.is_ipv6() => packet.icmpv6_echo_request(0, 0).write_to_vec(frame, payload),
        Kind::IcmpEcho => packet.icmpv4_echo_request(0, 0).write_to_vec(frame, payload),
        Kind::SctpData => packet.write_to_vec(frame, ip_number::SCTP, &sctp_data(payload)),
        Kind::SctpInit => packet.write_to_vec(frame, ip_number::SCTP, &sctp_init(payload)),
    }
}

fn packet(traffic: &Traffic) -> PacketBuilderStep<IpHeaders> {
    let ip = if traffic.is_ipv6() {
        IpHeaders::Ipv6(Ipv6Header { hop_limit: TTL, ..Ipv6Header::default() }, Ipv6Extensions::default())
    } else {
        let header = Ipv4Header { time_to_live: TTL, dont_fragment: true, ..Ipv4Header::default() };
        IpHeaders::Ipv4(header, Ipv4Extensions::default())
    };
    let link = PacketBuilder::ethernet2(traffic.src_mac.0, traffic.dst_mac.0);
    // `Traffic::check` has refused an identifier of more than 12 bits.
    match traffic.vlan.and_then(|vlan| VlanId::try_new(vlan).ok()) {
        Some(vlan) => link.single_vlan(vlan).ip(ip),
        None => link.ip(ip),
    }
}

fn tcp_header(flags: Flags) -> TcpHeader {
    TcpHeader {
        window_size: u16::MAX,
        fin: flags.has(0x01),
        syn: flags.has(0x02),
        rst: flags.has(0x04),
        psh: flags.has(0x08),
        ack: flags.has(0x10),
        urg: flags.has(0x20),
        ece: flags.has(0x40),
        cwr: flags.has(0x80),
        ..TcpHeader::default()
    }
}

/// An SCTP packet with a whole and unordered DATA chunk around the payload. The checksum is zero.
fn sctp_data(payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; sctp::HEADER_BYTES + SCTP_DATA_BYTES];
    packet.extend(payload);
    let chunk = &mut packet[sctp::HEADER_BYTES..];
    // A chunk has a multiple of four bytes; the rest of the packet is padding.
    let length = (chunk.len() & !3) as u16;
    // "U", "B" and "E" bits (RFC 9260 section 3.3.1): unordered, beginning and end of a message.
    chunk[..2].copy_from_slice(&[sctp::chunk::DATA, 0x07]);
    chunk[2..4].copy_from_slice(&length.to_be_bytes());
    // TSN.
    chunk[4..8].copy_from_slice(&1u32.to_be_bytes());
    packet
}

/// An SCTP packet with an INIT chunk, of which one parameter holds the payload. The checksum is zero.
fn sctp_init(payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; sctp::HEADER_BYTES + SCTP_INIT_BYTES + 4];
    packet.extend(payload);
    let chunk = &mut packet[sctp::HEADER_BYTES..];
    let length = (chunk.len() & !3) as u16;
    chunk[0] = sctp::chunk::INIT;
    chunk[2..4].copy_from_slice(&length.to_be_bytes());
    // Initiate Tag, a_rwnd, outbound and inbound streams, Initial TSN (RFC 9260 section 3.3.2).
    chunk[4..8].copy_from_slice(&1u32.to_be_bytes());
    chunk[8..12].copy_from_slice(&0x1_0000u32.to_be_bytes());
    chunk[12..16].copy_from_slice(&[0, 1, 0, 1]);
    chunk[16..20].copy_from_slice(&1u32.to_be_bytes());
    // The highest-order bits of the type are 10: "Skip this parameter and continue processing" (RFC 9260
    // section 3.2.1).
    let parameter = length - SCTP_INIT_BYTES as u16;
    chunk[20..22].copy_from_slice(&0x8a11u16.to_be_bytes());
    chunk[22..24].copy_from_slice(&parameter.to_be_bytes());
    packet
}
