//! What forwarding changes in a packet: Ethernet addresses, tag, TTL, and a transport checksum that its sender left
//! unfinished.

use super::packet::Packet;
use crate::net::checksum::pseudo_header;
use crate::net::flow::Protocol;
use crate::net::mac::Mac;
use crate::net::{ethernet, ipv4, ipv6, sctp, tcp, udp};
use crate::xdp::{Frame, Umem};

/// Makes a packet ready to leave towards `dst`; false where the tag does not fit into the frame.
#[inline]
pub(crate) fn rewrite(
    umem: &Umem,
    frame: &mut Frame,
    packet: &Packet,
    dst: Mac,
    src: Mac,
    vlan: u16,
) -> bool {
    // Padding is the link's: the next one adds its own, and nothing travels behind a packet unseen.
    frame.truncate(usize::from(packet.end));
    let same_tag = packet.vlan == vlan && (vlan != 0 || usize::from(packet.l3) == ethernet::HEADER_BYTES);
    if !same_tag && !retag(umem, frame, packet, vlan) {
        return false;
    }
    let bytes = umem.data_mut(frame);
    ethernet::set_addresses(bytes, dst, src);
    let l3 = if same_tag { usize::from(packet.l3) } else { ethernet::bytes_with(vlan) };
    let Some(ip) = bytes.get_mut(l3..) else { return false };
    if packet.is_v4 {
        ipv4::decrement_ttl(ip);
    } else {
        ipv6::decrement_hop_limit(ip);
    }
    complete_checksum(ip, packet);
    true
}

/// Gives the frame the tag `vlan`, or none with 0.
#[cold]
fn retag(umem: &Umem, frame: &mut Frame, packet: &Packet, vlan: u16) -> bool {
    let tagged = usize::from(packet.l3) != ethernet::HEADER_BYTES;
    let fits = match (tagged, vlan != 0) {
        (true, false) => frame.shrink_head(ethernet::TAG_BYTES).is_ok(),
        (false, true) => frame.grow_head(ethernet::TAG_BYTES).is_ok(),
        _ => true,
    };
    if !fits {
        return false;
    }
    let bytes = umem.data_mut(frame);
    let ethertype = if packet.is_v4 { ethernet::IPV4 } else { ethernet::IPV6 };
    let mut at = 12;
    if vlan != 0 {
        bytes[12..14].copy_from_slice(&ethernet::VLAN.to_be_bytes());
        bytes[14..16].copy_from_slice(&vlan.to_be_bytes());
        at = 16;
    }
    bytes[at..at + 2].copy_from_slice(&ethertype.to_be_bytes());
    true
}

/// Completes a TCP or UDP checksum that holds only the sum over the pseudo-header, and one of SCTP that holds nothing.
///
/// Linux leaves the checksum of a packet that it sends to the hardware (`CHECKSUM_PARTIAL`), and veth claims to be such
/// hardware; nothing in the frame says so. The field then holds exactly the folded sum over the pseudo-header. A finished
/// checksum has that value once in 65,536 packets; computing it again gives the same. That of SCTP has no pseudo-header
/// and is left zero.
#[inline]
fn complete_checksum(ip: &mut [u8], packet: &Packet) {
    if !packet.whole {
        return; // Linux finishes the checksum before it cuts a packet into fragments.
    }
    let l4 = usize::from(packet.l4 - packet.l3);
    match packet.protocol {
        Protocol::TCP => complete_sum(ip, l4, packet, tcp::CHECKSUM_OFFSET),
        // Where the datagram is shorter than its packet the checksum covers another length: not the kernel's work.
        Protocol::UDP if udp::Udp::new(&ip[l4..]).is_some_and(|udp| udp.bytes() == ip.len() - l4) => {
            complete_sum(ip, l4, packet, udp::CHECKSUM_OFFSET);
        }
        Protocol::SCTP => complete_crc(&mut ip[l4..]),
        _ => {}
    }
}

#[cold]
fn complete_crc(segment: &mut [u8]) {
    if segment[sctp::CHECKSUM_OFFSET..][..4] == [0; 4] {
        sctp::finish(segment);
    }
}

#[inline]
fn complete_sum(ip: &mut [u8], l4: usize, packet: &Packet, offset: usize) {
    let Some(field) = ip.get(l4 + offset..).and_then(<[u8]>::first_chunk) else { return };
    let field = u16::from_be_bytes(*field);
    if field == folded_pseudo_header(packet, ip.len() - l4)
        && (field != 0 || packet.protocol != Protocol::UDP)
    {
        finish_sum(ip, l4, packet, offset);
    }
}

/// The sum over the pseudo-header in 16 bits, from what is in registers anyway.
#[inline]
fn folded_pseudo_header(packet: &Packet, transport_bytes: usize) -> u16 {
    let halves = |word: u64| (word & 0xffff_ffff) + (word >> 32);
    let words = |address: u128| halves(address as u64) + halves((address >> 64) as u64);
    let addresses = if packet.is_v4 {
        u64::from(packet.src as u32) + u64::from(packet.dst as u32)
    } else {
        words(packet.src) + words(packet.dst)
    };
    let sum = addresses + u64::from(packet.protocol.0) + transport_bytes as u64;
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cold]
fn finish_sum(ip: &mut [u8], l4: usize, packet: &Packet, offset: usize) {
    let addresses = if packet.is_v4 { &ip[12..20] } else { &ip[8..40] };
    let pseudo = pseudo_header(addresses, packet.protocol, ip.len() - l4);
    let segment = &mut ip[l4..];
    segment[offset..offset + 2].fill(0);
    let checksum = pseudo.add_bytes(segment).finish();
    // Zero would say "no checksum" (RFC 768); its other representation is as good.
    let checksum = if checksum == 0 && packet.protocol == Protocol::UDP { 0xffff } else { checksum };
    segment[offset..offset + 2].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests;
