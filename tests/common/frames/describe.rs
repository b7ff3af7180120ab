//! Frames in words, for the messages of failed tests.

use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::{LinkHeader, NetHeaders, PacketHeaders};

/// Describes the headers of a frame, and the length of its payload; lists the bytes of one that does not parse.
pub(crate) fn describe(frame: &[u8]) -> String {
    let headers = match PacketHeaders::from_ethernet_slice(frame) {
        Ok(headers) => headers,
        Err(error) => return format!("{} bytes ({error}): {frame:02x?}", frame.len()),
    };
    let mut text = format!("{} bytes", frame.len());
    if let Some(LinkHeader::Ethernet2(link)) = &headers.link {
        text += &format!(", {:02x?} > {:02x?}", link.source, link.destination);
    }
    if let Some(tag) = headers.vlan() {
        text += &format!(", {tag:?}");
    }
    match &headers.net {
        Some(NetHeaders::Ipv4(ip, _)) => {
            text += &format!(", {} > {}", Ipv4Addr::from(ip.source), Ipv4Addr::from(ip.destination));
            text += &format!(", TTL {}, protocol {}", ip.time_to_live, ip.protocol.0);
            text +=
                &format!(", fragment offset {} more {}", ip.fragment_offset.byte_offset(), ip.more_fragments);
        }
        Some(NetHeaders::Ipv6(ip, _)) => {
            text += &format!(", {} > {}", Ipv6Addr::from(ip.source), Ipv6Addr::from(ip.destination));
            text += &format!(", hop limit {}, next header {}", ip.hop_limit, ip.next_header.0);
        }
        Some(NetHeaders::Arp(arp)) => text += &format!(", {arp:?}"),
        None => text += ", no IP packet",
    }
    if let Some(transport) = &headers.transport {
        text += &format!(", {transport:?}");
    }
    text + &format!(", payload of {} bytes", headers.payload.slice().len())
}
