//! The packet that an ICMP error quotes, translated as its sender knows it.

use super::tuple::{
    Change, Ends, checksum_offset, ip_header_bytes, replace_addresses, replace_identifier, replace_ports,
    update_transport,
};
use crate::dataplane::packet::Packet;
use crate::net::flow::Protocol;
use crate::net::{icmp, ipv4, ipv6};

/// Bytes of a quote that change: an IPv4 header with options or an IPv6 header with some extension headers, and a TCP header.
const QUOTE_BYTES_MAX: usize = 128;

/// Replaces `quoted` ends of the packet that an ICMP error quotes, and `outer` addresses of the error. `packet` is the error.
pub(super) fn translate_quote(head: &mut [u8], packet: &Packet, quoted: Ends, outer: Ends) {
    let (l3, l4) = (usize::from(packet.l3), usize::from(packet.l4));
    let end = usize::from(packet.end).min(head.len());
    let Some(ip) = head.get_mut(l3..) else { return };
    let addresses = replace_addresses(ip, outer);
    let Some(message) = head.get_mut(l4..end).filter(|message| message.len() > icmp::HEADER_BYTES) else {
        return;
    };
    let (header, quote) = message.split_at_mut(icmp::HEADER_BYTES);
    let bytes = quote.len().min(QUOTE_BYTES_MAX);
    let mut before = [0; QUOTE_BYTES_MAX];
    before[..bytes].copy_from_slice(&quote[..bytes]);
    replace_quoted(&mut quote[..bytes], quoted);
    let change = Change::of(&before[..bytes], &quote[..bytes]);
    let Some(field) = header.get_mut(icmp::CHECKSUM_OFFSET..).and_then(|rest| rest.first_chunk_mut::<2>())
    else {
        return;
    };
    change.update(field);
    if !packet.is_v4 {
        // The checksum of ICMPv6 covers the pseudo-header too (RFC 4443 section 2.3).
        addresses.update(field);
    }
}

fn replace_quoted(quote: &mut [u8], ends: Ends) {
    let Some(l4) = ip_header_bytes(quote) else { return };
    let protocol = if quote[0] >> 4 == 4 {
        quote.get(..ipv4::HEADER_BYTES).and_then(ipv4::Ipv4::new).map(ipv4::Ipv4::protocol)
    } else {
        ipv6::upper_layer(quote).map(|upper| upper.protocol)
    };
    let addresses = replace_addresses(quote, ends);
    let Some(transport) = quote.get_mut(l4..) else { return };
    if let Some(protocol @ (Protocol::ICMP | Protocol::ICMPV6)) = protocol {
        return replace_identifier(transport, protocol, false, ends, addresses);
    }
    let ports = replace_ports(transport, ends);
    let offset = protocol.and_then(checksum_offset);
    // A quote of eight bytes ends before the checksum of TCP.
    if let Some(field) =
        offset.and_then(|offset| transport.get_mut(offset..)).and_then(|rest| rest.first_chunk_mut::<2>())
    {
        update_transport(field, protocol.unwrap_or(Protocol::TCP), false, [addresses, ports]);
    }
}
