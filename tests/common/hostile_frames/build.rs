//! Builders of hostile frames, byte by byte: every header field is free, and checksums are correct unless a
//! kind asks for wrong ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::{crc32c, pseudo_sum};

/// Ethertypes.
pub(super) const IPV4: u16 = 0x0800;
pub(super) const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;

/// Protocol numbers (IANA).
pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMPV6: u8 = 58;
pub(super) const SCTP: u8 = 132;

/// TCP control bits (RFC 9293 section 3.1).
pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const PSH: u8 = 8;
pub(super) const ACK: u8 = 16;

/// Internet checksum of these bytes, with a checksum field of zero (RFC 1071).
pub(super) fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum = words.fold(0, |sum, word| (sum + word) % 0xffff);
    (!(sum as u16)).to_be_bytes()
}

/// Bytes of an address.
pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Writes the checksum of a transport header with a pseudo-header.
fn finish(bytes: &mut [u8], at: usize, src: IpAddr, dst: IpAddr, protocol: u8) {
    let sum = !pseudo_sum(&octets(src), &octets(dst), protocol, bytes);
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// TCP segment.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    pub(super) ports: [u16; 2],
    pub(super) flags: u8,
    pub(super) sequence: u32,
    pub(super) acknowledgement: u32,
}

impl Segment {
    pub(super) fn of(ports: [u16; 2], flags: u8) -> Segment {
        Segment { ports, flags, sequence: 1000, acknowledgement: 2000 }
    }

    /// Adds options, which fill whole words.
    pub(super) fn with(self, src: IpAddr, dst: IpAddr, options: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut bytes = [self.ports[0].to_be_bytes(), self.ports[1].to_be_bytes()].concat();
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(self.acknowledgement.to_be_bytes());
        bytes.extend([(5 + options.len() as u8 / 4) << 4, self.flags, 0xff, 0xff, 0, 0, 0, 0]);
        bytes.extend(options);
        bytes.extend(payload);
        finish(&mut bytes, 16, src, dst, TCP);
        bytes
    }

    pub(super) fn bytes(self, src: IpAddr, dst: IpAddr, payload: &[u8]) -> Vec<u8> {
        self.with(src, dst, &[], payload)
    }
}

/// Builds a UDP datagram.
pub(super) fn udp(src: IpAddr, dst: IpAddr, ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let mut bytes = [ports[0], ports[1], 8 + payload.len() as u16, 0].map(u16::to_be_bytes).concat();
    bytes.extend(payload);
    finish(&mut bytes, 6, src, dst, UDP);
    bytes
}

/// Builds an SCTP packet with one chunk.
pub(super) fn sctp(ports: [u16; 2], tag: u32, chunk: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = ports.map(u16::to_be_bytes).concat();
    bytes.extend(tag.to_be_bytes());
    bytes.extend([0, 0, 0, 0, chunk, 0]);
    bytes.extend((payload.len() as u16 + 4).to_be_bytes());
    bytes.extend(payload);
    let sum = crc32c(&bytes).to_le_bytes();
    bytes[8..12].copy_from_slice(&sum);
    bytes
}

/// Builds a message of ICMP, or of `ICMPv6` between IPv6 addresses: type, code, the four bytes behind the
/// checksum, and the rest.
pub(super) fn icmp(src: IpAddr, dst: IpAddr, kind: u8, code: u8, rest: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, code, 0, 0];
    bytes.extend(rest);
    bytes.extend(payload);
    if src.is_ipv4() {
        let sum = checksum(&bytes);
        bytes[2..4].copy_from_slice(&sum);
    } else {
        finish(&mut bytes, 2, src, dst, ICMPV6);
    }
    bytes
}

/// IPv4 packet. The checksum is computed last, over all other fields.
#[derive(Clone)]
pub(super) struct V4 {
    pub(super) version_and_words: u8,
    pub(super) total: Option<u16>,
    pub(super) identification: u16,
    /// Flags and fragment offset, as in the header field.
    pub(super) fragment: u16,
    pub(super) ttl: u8,
    pub(super) protocol: u8,
    pub(super) src: Ipv4Addr,
    pub(super) dst: Ipv4Addr,
    pub(super) options: Vec<u8>,
    pub(super) spoil_checksum: bool,
}

impl V4 {
    pub(super) fn new(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8) -> V4 {
        V4 {
            version_and_words: 0x45,
            total: None,
            identification: 1,
            fragment: 0,
            ttl: 64,
            protocol,
            src,
            dst,
            options: vec![],
            spoil_checksum: false,
        }
    }

    /// With options, which fill whole words.
    pub(super) fn options(self, options: &[u8]) -> V4 {
        let words = self.version_and_words + options.len() as u8 / 4;
        V4 { version_and_words: words, options: options.to_vec(), ..self }
    }

    pub(super) fn bytes(&self, payload: &[u8]) -> Vec<u8> {
        let total = self.total.unwrap_or((20 + self.options.len() + payload.len()) as u16);
        let mut bytes = vec![self.version_and_words, 0];
        bytes.extend([total, self.identification, self.fragment].map(u16::to_be_bytes).concat());
        bytes.extend([self.ttl, self.protocol, 0, 0]);
        bytes.extend(self.src.octets());
        bytes.extend(self.dst.octets());
        bytes.extend(&self.options);
        let sum = checksum(&bytes);
        bytes[10..12].copy_from_slice(&sum);
        bytes[10] ^= u8::from(self.spoil_checksum);
        bytes.extend(payload);
        bytes
    }
}

/// Builds an IPv6 packet. Extension headers are part of the payload.
pub(super) fn ipv6(src: Ipv6Addr, dst: Ipv6Addr, next: u8, hops: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x60, 0, 0, 0];
    bytes.extend((payload.len() as u16).to_be_bytes());
    bytes.extend([next, hops]);
    bytes.extend(src.octets());
    bytes.extend(dst.octets());
    bytes.extend(payload);
    bytes
}

/// Builds an ordinary packet between two addresses of one family.
pub(super) fn packet(src: IpAddr, dst: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => V4::new(src, dst, protocol).bytes(payload),
        (IpAddr::V6(src), IpAddr::V6(dst)) => ipv6(src, dst, protocol, 64, payload),
        _ => panic!("addresses of two families"),
    }
}

/// Builds the header of an IPv6 fragment (RFC 8200 section 4.5). The offset is in bytes.
pub(super) fn fragment_header(next: u8, offset: u16, more: bool, identification: u32) -> Vec<u8> {
    let mut bytes = vec![next, 0];
    bytes.extend((offset | u16::from(more)).to_be_bytes());
    bytes.extend(identification.to_be_bytes());
    bytes
}

/// Builds a frame.
pub(super) fn ethernet(src: [u8; 6], dst: [u8; 6], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&dst[..], &src, &ethertype.to_be_bytes(), payload].concat()
}

/// Builds an ARP packet for IPv4 over Ethernet in a frame (RFC 826): operation, sender, target.
pub(super) fn arp(
    operation: u8,
    sender: ([u8; 6], [u8; 4]),
    target: ([u8; 6], [u8; 4]),
    dst: [u8; 6],
) -> Vec<u8> {
    let header = [0, 1, 8, 0, 6, 4, 0, operation];
    let packet = [&header[..], &sender.0, &sender.1, &target.0, &target.1].concat();
    ethernet(sender.0, dst, ARP, &packet)
}
