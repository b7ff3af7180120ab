//! Summary of a frame from its first bytes, for people.
//!
//! The bytes come from a pod. The summary has numbers and names of protocols, and nothing else of them.

use std::fmt::Write;
use std::net::IpAddr;

use etherparse::{
    EtherType, Icmpv4Slice, Icmpv6Slice, LaxLinkExtSlice, LaxNetSlice, LaxSlicedPacket, LinkSlice,
    TransportSlice,
};

use crate::net::flow::{FlowKey, Protocol};
use crate::net::{icmp, mac::Mac};

/// Summary of a frame.
pub(crate) struct FrameSummary {
    /// Flow of the packet, if the frame has an IP packet.
    pub(crate) flow: Option<FlowKey>,
    /// Text such as `IPv4 TCP SYN`.
    pub(crate) text: String,
}

/// Summarizes a frame of which `head` is the beginning.
pub(crate) fn summarize(head: &[u8]) -> FrameSummary {
    let Ok(packet) = LaxSlicedPacket::from_ethernet(head) else {
        return FrameSummary {
            flow: None,
            text: format!("{} bytes, less than an Ethernet header", head.len()),
        };
    };
    let mut text = String::new();
    // Writing to a string cannot fail.
    for extension in &packet.link_exts {
        if let LaxLinkExtSlice::Vlan(vlan) = extension {
            let _ = write!(text, "VLAN {} ", vlan.vlan_identifier().value());
        }
    }
    let (addresses, protocol): ([IpAddr; 2], u8) = match &packet.net {
        Some(LaxNetSlice::Ipv4(ip)) => {
            let header = ip.header();
            text.push_str("IPv4 ");
            if ip.payload().fragmented {
                text.push_str("fragment ");
            }
            ([header.source_addr().into(), header.destination_addr().into()], ip.payload().ip_number.0)
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            let header = ip.header();
            text.push_str("IPv6 ");
            if ip.payload().fragmented {
                text.push_str("fragment ");
            }
            ([header.source_addr().into(), header.destination_addr().into()], ip.payload().ip_number.0)
        }
        Some(LaxNetSlice::Arp(arp)) => {
            text.push_str(if arp.operation().0 == 1 { "ARP request" } else { "ARP" });
            return FrameSummary { flow: None, text };
        }
        None => {
            let _ = write!(text, "{}", other(&packet));
            return FrameSummary { flow: None, text };
        }
    };
    let protocol = Protocol(protocol);
    let _ = write!(text, "{protocol}");
    let (src_port, dst_port) = ports(&packet, protocol, &mut text);
    let [src, dst] = addresses;
    FrameSummary { flow: Some(FlowKey { src, dst, protocol, src_port, dst_port }), text }
}

/// Ports of the packet, or the identifier of an ICMP query. Adds what the transport header tells besides.
fn ports(packet: &LaxSlicedPacket<'_>, protocol: Protocol, text: &mut String) -> (u16, u16) {
    let query = |kind: u8, bytes: &[u8]| {
        let is_query = icmp::query(protocol, kind).is_some();
        let identifier = u16::from_be_bytes([bytes[0], bytes[1]]);
        if is_query { (identifier, identifier) } else { (0, 0) }
    };
    match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            let flags = [
                (tcp.syn(), " SYN"),
                (tcp.ack(), " ACK"),
                (tcp.fin(), " FIN"),
                (tcp.rst(), " RST"),
                (tcp.psh(), " PSH"),
            ];
            flags.iter().filter(|(is_set, _)| *is_set).for_each(|(_, flag)| text.push_str(flag));
            (tcp.source_port(), tcp.destination_port())
        }
        Some(TransportSlice::Udp(udp)) => (udp.source_port(), udp.destination_port()),
        Some(TransportSlice::Icmpv4(icmp)) => icmp_query(text, icmp.type_u8(), icmp.code_u8(), |kind| {
            query(kind, &Icmpv4Slice::bytes5to8(icmp))
        }),
        Some(TransportSlice::Icmpv6(icmp)) => icmp_query(text, icmp.type_u8(), icmp.code_u8(), |kind| {
            query(kind, &Icmpv6Slice::bytes5to8(icmp))
        }),
        Some(TransportSlice::Igmp(_)) | None => (0, 0),
    }
}

fn icmp_query(text: &mut String, kind: u8, code: u8, ports: impl Fn(u8) -> (u16, u16)) -> (u16, u16) {
    let _ = write!(text, " type {kind} code {code}");
    ports(kind)
}

/// Text of a frame without an IP packet.
fn other(packet: &LaxSlicedPacket<'_>) -> String {
    let Some(LinkSlice::Ethernet2(ethernet)) = &packet.link else { return "no Ethernet header".to_owned() };
    let ether_type = packet.link_exts.iter().rev().find_map(|extension| match extension {
        LaxLinkExtSlice::Vlan(vlan) => Some(vlan.ether_type()),
        LaxLinkExtSlice::Macsec(_) => None,
    });
    let ether_type = ether_type.unwrap_or_else(|| ethernet.ether_type());
    let to = Mac(ethernet.destination());
    match ether_type {
        EtherType::IPV4 | EtherType::IPV6 => format!("a broken IP packet to {to}"),
        EtherType(number) => format!("EtherType {number:#06x} to {to}"),
    }
}
