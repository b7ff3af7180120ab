//! Builders of frames for tests, on etherparse, which shares no code with the switch.

use std::net::IpAddr;

use etherparse::{
    EtherType, Ethernet2Header, IpHeaders, IpNumber, Ipv4Header, Ipv6Header, PacketBuilder,
    PacketBuilderStep, SingleVlanHeader, TcpHeader, VlanId, VlanPcp,
};

use super::checksum::{crc32c, ones_sum};

/// Header above IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// TCP segment: ports, control bits, sequence and acknowledgement number, window.
    Tcp { ports: [u16; 2], flags: u8, sequence: u32, acknowledgement: u32, window: u16 },
    /// UDP datagram.
    Udp { ports: [u16; 2] },
    /// SCTP packet with one chunk of this type.
    Sctp { ports: [u16; 2], chunk: u8 },
    /// Echo request or reply of ICMP or `ICMPv6`.
    Echo { request: bool, identifier: u16 },
    /// Other message of ICMP or `ICMPv6`: type, code, and the four bytes behind the checksum.
    Icmp { kind: u8, code: u8, rest: [u8; 4] },
    /// Protocol number without a header of its own here.
    Other(u8),
}

/// Description of a packet and of the frame around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) src_mac: [u8; 6],
    pub(crate) dst_mac: [u8; 6],
    pub(crate) vlan: Option<u16>,
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) ttl: u8,
    pub(crate) transport: Transport,
    pub(crate) payload: Vec<u8>,
    /// Makes the transport checksum wrong, for protocols that have one.
    pub(crate) broken: bool,
}

impl Spec {
    /// Describes a packet between two addresses with a payload of ten bytes.
    pub(crate) fn new(src: IpAddr, dst: IpAddr, transport: Transport) -> Spec {
        let (src_mac, dst_mac) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let payload = b"0123456789".to_vec();
        Spec { src_mac, dst_mac, vlan: None, src, dst, ttl: 64, transport, payload, broken: false }
    }

    /// Builds the frame.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        ethernet(self.src_mac, self.dst_mac, self.vlan, ether_type(self.src), &self.ip())
    }

    /// Builds the IP packet.
    pub(crate) fn ip(&self) -> Vec<u8> {
        let mut packet = Vec::new();
        let payload = &self.payload;
        let builder = self.builder();
        match self.transport {
            Transport::Tcp { ports, flags, sequence, acknowledgement, window } => {
                let mut header = TcpHeader::new(ports[0], ports[1], sequence, window);
                header.acknowledgment_number = acknowledgement;
                let bit = |bit: u8| flags & bit != 0;
                (header.fin, header.syn, header.rst) = (bit(1), bit(2), bit(4));
                (header.psh, header.ack) = (bit(8), bit(16));
                builder.tcp_header(header).write(&mut packet, payload).unwrap();
            }
            Transport::Udp { ports } => builder.udp(ports[0], ports[1]).write(&mut packet, payload).unwrap(),
            Transport::Sctp { ports, chunk } => {
                let mut sctp = [ports[0].to_be_bytes(), ports[1].to_be_bytes()].concat();
                sctp.extend([0, 0, 0, 1, 0, 0, 0, 0, chunk, 0]);
                sctp.extend((payload.len() as u16 + 4).to_be_bytes());
                sctp.extend(payload);
                let checksum = crc32c(&sctp).to_le_bytes();
                sctp[8..12].copy_from_slice(&checksum);
                packet = self.raw(132, &sctp);
            }
            Transport::Echo { request, identifier } => {
                let [high, low] = identifier.to_be_bytes();
                let kind = match (self.src.is_ipv4(), request) {
                    (true, true) => 8,
                    (true, false) => 0,
                    (false, true) => 128,
                    (false, false) => 129,
                };
                packet = self.icmp(kind, 0, [high, low, 0, 1]);
            }
            Transport::Icmp { kind, code, rest } => packet = self.icmp(kind, code, rest),
            Transport::Other(protocol) => packet = self.raw(protocol, payload),
        }
        if self.broken {
            self.break_checksum(&mut packet);
        }
        packet
    }

    /// Makes the transport checksum wrong. The wrong value is not zero, which means "no checksum" in UDP, and
    /// not the pseudo-header sum, which means "left to the hardware".
    fn break_checksum(&self, packet: &mut [u8]) {
        let (addresses, l4) = if self.src.is_ipv4() { (12..20, 20) } else { (8..40, 40) };
        let (protocol, field) = match self.transport {
            Transport::Tcp { .. } => (6, 16),
            Transport::Udp { .. } => (17, 6),
            // SCTP has a checksum of four bytes: this changes its upper half.
            Transport::Sctp { .. } => (132, 8),
            Transport::Echo { .. } | Transport::Icmp { .. } => (if l4 == 20 { 1 } else { 58 }, 2),
            Transport::Other(_) => return,
        };
        let [high, low] = ((packet.len() - l4) as u16).to_be_bytes();
        let pseudo = ones_sum(&[&packet[addresses], &[0, protocol, high, low]].concat());
        let right = u16::from_be_bytes([packet[l4 + field], packet[l4 + field + 1]]);
        let is_wrong = |wrong: &u16| *wrong != 0 && *wrong != pseudo && wrong % 0xffff != right % 0xffff;
        let wrong = (0..16).map(|bit| right ^ 1 << bit).find(is_wrong).expect("one of sixteen");
        packet[l4 + field..l4 + field + 2].copy_from_slice(&wrong.to_be_bytes());
    }

    fn builder(&self) -> PacketBuilderStep<IpHeaders> {
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => PacketBuilder::ipv4(src.octets(), dst.octets(), self.ttl),
            (IpAddr::V6(src), IpAddr::V6(dst)) => PacketBuilder::ipv6(src.octets(), dst.octets(), self.ttl),
            _ => panic!("addresses of two families"),
        }
    }

    fn icmp(&self, kind: u8, code: u8, rest: [u8; 4]) -> Vec<u8> {
        let mut packet = Vec::new();
        if self.src.is_ipv4() {
            self.builder().icmpv4_raw(kind, code, rest).write(&mut packet, &self.payload).unwrap();
        } else {
            self.builder().icmpv6_raw(kind, code, rest).write(&mut packet, &self.payload).unwrap();
        }
        packet
    }

    /// Builds an IP packet with these bytes behind the header.
    pub(crate) fn raw(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = Vec::new();
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let (src, dst, protocol) = (src.octets(), dst.octets(), IpNumber(protocol));
                let header = Ipv4Header::new(payload.len() as u16, self.ttl, protocol, src, dst).unwrap();
                header.write(&mut packet).unwrap();
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let header = Ipv6Header {
                    payload_length: payload.len() as u16,
                    next_header: IpNumber(protocol),
                    hop_limit: self.ttl,
                    source: src.octets(),
                    destination: dst.octets(),
                    ..Ipv6Header::default()
                };
                header.write(&mut packet).unwrap();
            }
            _ => panic!("addresses of two families"),
        }
        packet.extend(payload);
        packet
    }
}

/// Ethertype of an address's family.
pub(crate) fn ether_type(address: IpAddr) -> EtherType {
    if address.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 }
}

/// Builds a frame, with an 802.1Q tag if there is one.
pub(crate) fn ethernet(
    src: [u8; 6],
    dst: [u8; 6],
    vlan: Option<u16>,
    ether_type: EtherType,
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = Vec::new();
    let outer = if vlan.is_some() { EtherType::VLAN_TAGGED_FRAME } else { ether_type };
    Ethernet2Header { source: src, destination: dst, ether_type: outer }.write(&mut frame).unwrap();
    if let Some(vlan) = vlan {
        let vlan_id = VlanId::try_new(vlan).unwrap();
        let tag =
            SingleVlanHeader { pcp: VlanPcp::default(), drop_eligible_indicator: false, vlan_id, ether_type };
        tag.write(&mut frame).unwrap();
    }
    frame.extend(payload);
    frame
}

/// Builds an ARP packet in a frame: operation, sender, target.
pub(crate) fn arp(
    operation: u8,
    sender: ([u8; 6], [u8; 4]),
    target: ([u8; 6], [u8; 4]),
    dst_mac: [u8; 6],
) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, operation];
    packet.extend(sender.0);
    packet.extend(sender.1);
    packet.extend(target.0);
    packet.extend(target.1);
    ethernet(sender.0, dst_mac, None, EtherType::ARP, &packet)
}
