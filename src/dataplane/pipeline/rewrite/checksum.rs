//! Transport checksums that a sender has left unfinished: left to the kernel or the receiver, or computed.

use crate::dataplane::packet::Packet;
use crate::net::checksum::pseudo_header;
use crate::net::flow::Protocol;
use crate::net::{sctp, tcp, udp};
use crate::xdp::{Frame, Umem};

/// Computes the checksum that the sender has left to the hardware, or leaves it to the kernel; with `leaves` to the
/// receiver. The IP header begins `l3` bytes into the frame.
#[inline(never)]
pub(super) fn finish_checksum(umem: &Umem, frame: &mut Frame, packet: &Packet, l3: usize, leaves: bool) {
    finish(umem, frame, packet, l3, leaves || umem.leaves_checksums());
}

/// Computes the checksum that the sender has left to the hardware, of a packet that is cut into fragments: no hardware can.
#[cold]
pub(super) fn finish_checksum_here(umem: &Umem, frame: &mut Frame, packet: &Packet, l3: usize) {
    finish(umem, frame, packet, l3, false);
}

fn finish(umem: &Umem, frame: &mut Frame, packet: &Packet, l3: usize, leaves: bool) {
    let l4 = l3 + packet.ip_header_bytes();
    match packet.protocol {
        Protocol::TCP => finish_or_leave(umem, frame, packet, l4, tcp::CHECKSUM_OFFSET, leaves),
        Protocol::UDP => finish_or_leave(umem, frame, packet, l4, udp::CHECKSUM_OFFSET, leaves),
        Protocol::SCTP => finish_crc(umem, frame, l4),
        _ => {}
    }
}

fn finish_or_leave(umem: &Umem, frame: &mut Frame, packet: &Packet, l4: usize, offset: usize, leaves: bool) {
    // The field holds the sum over the pseudo-header, as hardware and kernel expect.
    if !leaves || !frame.leave_checksum(l4, offset) {
        finish_sum(umem, frame, packet, l4, offset);
    }
}

fn finish_sum(umem: &Umem, frame: &mut Frame, packet: &Packet, l4: usize, offset: usize) {
    let l3 = l4 - packet.ip_header_bytes();
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
