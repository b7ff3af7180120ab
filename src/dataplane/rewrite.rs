//! What forwarding changes in a packet: Ethernet addresses, tag, TTL, and a transport checksum that its sender left
//! unfinished.

use super::packet::{Packet, is_v4};
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
    let bytes = umem.data_mut(frame);
    let ip = &mut bytes[usize::from(packet.l3)..];
    if is_v4(packet.src) {
        ipv4::decrement_ttl(ip);
    } else {
        ipv6::decrement_hop_limit(ip);
    }
    complete_checksum(ip, packet);
    if packet.vlan == vlan && (vlan != 0 || usize::from(packet.l3) == ethernet::HEADER_BYTES) {
        ethernet::set_addresses(bytes, dst, src);
        return true;
    }
    retag(umem, frame, packet, vlan) && {
        ethernet::set_addresses(umem.data_mut(frame), dst, src);
        true
    }
}

/// Gives the frame the tag `vlan`, or none with 0.
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
    let ethertype = if is_v4(packet.src) { ethernet::IPV4 } else { ethernet::IPV6 };
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
        Protocol::SCTP if ip[l4 + sctp::CHECKSUM_OFFSET..][..4] == [0; 4] => sctp::finish(&mut ip[l4..]),
        _ => {}
    }
}

#[inline]
fn complete_sum(ip: &mut [u8], l4: usize, packet: &Packet, offset: usize) {
    let addresses = if is_v4(packet.src) { &ip[12..20] } else { &ip[8..40] };
    let pseudo = pseudo_header(addresses, packet.protocol, ip.len() - l4);
    let segment = &mut ip[l4..];
    let field = u16::from_be_bytes([segment[offset], segment[offset + 1]]);
    if field != pseudo.fold() || (field == 0 && packet.protocol == Protocol::UDP) {
        return;
    }
    segment[offset..offset + 2].fill(0);
    let checksum = pseudo.add_bytes(segment).finish();
    // Zero would say "no checksum" (RFC 768); its other representation is as good.
    let checksum = if checksum == 0 && packet.protocol == Protocol::UDP { 0xffff } else { checksum };
    segment[offset..offset + 2].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests;
