//! The stage `rewrite`: Ethernet addresses, VLAN tag, TTL, and a transport checksum that the sender has left
//! unfinished.

use super::batch::{Batch, Disposition, prefetch_frame};
use super::context::Context;
use crate::dataplane::DropReason;
use crate::dataplane::fib::next_hop::Adjacency;
use crate::dataplane::packet::Packet;
use crate::net::checksum::pseudo_header;
use crate::net::flow::Protocol;
use crate::net::{ethernet, ipv4, ipv6, sctp, tcp, udp};
use crate::xdp::{Frame, Umem};

/// Bytes of the headers of every packet. An IPv6 header is longer.
const HEADERS: usize = ethernet::HEADER_BYTES + ipv4::HEADER_BYTES;

/// Rewrites every pending frame for its adjacency, takes it from the credit of the port, and decides that it
/// leaves by that port; without credit it is dropped.
pub(super) fn rewrite(
    batch: &mut Batch,
    context: &Context<'_>,
    transmit_credit: &mut [u32],
    free: &mut Vec<Frame>,
) {
    let src = context.snapshot.mac.to_bits();
    for i in 0..batch.len() {
        if !batch.is_pending(i) {
            continue;
        }
        prefetch_frame(&batch.frames, i, context.umem);
        let adjacency = &batch.adjacencies[i];
        let credit = &mut transmit_credit[adjacency.out.index()];
        let fits = *credit > 0
            && rewrite_fast(context.umem, &mut batch.frames[i], &batch.packets[i], adjacency, src);
        if fits {
            *credit -= 1;
            batch.dispositions[i] = Disposition::Forward(adjacency.out);
        } else {
            rewrite_slow(batch, i, context, transmit_credit, free, src);
        }
    }
}

#[inline(never)]
fn rewrite_slow(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    transmit_credit: &mut [u32],
    free: &mut Vec<Frame>,
    src: u64,
) {
    let adjacency = batch.adjacencies[i];
    let out = adjacency.out;
    let credit = &mut transmit_credit[out.index()];
    if *credit < batch.frames[i].frames() as u32 {
        return batch.drop(i, DropReason::TxFull);
    }
    let src = if adjacency.is_uplink {
        context.snapshot.port(out).map_or(src, |port| port.own_mac.to_bits())
    } else {
        src
    };
    let fits = rewrite_frame(context.umem, &mut batch.frames[i], &batch.packets[i], adjacency, src, free);
    // A VLAN tag may have added a frame to the packet.
    batch.dispositions[i] = match credit.checked_sub(batch.frames[i].frames() as u32) {
        Some(left) if fits => {
            *credit = left;
            Disposition::Forward(out)
        }
        _ => Disposition::Dropped(DropReason::TxFull),
    };
}

/// Rewrites a packet for `adjacency`, from the Ethernet address `src` ([`Mac::to_bits`]), if it has no VLAN
/// tag before and after, a finished checksum, one frame, and does not leave by an uplink. Nearly all packets
/// are such. Returns false, and does nothing, for any other packet.
///
/// [`Mac::to_bits`]: crate::net::mac::Mac::to_bits
#[inline(always)]
pub(crate) fn rewrite_fast(
    umem: &Umem,
    frame: &mut Frame,
    packet: &Packet,
    adjacency: &Adjacency,
    src: u64,
) -> bool {
    let is_plain = (usize::from(packet.l3) == ethernet::HEADER_BYTES)
        & (adjacency.vlan == 0)
        & !adjacency.is_uplink
        & !packet.unfinished
        & !frame.is_multi_buffer();
    if !is_plain {
        return false;
    }
    frame.truncate(usize::from(packet.end));
    let Some(headers) = umem.data_mut(frame).first_chunk_mut::<HEADERS>() else { return false };
    ethernet::set_address_bits(headers, adjacency.mac, src);
    rewrite_ip(&mut headers[ethernet::HEADER_BYTES..], packet);
    true
}

/// Rewrites any packet. If its frames have no space for a VLAN tag, it goes on in a further frame of
/// `free`; returns false without one.
pub(crate) fn rewrite_frame(
    umem: &Umem,
    frame: &mut Frame,
    packet: &Packet,
    adjacency: Adjacency,
    src: u64,
    free: &mut Vec<Frame>,
) -> bool {
    // Ethernet padding is cut off, so that no data passes the switch unseen behind a packet.
    frame.truncate(usize::from(packet.end));
    let is_tagged = usize::from(packet.l3) != ethernet::HEADER_BYTES;
    let stays = is_tagged == (adjacency.vlan != 0) && packet.vlan == adjacency.vlan;
    if !stays && !retag(umem, frame, packet, adjacency.vlan, free) {
        return false;
    }
    let bytes = umem.data_mut(frame);
    ethernet::set_address_bits(bytes, adjacency.mac, src);
    let l3 = if stays { usize::from(packet.l3) } else { ethernet::bytes_with(adjacency.vlan) };
    let Some(ip) = bytes.get_mut(l3..) else { return false };
    rewrite_ip(ip, packet);
    if packet.unfinished {
        finish_checksum(umem, frame, packet, l3);
    }
    true
}

#[inline(always)]
fn rewrite_ip(ip: &mut [u8], packet: &Packet) {
    if packet.is_v4 {
        ipv4::decrement_ttl(ip);
    } else {
        ipv6::decrement_hop_limit(ip);
    }
}

/// Sets the VLAN tag of the frame to `vlan`; removes it with 0.
#[cold]
fn retag(umem: &Umem, frame: &mut Frame, packet: &Packet, vlan: u16, free: &mut Vec<Frame>) -> bool {
    let tagged = usize::from(packet.l3) != ethernet::HEADER_BYTES;
    let fits = match (tagged, vlan != 0) {
        (true, false) => frame.shrink_head(ethernet::TAG_BYTES).is_ok(),
        (false, true) => umem.grow_head(frame, ethernet::TAG_BYTES, free).is_ok(),
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

/// Computes the checksum that the sender has left to the hardware, or leaves it to the kernel. The IP header
/// begins `l3` bytes into the frame.
#[inline(never)]
fn finish_checksum(umem: &Umem, frame: &mut Frame, packet: &Packet, l3: usize) {
    let l4 = l3 + usize::from(packet.l4 - packet.l3);
    match packet.protocol {
        Protocol::TCP => finish_or_leave(umem, frame, packet, l4, tcp::CHECKSUM_OFFSET),
        Protocol::UDP => finish_or_leave(umem, frame, packet, l4, udp::CHECKSUM_OFFSET),
        Protocol::SCTP => finish_crc(umem, frame, l4),
        _ => {}
    }
}

fn finish_or_leave(umem: &Umem, frame: &mut Frame, packet: &Packet, l4: usize, offset: usize) {
    // The field holds the sum over the pseudo-header, as hardware and kernel expect.
    if !umem.leaves_checksums() || !frame.leave_checksum(l4, offset) {
        finish_sum(umem, frame, packet, l4, offset);
    }
}

fn finish_sum(umem: &Umem, frame: &mut Frame, packet: &Packet, l4: usize, offset: usize) {
    let l3 = l4 - usize::from(packet.l4 - packet.l3);
    let field = l4 + offset..l4 + offset + 2;
    umem.data_mut(frame)[field.clone()].fill(0);
    let head = umem.data(frame);
    let addresses = if packet.is_v4 { &head[l3 + 12..l3 + 20] } else { &head[l3 + 8..l3 + 40] };
    let pseudo = pseudo_header(addresses, packet.protocol, packet.transport_bytes());
    let (mut sum, mut at) = (pseudo.add_bytes(&head[l4..]), head.len() - l4);
    for part in umem.rest(frame) {
        (sum, at) = (sum.add_bytes_at(at, part), at + part.len());
    }
    let checksum = sum.finish();
    // "If the computed checksum is zero, it is transmitted as all ones [...]. An all zero transmitted
    // checksum value means that the transmitter generated no checksum" (RFC 768).
    let checksum = if checksum == 0 && packet.protocol == Protocol::UDP { 0xffff } else { checksum };
    umem.data_mut(frame)[field].copy_from_slice(&checksum.to_be_bytes());
}

#[cold]
fn finish_crc(umem: &Umem, frame: &mut Frame, l4: usize) {
    let field = l4 + sctp::CHECKSUM_OFFSET..l4 + sctp::CHECKSUM_OFFSET + 4;
    umem.data_mut(frame)[field.clone()].fill(0);
    let checksum = sctp::checksum(std::iter::once(&umem.data(frame)[l4..]).chain(umem.rest(frame)));
    umem.data_mut(frame)[field].copy_from_slice(&checksum);
}

#[cfg(test)]
mod tests;
