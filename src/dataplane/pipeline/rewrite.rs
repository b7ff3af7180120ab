//! The stage `rewrite`: Ethernet addresses, VLAN tag, TTL, and a transport checksum that the sender has left
//! unfinished.

mod checksum;
mod fragment;
mod segment;

use self::checksum::{finish_checksum, finish_checksum_here};
use self::fragment::{FragmentSizes, fragment};
use self::segment::{frames_of_segments, segment};
use super::batch::{Batch, Disposition, prefetch_frame};
use super::context::Context;
use super::tunnel::Encapsulation;
use crate::dataplane::DropReason;
use crate::dataplane::fib::next_hop::{Adjacency, Egress};
use crate::dataplane::packet::Packet;
use crate::net::{ethernet, ipv4, ipv6};
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
    batch.oversize.sort_unstable_by(|one, other| other.cmp(one));
    let mut next_oversize = batch.oversize.pop();
    for i in 0..batch.len() {
        while next_oversize.is_some_and(|next| usize::from(next) <= i) {
            if next_oversize == Some(i as u16) && batch.leaves(i) {
                rewrite_oversize(batch, i, context, transmit_credit, free, src);
            }
            next_oversize = batch.oversize.pop();
        }
        if !batch.leaves(i) {
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

/// Rewrites a packet that is larger than the MTU of its adjacency, and cuts it into fragments.
#[cold]
#[inline(never)]
fn rewrite_oversize(
    batch: &mut Batch,
    i: usize,
    context: &Context<'_>,
    transmit_credit: &mut [u32],
    free: &mut Vec<Frame>,
    src: u64,
) {
    let adjacency = batch.adjacencies[i];
    let src = source_of(context, adjacency, src);
    let mut packet = batch.packets[i];
    let frame = &mut batch.frames[i];
    frame.truncate(usize::from(packet.end));
    if packet.unfinished {
        finish_checksum_here(context.umem, frame, &packet, usize::from(packet.l3));
        packet.unfinished = false;
    }
    let is_written = rewrite_frame(context.umem, frame, &packet, adjacency, src, free);
    let sizes = if is_written { FragmentSizes::of(context.umem, frame, adjacency.mtu) } else { None };
    let Some(sizes) = sizes else { return batch.drop(i, DropReason::TooBig) };
    let encapsulation = encapsulation(batch, i, context);
    let frames = sizes.frames(added_bytes(encapsulation.as_ref()));
    let credit = &mut transmit_credit[adjacency.out.index()];
    let Some(left) = credit.checked_sub(frames as u32).filter(|_| free.len() >= frames) else {
        return batch.drop(i, DropReason::TxFull);
    };
    let count = fragment(context.umem, &batch.frames[i], &sizes, free, &mut batch.segments);
    if count == 0 || !encapsulate_last(batch, count, context.umem, encapsulation.as_ref(), free) {
        return batch.drop(i, DropReason::TxFull);
    }
    *credit = left;
    (batch.segment_counts[i], batch.has_fragments_to_send) = (count as u8, true);
    batch.dispositions[i] = Disposition::Forward(adjacency.out);
}

/// Ethernet source of frames that leave by an adjacency; `src` is the switch's.
fn source_of(context: &Context<'_>, adjacency: Adjacency, src: u64) -> u64 {
    let own = |out| context.snapshot.port(out).map_or(src, |port| port.own_mac.to_bits());
    if adjacency.is_uplink() { own(adjacency.out) } else { src }
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
    let is_cut = batch.frames[i].has_virtio_header() && !adjacency.takes_segments();
    let encapsulation = encapsulation(batch, i, context);
    let added = added_bytes(encapsulation.as_ref());
    let frames = |batch: &Batch| {
        let frame = &batch.frames[i];
        if is_cut {
            frames_of_segments(&batch.packets[i], frame, context.umem, added)
        } else {
            frame.frames()
        }
    };
    if (*credit as usize) < frames(batch) {
        return batch.drop(i, DropReason::TxFull);
    }
    let src = source_of(context, adjacency, src);
    let frame = &mut batch.frames[i];
    let fits = rewrite_frame(context.umem, frame, &batch.packets[i], adjacency, src, free);
    let whole = encapsulation.as_ref().filter(|_| !is_cut);
    let fits = fits && whole.is_none_or(|encapsulation| encapsulation.put(context.umem, frame, free));
    // A VLAN tag or a tunnel may have added a frame to the packet.
    let left = credit.checked_sub(frames(batch) as u32);
    let fits =
        fits && left.is_some() && (!is_cut || cut(batch, i, context.umem, encapsulation.as_ref(), free));
    batch.dispositions[i] = match left {
        Some(left) if fits => {
            *credit = left;
            Disposition::Forward(out)
        }
        _ => Disposition::Dropped(DropReason::TxFull),
    };
}

/// Outer headers of packet `i`, if it leaves by a tunnel.
#[inline]
fn encapsulation(batch: &Batch, i: usize, context: &Context<'_>) -> Option<Encapsulation> {
    let is_tunnelled = batch.adjacencies[i].egress == Egress::Tunnel;
    let head = || context.umem.data(&batch.frames[i]);
    is_tunnelled.then(|| Encapsulation::of(context.snapshot, head(), batch.packets[i].dst)).flatten()
}

fn added_bytes(encapsulation: Option<&Encapsulation>) -> usize {
    encapsulation.map_or(0, Encapsulation::bytes)
}

/// Cuts a packet into segments, each with outer headers if it leaves by a tunnel. Returns false without frames for them.
fn cut(
    batch: &mut Batch,
    i: usize,
    umem: &Umem,
    encapsulation: Option<&Encapsulation>,
    free: &mut Vec<Frame>,
) -> bool {
    let (packet, frame) = (&batch.packets[i], &batch.frames[i]);
    if free.len() < frames_of_segments(packet, frame, umem, added_bytes(encapsulation)) {
        return false;
    }
    let count = segment(umem, packet, frame, free, &mut batch.segments);
    let is_done = count > 0 && encapsulate_last(batch, count, umem, encapsulation, free);
    batch.segment_counts[i] = if is_done { count as u8 } else { 0 };
    is_done
}

/// Puts outer headers before the last `count` segments of a batch. Without room these are released.
fn encapsulate_last(
    batch: &mut Batch,
    count: usize,
    umem: &Umem,
    encapsulation: Option<&Encapsulation>,
    free: &mut Vec<Frame>,
) -> bool {
    let first = batch.segments.len() - count;
    let is_done = encapsulation.is_none_or(|encapsulation| {
        batch.segments.range_mut(first..).all(|segment| encapsulation.put(umem, segment, free))
    });
    if !is_done {
        batch.segments.drain(first..).for_each(|segment| umem.release(segment, free));
    }
    is_done
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
        & !adjacency.is_uplink()
        & !packet.unfinished
        & frame.is_plain();
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
        finish_checksum(umem, frame, packet, l3, adjacency.takes_segments() || frame.has_virtio_header());
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

#[cfg(test)]
mod tests;
