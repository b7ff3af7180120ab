//! Ethernet frames between pods of the simulated node: UDP, TCP and fragments, over IPv4 and IPv6.

use std::net::IpAddr;

use etherparse::{IpFragOffset, IpNumber, Ipv4Header, Ipv6FragmentHeader};
use palisade::net::checksum::pseudo_header_of;
use palisade::net::flow::{FlowKey, Protocol};
use palisade::net::mac::Mac;
use palisade::net::{ethernet, ipv4, ipv6, tcp, udp};

use super::rule_tables::{Family, PODS_PER_NODE};

/// Ethernet address of the gateway, which is the switch.
pub(crate) const GATEWAY: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// Bytes of each fragment behind its IP headers: a multiple of eight (RFC 791, section 3.1: "The fragment
/// offset is measured in units of 8 octets"). A datagram has two such fragments.
const FRAGMENT_BYTES: usize = 16;
/// Offset of the length in a UDP header (RFC 768).
const UDP_LENGTH_OFFSET: usize = 4;
/// Offset of the next header in an IPv6 header (RFC 8200, section 3).
const IPV6_NEXT_HEADER_OFFSET: usize = 6;

/// Flow between two pods of the node.
#[derive(Clone, Copy)]
pub(crate) struct Flow {
    pub(crate) src: u16,
    pub(crate) dst: u16,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) protocol: Protocol,
}

/// One packet of a flow.
#[derive(Clone, Copy)]
pub(crate) struct Packet {
    pub(crate) flow: Flow,
    /// True if the responder sends it.
    pub(crate) reply: bool,
    /// TCP flags.
    pub(crate) flags: u8,
    /// TCP: segments with data that the initiator has sent before, or that the responder acknowledges. `None`: the packet has no
    /// data and acknowledges none.
    pub(crate) segments: Option<u32>,
    /// Part of a datagram; `None` where the packet is whole.
    pub(crate) fragment: Option<Fragment>,
    /// Whether the initiator sends to the virtual address of the destination's Service.
    pub(crate) by_service: bool,
}

/// Fragment of a datagram of two.
#[derive(Clone, Copy)]
pub(crate) struct Fragment {
    pub(crate) identification: u32,
    pub(crate) is_first: bool,
}

/// Address of a pod in one family, 4 or 6.
pub(crate) fn address(pod: u16, family: u8) -> IpAddr {
    assert!(u32::from(pod) < PODS_PER_NODE);
    if family == 4 {
        <u32 as Family>::from_top(<u32 as Family>::pod(pod.into())).ip()
    } else {
        <u128 as Family>::from_top(<u128 as Family>::pod(pod.into())).ip()
    }
}

/// Virtual address of Service number `number`: those of the pods come first.
pub(crate) fn virtual_address(number: u16, family: u8) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    if family == 4 { [10, 96, high, low].into() } else { [0xfd00, 0x96, 0, 0, 0, 0, 0, number].into() }
}

/// Ethernet address of a pod.
pub(crate) fn mac(pod: u16) -> Mac {
    Mac([2, 0, 0, 1, 0, pod as u8])
}

impl Flow {
    /// Key that conntrack and policy know the flow by.
    pub(crate) fn key(&self, family: u8) -> FlowKey {
        let (src, dst) = (address(self.src, family), address(self.dst, family));
        FlowKey { src, dst, protocol: self.protocol, src_port: self.src_port, dst_port: self.dst_port }
    }
}

impl Packet {
    /// Pod that sends it.
    pub(crate) fn sender(&self) -> u16 {
        if self.reply { self.flow.dst } else { self.flow.src }
    }

    /// Writes the frame, which fills all of `frame`.
    pub(crate) fn write(&self, family: u8, frame: &mut [u8]) {
        let Flow { src, dst, src_port, dst_port, protocol } = self.flow;
        let (src, dst) = if self.reply { (dst, src) } else { (src, dst) };
        let (src_port, dst_port) = if self.reply { (dst_port, src_port) } else { (src_port, dst_port) };
        frame.fill(0);
        ethernet::set_addresses(frame, GATEWAY, mac(src));
        let ip_header = if family == 4 { ipv4::HEADER_BYTES } else { ipv6::HEADER_BYTES };
        let most = frame.len() - ethernet::HEADER_BYTES - ip_header;
        let has_data = self.segments.is_some() && !self.reply;
        let payload = if protocol == Protocol::TCP && !has_data { tcp::HEADER_BYTES } else { most };
        let packet = &mut frame[ethernet::HEADER_BYTES..];
        let is_virtual = self.by_service && !self.reply;
        let to = if is_virtual { virtual_address(dst, family) } else { address(dst, family) };
        let (ethertype, segment) = match (address(src, family), to) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                ipv4::write(packet, src.to_bits(), dst.to_bits(), protocol, payload, 64);
                (ethernet::IPV4, ipv4::HEADER_BYTES)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                ipv6::write(packet, src.to_bits(), dst.to_bits(), protocol, payload, 64);
                (ethernet::IPV6, ipv6::HEADER_BYTES)
            }
            _ => unreachable!("both pods have an address of the same family"),
        };
        let segment = &mut packet[segment..][..payload];
        segment[..2].copy_from_slice(&src_port.to_be_bytes());
        segment[2..4].copy_from_slice(&dst_port.to_be_bytes());
        if protocol == Protocol::TCP {
            // SYN has the sequence number 0, every later segment 1 and the data sent before, in both directions.
            let syn = self.flags & tcp::Flags::SYN != 0;
            let data = self.segments.unwrap_or(0).wrapping_mul((most - tcp::HEADER_BYTES) as u32);
            let (sent, acknowledged) = if self.reply { (0, data) } else { (data, 0) };
            let number = |is_counted: bool, data: u32| u32::from(is_counted).wrapping_add(data).to_be_bytes();
            segment[4..8].copy_from_slice(&number(!syn, sent));
            segment[8..12].copy_from_slice(&number(self.flags & tcp::Flags::ACK != 0, acknowledged));
            segment[12] = 5 << 4;
            segment[13] = self.flags;
            segment[14] = 0x20;
        } else {
            segment[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
        }
        let checksum =
            pseudo_header_of(address(src, family), to, protocol, payload).add_bytes(segment).finish();
        let field = if protocol == Protocol::TCP { tcp::CHECKSUM_OFFSET } else { udp::CHECKSUM_OFFSET };
        segment[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        if let Some(fragment) = self.fragment {
            fragment.write(family, &mut frame[ethernet::HEADER_BYTES..]);
        }
    }
}

impl Fragment {
    /// Turns a whole UDP packet into this fragment of a datagram of twice [`FRAGMENT_BYTES`].
    fn write(self, family: u8, packet: &mut [u8]) {
        let udp_header = if family == 4 { ipv4::HEADER_BYTES } else { ipv6::HEADER_BYTES };
        let length = udp_header + UDP_LENGTH_OFFSET;
        packet[length..length + 2].copy_from_slice(&(2 * FRAGMENT_BYTES as u16).to_be_bytes());
        let offset = if self.is_first { 0 } else { FRAGMENT_BYTES as u16 / 8 };
        let offset = IpFragOffset::try_new(offset).expect("13 bits hold the offset");
        if family == 4 {
            let (mut header, _) = Ipv4Header::from_slice(packet).expect("an IPv4 header");
            header.total_len = (ipv4::HEADER_BYTES + FRAGMENT_BYTES) as u16;
            header.identification = self.identification as u16;
            header.more_fragments = self.is_first;
            header.fragment_offset = offset;
            header.header_checksum = header.calc_header_checksum();
            packet[..ipv4::HEADER_BYTES].copy_from_slice(&header.to_bytes());
        } else {
            let datagram = ipv6::HEADER_BYTES..ipv6::HEADER_BYTES + FRAGMENT_BYTES;
            packet.copy_within(datagram, ipv6::HEADER_BYTES + Ipv6FragmentHeader::LEN);
            let payload = (Ipv6FragmentHeader::LEN + FRAGMENT_BYTES) as u16;
            packet[4..6].copy_from_slice(&payload.to_be_bytes());
            let next = IpNumber(std::mem::replace(
                &mut packet[IPV6_NEXT_HEADER_OFFSET],
                IpNumber::IPV6_FRAGMENTATION_HEADER.0,
            ));
            let header = Ipv6FragmentHeader::new(next, offset, self.is_first, self.identification);
            packet[ipv6::HEADER_BYTES..][..Ipv6FragmentHeader::LEN].copy_from_slice(&header.to_bytes());
        }
    }
}
