//! Virtio-net headers of packets from tap devices, compared with the packets.
//!
//! The header comes from the pod, which may write any bytes into it. A packet keeps it only if it describes the
//! packet that the stage `parse` has read: segments of TCP or UDP, with an unfinished checksum. All other stages
//! rely on that.

use crate::dataplane::DropReason;
use crate::dataplane::packet::{Kind, Packet};
use crate::dataplane::pipeline::batch::{Batch, Disposition};
use crate::dataplane::pipeline::context::Context;
use crate::limits::{PORT_SEGMENTS_MAX, TRANSPORT_OFFSET_MAX};
use crate::net::checksum::Sum;
use crate::net::flow::Protocol;
use crate::net::tcp::{self, Flags, Tcp};
use crate::net::virtio_net::{GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, VirtioNet};
use crate::net::{icmp, sctp, udp};
use crate::xdp::{Frame, Umem};

/// Verdict on a virtio-net header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderCheck {
    /// The packet is of the wire, as parsed.
    Plain,
    /// The packet has several segments, each of which has so many payload bytes at most.
    Segments(u16),
    /// The packet has an unfinished checksum within its payload, of a packet in a tunnel.
    Inner,
    /// The header contradicts the packet.
    Contradicts,
}

/// Compares the virtio-net headers of the batch with its packets, and drops packets whose header contradicts
/// them.
#[inline(never)]
pub(in crate::dataplane::pipeline) fn check_virtio_headers(batch: &mut Batch, context: &Context<'_>) {
    for i in 0..batch.len() {
        let frame = &mut batch.frames[i];
        let Some(header) = context.umem.virtio_header(frame) else { continue };
        if batch.dispositions[i] != Disposition::Pending {
            // The parser may have stopped before it wrote the packet.
            frame.drop_virtio_header();
            continue;
        }
        match check_header(&header, &batch.packets[i], context.umem.data(frame)) {
            HeaderCheck::Segments(_) => {
                // The receiver's kernel refuses a packet with fewer bytes than this hint.
                let packet = &batch.packets[i];
                let hdr_len =
                    usize::from(packet.l4) + transport_header_bytes(packet, context.umem.data(frame));
                let header = VirtioNet { hdr_len: hdr_len as u16, ..header };
                let further = header.segments(usize::from(packet.end)) as u64 - 1;
                context.stats.port(batch.in_ports[i]).received_segments.add(further);
                context.umem.set_virtio_header(frame, header);
                continue;
            }
            HeaderCheck::Inner => finish_inner(context.umem, frame, &header),
            HeaderCheck::Plain => {}
            HeaderCheck::Contradicts => batch.drop(i, DropReason::Malformed),
        }
        batch.frames[i].drop_virtio_header();
    }
}

/// Compares a virtio-net header with its packet, whose first buffer is `head`.
pub(crate) fn check_header(header: &VirtioNet, packet: &Packet, head: &[u8]) -> HeaderCheck {
    let field = match packet.protocol {
        Protocol::TCP => tcp::CHECKSUM_OFFSET,
        Protocol::UDP => udp::CHECKSUM_OFFSET,
        _ => usize::MAX,
    };
    let (start, offset) = (usize::from(header.csum_start), usize::from(header.csum_offset));
    let is_transport = start == usize::from(packet.l4) && offset == field && packet.kind == Kind::Flow;
    if header.is_gso() {
        return if is_transport && header.needs_checksum() && packet.unfinished {
            check_gso(header, packet, head)
        } else {
            HeaderCheck::Contradicts
        };
    }
    // The checksum is written after the packet was parsed, so it must not lie within parsed headers.
    let parsed = usize::from(packet.l4) + parsed_header_bytes(packet, head);
    let is_inner =
        packet.kind == Kind::Flow && packet.whole && start >= parsed && start + offset + 2 <= head.len();
    if !header.needs_checksum() || (is_transport && packet.unfinished) {
        HeaderCheck::Plain
    } else if !is_transport && is_inner {
        HeaderCheck::Inner
    } else {
        HeaderCheck::Contradicts
    }
}

/// Compares the segments of a header with a whole packet of TCP or UDP.
fn check_gso(header: &VirtioNet, packet: &Packet, head: &[u8]) -> HeaderCheck {
    let kind = header.gso_type & !GSO_ECN;
    let is_of_packet = match packet.protocol {
        Protocol::TCP => kind == if packet.is_v4 { GSO_TCPV4 } else { GSO_TCPV6 },
        _ => header.gso_type == GSO_UDP_L4,
    };
    let is_stream = packet.protocol != Protocol::TCP || !packet.tcp_flags().has_any(Flags::SYN | Flags::RST);
    let headers = usize::from(packet.l4) + transport_header_bytes(packet, head);
    let payload = usize::from(packet.end).saturating_sub(headers);
    let bytes = usize::from(header.gso_size);
    let fits = is_of_packet
        && is_stream
        && bytes > 0
        && payload > 0
        && headers <= head.len()
        && usize::from(packet.l4) <= TRANSPORT_OFFSET_MAX
        && payload.div_ceil(bytes) <= PORT_SEGMENTS_MAX;
    match fits {
        true if payload > bytes => HeaderCheck::Segments(header.gso_size),
        true => HeaderCheck::Plain,
        false => HeaderCheck::Contradicts,
    }
}

/// Bytes of the header above IP that the parser reads.
fn parsed_header_bytes(packet: &Packet, head: &[u8]) -> usize {
    match packet.protocol {
        Protocol::TCP | Protocol::UDP => transport_header_bytes(packet, head),
        // The common header and the type of the first chunk (RFC 9260 section 3).
        Protocol::SCTP => sctp::HEADER_BYTES + 4,
        _ => icmp::HEADER_BYTES,
    }
}

/// Bytes of the TCP or UDP header.
pub(in crate::dataplane::pipeline) fn transport_header_bytes(packet: &Packet, head: &[u8]) -> usize {
    match packet.protocol {
        Protocol::TCP => Tcp::new(packet.transport(head)).map_or(tcp::HEADER_BYTES, Tcp::header_bytes),
        _ => udp::HEADER_BYTES,
    }
}

/// Finishes the checksum of a packet within the payload, as a NIC does. The field holds the sum over the
/// pseudo-header.
#[cold]
fn finish_inner(umem: &Umem, frame: &mut Frame, header: &VirtioNet) {
    let (start, offset) = (usize::from(header.csum_start), usize::from(header.csum_offset));
    let head = umem.data(frame);
    let (mut sum, mut at) = (Sum::default().add_bytes(&head[start..]), head.len() - start);
    for part in umem.rest(frame) {
        (sum, at) = (sum.add_bytes_at(at, part), at + part.len());
    }
    // RFC 768 transmits a UDP checksum of zero as all ones. For TCP both are the same sum.
    let checksum = match sum.finish() {
        0 => 0xffff_u16,
        checksum => checksum,
    };
    umem.data_mut(frame)[start + offset..start + offset + 2].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
pub(in crate::dataplane::pipeline) mod tests;
