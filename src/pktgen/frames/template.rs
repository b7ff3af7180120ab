//! Templates of frames: addresses, ports, sequence numbers and stamps are written in place, and checksums
//! follow from sums over the rest, since the sum of the parts is the sum of the whole (RFC 1071 section 2).

use super::headers;
use crate::net::checksum::{Sum, pseudo_header};
use crate::net::flow::Protocol;
use crate::net::{ethernet, icmp, ipv4, ipv6, sctp, tcp, udp};
use crate::pktgen::traffic::flows::{Addresses, Tuple};
use crate::pktgen::traffic::frame_size::FCS_BYTES;
use crate::pktgen::traffic::stamp::{STAMP_BYTES, Stamp};
use crate::pktgen::traffic::{Kind, Traffic};

/// A frame, and the sums over the fields that stay the same.
#[derive(Debug, Clone)]
pub(crate) struct Template {
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
    /// Builds a frame of `size` bytes, the frame check sequence counted. A frame without room for a stamp has
    /// none.
    pub(crate) fn new(traffic: &Traffic, size: usize) -> Template {
        let bytes = size - FCS_BYTES;
        let ip = ethernet::bytes_with(traffic.vlan.unwrap_or(0));
        let transport = ip + if traffic.is_ipv6() { ipv6::HEADER_BYTES } else { ipv4::HEADER_BYTES };
        let payload = transport + traffic.kind.header_bytes();
        let mut template = Template {
            bytes: headers::build(traffic, bytes),
            kind: traffic.kind,
            ipv6: traffic.is_ipv6(),
            ip,
            transport,
            payload,
            stamped: bytes >= payload + STAMP_BYTES,
            ip_sum: 0,
            transport_sum: 0,
        };
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

    /// Offset of the checksum behind the start of the transport header.
    fn checksum_offset(&self) -> usize {
        match self.kind {
            Kind::Udp => udp::CHECKSUM_OFFSET,
            Kind::Tcp(_) => tcp::CHECKSUM_OFFSET,
            Kind::IcmpEcho => icmp::CHECKSUM_OFFSET,
            Kind::SctpData | Kind::SctpInit => sctp::CHECKSUM_OFFSET,
        }
    }

    /// Clears the checksums, and sums up the fields that stay the same.
    fn sum(&mut self) {
        let checksum = self.transport + self.checksum_offset();
        self.bytes[checksum..checksum + 2].fill(0);
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

    /// Returns the frame of a flow, with its stamp.
    #[inline]
    pub(crate) fn patch(&mut self, tuple: Tuple, stamp: Stamp) -> &[u8] {
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

    /// Writes the addresses, and returns their sum.
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
                // "An all zero transmitted checksum value means that the transmitter generated no checksum"
                // (RFC 768), which IPv6 forbids (RFC 8200 section 8.1).
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

/// The Internet checksum for a sum of words in host order.
#[inline]
fn finish(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

#[cfg(test)]
mod tests;
