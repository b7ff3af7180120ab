//! What forwarding changes in a packet: Ethernet addresses, tag, TTL, and a transport checksum that its sender left
//! unfinished.

use super::batch::Way;
use super::packet::Packet;
use crate::net::checksum::pseudo_header;
use crate::net::flow::Protocol;
use crate::net::{ethernet, ipv4, ipv6, sctp, tcp, udp};
use crate::xdp::{Frame, Umem};

/// Makes a packet ready to leave by `way`, from the Ethernet address `src` ([`Mac::to_bits`]); false where the tag does not
/// fit into the frame.
#[inline(always)]
pub(crate) fn rewrite(umem: &Umem, frame: &mut Frame, packet: &Packet, way: Way, src: u64) -> bool {
    const UNTAGGED: usize = ethernet::HEADER_BYTES;
    // Padding is the link's: the next one adds its own, and nothing travels behind a packet unseen.
    frame.truncate(usize::from(packet.end));
    if usize::from(packet.l3) != UNTAGGED || way.vlan != 0 {
        return rewrite_tagged(umem, frame, packet, way, src);
    }
    let bytes = umem.data_mut(frame);
    ethernet::set_address_bits(bytes, way.mac, src);
    let Some(ip) = bytes.get_mut(UNTAGGED..) else { return false };
    rewrite_ip(ip, packet);
    true
}

/// [`rewrite`] where there is a tag, or is to be one.
#[inline(never)]
fn rewrite_tagged(umem: &Umem, frame: &mut Frame, packet: &Packet, way: Way, src: u64) -> bool {
    let stays = packet.vlan == way.vlan && way.vlan != 0;
    if !stays && !retag(umem, frame, packet, way.vlan) {
        return false;
    }
    let bytes = umem.data_mut(frame);
    ethernet::set_address_bits(bytes, way.mac, src);
    let l3 = if stays { usize::from(packet.l3) } else { ethernet::bytes_with(way.vlan) };
    let Some(ip) = bytes.get_mut(l3..) else { return false };
    rewrite_ip(ip, packet);
    true
}

#[inline(always)]
fn rewrite_ip(ip: &mut [u8], packet: &Packet) {
    if packet.is_v4 {
        ipv4::decrement_ttl(ip);
    } else {
        ipv6::decrement_hop_limit(ip);
    }
    if packet.unfinished {
        finish_checksum(ip, packet);
    }
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

/// Computes the checksum that the sender has left to the hardware.
#[cold]
fn finish_checksum(ip: &mut [u8], packet: &Packet) {
    let l4 = usize::from(packet.l4 - packet.l3);
    match packet.protocol {
        Protocol::TCP => finish_sum(ip, l4, packet, tcp::CHECKSUM_OFFSET),
        Protocol::UDP => finish_sum(ip, l4, packet, udp::CHECKSUM_OFFSET),
        Protocol::SCTP => sctp::finish(&mut ip[l4..]),
        _ => {}
    }
}

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
