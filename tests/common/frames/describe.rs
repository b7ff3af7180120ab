//! Frames in words, for the messages of failed tests.

use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::{LinkHeader, NetHeaders, PacketHeaders};

/// Describes the headers of a frame, and the length of its payload; lists the bytes of one that does not
/// parse.
pub(crate) fn describe(frame: &[u8]) -> String {
    let headers = match PacketHeaders::from_ethernet_slice(frame) {
        Ok(headers) => headers,
        Err(error) => return format!("{} bytes ({error}): {frame:02x?}", frame.len()),
    };
    let mut parts = vec![format!("{} bytes", frame.len())];
    if let Some(LinkHeader::Ethernet2(link)) = &headers.link {
        parts.push(format!("{:02x?} > {:02x?}", link.source, link.destination));
    }
    parts.extend(headers.vlan().map(|tag| format!("{tag:?}")));
    parts.push(match &headers.net {
        Some(NetHeaders::Ipv4(ip, _)) => format!(
            "{} > {}, TTL {}, protocol {}, fragment offset {} more {}",
            Ipv4Addr::from(ip.source),
            Ipv4Addr::from(ip.destination),
            ip.time_to_live,
            ip.protocol.0,
            ip.fragment_offset.byte_offset(),
            ip.more_fragments
        ),
        Some(NetHeaders::Ipv6(ip, _)) => format!(
            "{} > {}, hop limit {}, next header {}",
            Ipv6Addr::from(ip.source),
            Ipv6Addr::from(ip.destination),
            ip.hop_limit,
            ip.next_header.0
        ),
        Some(NetHeaders::Arp(arp)) => format!("{arp:?}"),
        None => "no IP packet".to_owned(),
    });
    parts.extend(headers.transport.as_ref().map(|transport| format!("{transport:?}")));
    parts.push(format!("payload of {} bytes", headers.payload.slice().len()));
    parts.join(", ")
}
