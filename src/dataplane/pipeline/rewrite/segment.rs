//! Segmentation of packets from tap devices that leave by other ports.

use std::collections::VecDeque;

use super::checksum::finish_checksum;
use crate::dataplane::packet::Packet;
use crate::dataplane::pipeline::parse::virtio_header::transport_header_bytes;
use crate::net::checksum::{Sum, pseudo_header};
use crate::net::flow::Protocol;
use crate::net::tcp::{self, Flags};
use crate::net::{ethernet, ipv4, udp};
use crate::xdp::{Frame, Umem};

/// Congestion Window Reduced (RFC 3168 section 6.1): "set [...] in the first new data packet".
const CWR: u8 = 0x80;

/// Frames that the segments of a packet take, with `added` bytes of outer headers each.
pub(super) fn frames_of_segments(packet: &Packet, frame: &Frame, umem: &Umem, added: usize) -> usize {
    let Some(segments) = Segments::of(packet, frame, umem) else { return frame.frames() };
    segments.count() * (added + segments.headers + segments.bytes).div_ceil(Umem::PACKET_ROOM)
}

/// Segments of a packet, as numbers of bytes.
struct Segments {
    /// Start of the IP header and of the transport header.
    l3: usize,
    l4: usize,
    /// Bytes of all headers.
    headers: usize,
    /// Payload bytes of the packet, and of each segment but the last.
    payload: usize,
    bytes: usize,
}

impl Segments {
    /// Segments of a packet with a virtio-net header that [`check_header`] has accepted. The VLAN tag of the
    /// frame may differ from that of the parsed packet.
    fn of(packet: &Packet, frame: &Frame, umem: &Umem) -> Option<Segments> {
        let bytes = usize::from(umem.virtio_header(frame)?.gso_size);
        let head = umem.data(frame);
        let l3 = ethernet::parse(head)?.header_bytes;
        let l4 = l3 + packet.ip_header_bytes();
        let shifted = Packet { l4: l4 as u16, end: frame.len() as u16, ..*packet };
        let headers = l4 + transport_header_bytes(&shifted, head);
        let payload = frame.len().checked_sub(headers)?;
        (bytes > 0 && headers <= head.len()).then_some(Segments { l3, l4, headers, payload, bytes })
    }

    fn count(&self) -> usize {
        self.payload.div_ceil(self.bytes)
    }
}

/// Cuts a packet with a virtio-net header into packets of its segment size, in frames of `free`, and appends these
/// to `out`. Its other headers are those of the wire already. Returns the number of segments; 0, with nothing
/// appended, if frames or the capacity of `out` do not suffice.
#[inline(never)]
pub(super) fn segment(
    umem: &Umem,
    packet: &Packet,
    frame: &Frame,
    free: &mut Vec<Frame>,
    out: &mut VecDeque<Frame>,
) -> usize {
    let Some(segments) = Segments::of(packet, frame, umem) else { return 0 };
    let count = segments.count();
    let is_room =
        free.len() >= frames_of_segments(packet, frame, umem, 0) && out.capacity() - out.len() >= count;
    if !is_room {
        return 0;
    }
    let head = umem.data(frame);
    let (headers, first) = head.split_at(segments.headers);
    let mut payload = Payload { part: first, rest: umem.rest(frame) };
    for number in 0..count {
        let bytes = segments.bytes.min(segments.payload - number * segments.bytes);
        let Some(mut cut) = write_segment(umem, headers, &mut payload, bytes, free) else {
            debug_assert!(false, "the frames were counted before");
            break;
        };
        let is_last = number + 1 == count;
        set_fields(umem.data_mut(&mut cut), packet, &segments, number, bytes, is_last);
        let transport = segments.headers - segments.l4 + bytes;
        let packet = Packet { end: packet.l4 + transport as u16, ..*packet };
        finish_checksum(umem, &mut cut, &packet, segments.l3, false);
        out.push_back(cut);
    }
    count
}

/// Payload of a packet, in order.
pub(super) struct Payload<'a, Rest> {
    /// Bytes that come next.
    pub(super) part: &'a [u8],
    /// Parts that follow them.
    pub(super) rest: Rest,
}

impl<'a, Rest: Iterator<Item = &'a [u8]>> Payload<'a, Rest> {
    /// Copies the next bytes to `place`.
    fn copy_to(&mut self, mut place: &mut [u8]) {
        while !place.is_empty() {
            if self.part.is_empty() {
                let Some(next) = self.rest.next() else { return };
                self.part = next;
            }
            let bytes = place.len().min(self.part.len());
            let (to, left) = place.split_at_mut(bytes);
            let (from, kept) = self.part.split_at(bytes);
            to.copy_from_slice(from);
            (place, self.part) = (left, kept);
        }
    }
}

/// Writes the headers and `bytes` payload bytes into frames of `free`.
pub(super) fn write_segment<'a>(
    umem: &Umem,
    headers: &[u8],
    payload: &mut Payload<'a, impl Iterator<Item = &'a [u8]>>,
    bytes: usize,
    free: &mut Vec<Frame>,
) -> Option<Frame> {
    let mut left = bytes;
    let mut fill = |frame: &mut Frame, from: usize| {
        let len = (from + left).min(Umem::PACKET_ROOM);
        left -= len - from;
        frame.set_len(len).ok()?;
        payload.copy_to(&mut umem.data_mut(frame)[from..]);
        Some(left)
    };
    let mut packet = free.pop()?;
    umem.write(&mut packet, headers).ok()?;
    let mut remaining = fill(&mut packet, headers.len())?;
    while remaining > 0 {
        let mut next = free.pop()?;
        umem.write(&mut next, &[]).ok()?;
        remaining = fill(&mut next, 0)?;
        umem.append(&mut packet, next).ok()?;
    }
    Some(packet)
}

/// Sets the fields that differ between segments: lengths, identification, sequence number, flags, and the sum over
/// the pseudo-header.
fn set_fields(
    head: &mut [u8],
    packet: &Packet,
    segments: &Segments,
    number: usize,
    bytes: usize,
    is_last: bool,
) {
    let Segments { l3, l4, headers, bytes: segment_bytes, .. } = *segments;
    let transport_bytes = headers - l4 + bytes;
    let (addresses, field) = if packet.is_v4 {
        let header = &mut head[l3..l4];
        let identification = ipv4::Ipv4::new(header).map_or(0, ipv4::Ipv4::identification);
        header[2..4].copy_from_slice(&((l4 - l3 + transport_bytes) as u16).to_be_bytes());
        header[4..6].copy_from_slice(&identification.wrapping_add(number as u16).to_be_bytes());
        header[10..12].fill(0);
        let checksum = Sum::default().add_bytes(header).finish();
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        (l3 + 12..l3 + 20, tcp::CHECKSUM_OFFSET)
    } else {
        let payload = l4 - l3 - crate::net::ipv6::HEADER_BYTES + transport_bytes;
        head[l3 + 4..l3 + 6].copy_from_slice(&(payload as u16).to_be_bytes());
        (l3 + 8..l3 + 40, tcp::CHECKSUM_OFFSET)
    };
    let field = if packet.protocol == Protocol::TCP {
        let sequence = packet.sequence.wrapping_add((number * segment_bytes) as u32);
        head[l4 + 4..l4 + 8].copy_from_slice(&sequence.to_be_bytes());
        let not_first = if number > 0 { CWR } else { 0 };
        let not_last = if is_last { 0 } else { Flags::FIN | Flags::PSH };
        head[l4 + 13] &= !(not_first | not_last);
        field
    } else {
        head[l4 + 4..l4 + 6].copy_from_slice(&(transport_bytes as u16).to_be_bytes());
        udp::CHECKSUM_OFFSET
    };
    let pseudo = pseudo_header(&head[addresses], packet.protocol, transport_bytes).fold();
    head[l4 + field..l4 + field + 2].copy_from_slice(&pseudo.to_be_bytes());
}

#[cfg(test)]
mod tests;
