//! Frames built beforehand: what differs from one to the next is written in place, and the checksums follow from sums
//! over the rest (RFC 1071: the sum of the parts is the sum of the whole).

use super::flows::{Addresses, Tuple};
use super::payload::{MAGIC, STAMP_BYTES, Stamp};
use super::size::FCS_BYTES;
use super::traffic::{Kind, SCTP_DATA_BYTES, SCTP_INIT_BYTES, Traffic};
use crate::net::checksum::{Sum, pseudo_header};
use crate::net::flow::Protocol;
use crate::net::{ethernet, icmp, ipv4, ipv6, sctp, tcp, udp};

/// Hops that a frame may take.
const TTL: u8 = 64;

/// A frame, and the sums over what stays the same in it.
#[derive(Debug, Clone)]
pub(super) struct Template {
    bytes: Vec<u8>,
    kind: Kind,
    ipv6: bool,
    ip: usize,
    transport: usize,
    payload: usize,
    stamped: bool,
    ip_sum: u64,
    transport_sum: u64,
}

impl Template {
    /// A frame of `size` bytes, those of the frame check sequence counted. Frames with no room for a stamp have none.
    pub(super) fn new(traffic: &Traffic, size: usize) -> Template {
        let bytes = size - FCS_BYTES;
        let ip = ethernet::bytes_with(traffic.vlan.unwrap_or(0));
        let transport = ip + if traffic.is_ipv6() { ipv6::HEADER_BYTES } else { ipv4::HEADER_BYTES };
        let payload = transport + traffic.kind.header_bytes();
        let mut template = Template {
            bytes: vec![0; bytes],
            kind: traffic.kind,
            ipv6: traffic.is_ipv6(),
            ip,
            transport,
            payload,
            stamped: bytes >= payload + STAMP_BYTES,
            ip_sum: 0,
            transport_sum: 0,
        };
        template.write_link(traffic);
        template.write_network();
        template.write_transport();
        template.sum();
        template
    }

    fn protocol(&self) -> Protocol {
        match self.kind {
            Kind::Udp => Protocol::UDP,
            Kind::Tcp(_) => Protocol::TCP,
            Kind::IcmpEcho if self.ipv6 => Protocol::ICMPV6,
            Kind::IcmpEcho => Protocol::ICMP,
            Kind::SctpData | Kind::SctpInit => Protocol::SCTP,
        }
    }

    fn write_link(&mut self, traffic: &Traffic) {
        ethernet::set_addresses(&mut self.bytes, traffic.dst_mac, traffic.src_mac);
        let ethertype = if self.ipv6 { ethernet::IPV6 } else { ethernet::IPV4 };
        if let Some(vlan) = traffic.vlan {
            self.bytes[12..14].copy_from_slice(&ethernet::VLAN.to_be_bytes());
            self.bytes[14..16].copy_from_slice(&vlan.to_be_bytes());
        }
        self.bytes[self.ip - 2..self.ip].copy_from_slice(&ethertype.to_be_bytes());
    }

    fn write_network(&mut self) {
        let (protocol, payload) = (self.protocol(), self.bytes.len() - self.transport);
        let packet = &mut self.bytes[self.ip..];
        if self.ipv6 {
            ipv6::write(packet, 0, 0, protocol, payload, TTL);
        } else {
            ipv4::write(packet, 0, 0, protocol, payload, TTL);
        }
    }

    fn write_transport(&mut self) {
        let segment = &mut self.bytes[self.transport..];
        let length = segment.len();
        match self.kind {
            Kind::Udp => segment[4..6].copy_from_slice(&(length as u16).to_be_bytes()),
            Kind::Tcp(flags) => {
                segment[12] = (tcp::HEADER_BYTES as u8 / 4) << 4;
                segment[13] = flags;
                segment[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
            }
            Kind::IcmpEcho => {
                segment[0] = if self.ipv6 { icmp::v6::ECHO_REQUEST } else { icmp::v4::ECHO_REQUEST };
            }
            Kind::SctpData => write_sctp_data(segment),
            Kind::SctpInit => write_sctp_init(segment),
        }
        if self.stamped {
            self.bytes[self.payload..][..2].copy_from_slice(&MAGIC.to_be_bytes());
        }
    }

    fn sum(&mut self) {
        if !self.ipv6 {
            self.bytes[self.ip + 10..self.ip + 12].fill(0);
            self.ip_sum = u64::from(Sum::default().add_bytes(&self.bytes[self.ip..self.transport]).fold());
        }
        let segment = &self.bytes[self.transport..];
        let pseudo = match self.protocol() {
            Protocol::ICMP => Sum::default(),
            protocol => pseudo_header(&[], protocol, segment.len()),
        };
        self.transport_sum = u64::from(pseudo.add_bytes(segment).fold());
    }

    /// The frame of a flow, with its stamp.
    #[inline]
    pub(super) fn patch(&mut self, tuple: Tuple, stamp: Stamp) -> &[u8] {
        let addresses = self.patch_addresses(tuple.addresses);
        let mut sum = self.transport_sum;
        if self.stamped {
            stamp.write(&mut self.bytes[self.payload..]);
            sum += stamp.sum();
        }
        sum += match self.kind {
            Kind::IcmpEcho if !self.ipv6 => 0,
            _ => addresses,
        };
        self.patch_transport(tuple, stamp.sequence, sum);
        &self.bytes
    }

    /// Writes the addresses, and gives their sum.
    #[inline]
    fn patch_addresses(&mut self, addresses: Addresses) -> u64 {
        match addresses {
            Addresses::V4(src, dst) => {
                let header = &mut self.bytes[self.ip..self.ip + ipv4::HEADER_BYTES];
                header[12..16].copy_from_slice(&src.to_be_bytes());
                header[16..20].copy_from_slice(&dst.to_be_bytes());
                let addresses = halves(src) + halves(dst);
                header[10..12].copy_from_slice(&finish(self.ip_sum + addresses).to_be_bytes());
                addresses
            }
            Addresses::V6(src, dst) => {
                let header = &mut self.bytes[self.ip..self.ip + ipv6::HEADER_BYTES];
                header[8..24].copy_from_slice(&src.to_be_bytes());
                header[24..40].copy_from_slice(&dst.to_be_bytes());
                words(src) + words(dst)
            }
        }
    }

    #[inline]
    fn patch_transport(&mut self, tuple: Tuple, sequence: u32, sum: u64) {
        let segment = &mut self.bytes[self.transport..];
        let (src, dst) = (tuple.src_port, tuple.dst_port);
        let ports = u64::from(src) + u64::from(dst);
        match self.kind {
            Kind::Udp => {
                write_ports(segment, src, dst);
                // Zero is no checksum (RFC 768), which IPv6 forbids.
                let checksum = match finish(sum + ports) {
                    0 => u16::MAX,
                    checksum => checksum,
                };
                segment[udp::CHECKSUM_OFFSET..][..2].copy_from_slice(&checksum.to_be_bytes());
            }
            Kind::Tcp(_) => {
                write_ports(segment, src, dst);
                segment[4..8].copy_from_slice(&sequence.to_be_bytes());
                let checksum = finish(sum + ports + halves(sequence));
                segment[tcp::CHECKSUM_OFFSET..][..2].copy_from_slice(&checksum.to_be_bytes());
            }
            Kind::IcmpEcho => {
                let number = sequence as u16;
                segment[4..6].copy_from_slice(&src.to_be_bytes());
                segment[6..8].copy_from_slice(&number.to_be_bytes());
                let checksum = finish(sum + u64::from(src) + u64::from(number));
                segment[2..4].copy_from_slice(&checksum.to_be_bytes());
            }
            Kind::SctpData | Kind::SctpInit => {
                write_ports(segment, src, dst);
                sctp::finish(segment);
            }
        }
    }
}

/// A DATA chunk, whole and unordered, that fills the packet but for its padding.
fn write_sctp_data(packet: &mut [u8]) {
    let chunk = &mut packet[sctp::HEADER_BYTES..];
    let length = (chunk.len() & !3) as u16;
    // Flags: unordered, beginning and end (RFC 9260 section 3.3.1).
    chunk[..2].copy_from_slice(&[0, 0x07]);
    chunk[2..4].copy_from_slice(&length.to_be_bytes());
    chunk[4..8].copy_from_slice(&1u32.to_be_bytes());
    debug_assert!(chunk.len() >= SCTP_DATA_BYTES);
}

/// An INIT chunk with one parameter that fills the packet but for its padding.
fn write_sctp_init(packet: &mut [u8]) {
    let chunk = &mut packet[sctp::HEADER_BYTES..];
    let length = (chunk.len() & !3) as u16;
    chunk[0] = sctp::chunk::INIT;
    chunk[2..4].copy_from_slice(&length.to_be_bytes());
    // Initiate tag, receiver window, streams out and in, first transmission number.
    chunk[4..8].copy_from_slice(&1u32.to_be_bytes());
    chunk[8..12].copy_from_slice(&0x1_0000u32.to_be_bytes());
    chunk[12..16].copy_from_slice(&[0, 1, 0, 1]);
    chunk[16..20].copy_from_slice(&1u32.to_be_bytes());
    // A parameter type with the highest bit set and the next one clear: skip it, and do not report it.
    let parameter = length - SCTP_INIT_BYTES as u16;
    chunk[20..22].copy_from_slice(&0x8a11u16.to_be_bytes());
    chunk[22..24].copy_from_slice(&parameter.to_be_bytes());
}

#[inline]
fn write_ports(segment: &mut [u8], src: u16, dst: u16) {
    segment[..2].copy_from_slice(&src.to_be_bytes());
    segment[2..4].copy_from_slice(&dst.to_be_bytes());
}

#[inline]
fn halves(number: u32) -> u64 {
    u64::from(number >> 16) + u64::from(number & 0xffff)
}

#[inline]
fn words(number: u128) -> u64 {
    [96, 64, 32, 0].iter().map(|shift| halves((number >> shift) as u32)).sum()
}

/// The checksum of a sum of words in host order.
#[inline]
fn finish(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}
