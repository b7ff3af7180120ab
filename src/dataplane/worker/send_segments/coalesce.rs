//! Coalescing of TCP segments that leave by a tap port: segments of one flow that follow each other in a batch become
//! one packet, as generic receive offload (GRO) of the kernel does.
//!
//! Segments are merged only if every field but sequence number, length, identification, checksum and PSH is equal,
//! and if they leave no gap. Nothing is held back: the batch ends every packet. The receiver gets the packet with an
//! unfinished checksum, so a segment's own checksum is verified before it is merged.

use crate::dataplane::packet::{Kind, Packet};
use crate::ids::PortId;
use crate::limits::{MULTI_BUFFER_FRAMES_MAX, TRANSPORT_OFFSET_MAX};
use crate::net::checksum::{Sum, pseudo_header};
use crate::net::flow::Protocol;
use crate::net::tcp::{self, Flags, Tcp};
use crate::net::virtio_net::{GSO_TCPV4, GSO_TCPV6, NEEDS_CSUM, VirtioNet};
use crate::net::{ethernet, ipv4, ipv6};
use crate::xdp::{Frame, Umem};

/// Flows of one batch that are coalesced at most. Segments of further flows stay as they are.
const FLOWS_MAX: usize = 32;
/// Bytes of the largest packet: an IPv4 packet behind an Ethernet header, and within an offset of 16 bits.
const BYTES_MAX: usize = 65_000;
/// Start of the IP header: a tap port has no VLAN tags.
const L3: usize = ethernet::HEADER_BYTES;

/// Coalesced packets of one batch.
pub(in crate::dataplane::worker) struct Coalescer {
    packets: Vec<Coalesced>,
}

/// A packet to which segments may be appended.
struct Coalesced {
    out: PortId,
    /// Index in the frames that wait for the port.
    at: usize,
    /// First segment.
    first: Packet,
    /// Bytes of its headers, and its payload bytes.
    headers: usize,
    segment_bytes: usize,
    /// Sequence number of the next segment.
    next: u32,
    /// Number of segments.
    count: usize,
    is_open: bool,
    /// Whether the last segment has PSH.
    pushes: bool,
}

impl Coalescer {
    pub(in crate::dataplane::worker) fn new() -> Coalescer {
        Coalescer { packets: Vec::with_capacity(FLOWS_MAX) }
    }

    /// Appends a forwarded packet to an earlier one of its flow in `waiting`, or adds it there.
    pub(super) fn send(
        &mut self,
        umem: &Umem,
        out: PortId,
        packet: &Packet,
        mut frame: Frame,
        waiting: &mut Vec<Frame>,
    ) {
        if packet.protocol != Protocol::TCP || packet.kind != Kind::Flow {
            return waiting.push(frame);
        }
        let earlier = self.packets.iter_mut().rev().find(|earlier| earlier.is_of_flow(out, packet));
        let payload = payload_of(umem, &frame, packet);
        if let Some(earlier) = earlier {
            let fits = earlier.is_open
                && payload.is_some_and(|(headers, bytes)| {
                    earlier.takes(umem, &waiting[earlier.at], packet, &frame, headers, bytes)
                });
            if let Some((headers, bytes)) = payload.filter(|_| fits) {
                let appended = match frame.shrink_head(headers) {
                    Ok(()) => umem.append(&mut waiting[earlier.at], frame),
                    Err(_) => Err(frame),
                };
                debug_assert!(appended.is_ok(), "the bytes and frames were counted before");
                waiting.extend(appended.err());
                return earlier.add(packet, bytes);
            }
            // No later segment may overtake this one.
            earlier.is_open = false;
        }
        if let Some((headers, segment_bytes)) = payload
            && self.packets.len() < FLOWS_MAX
            && checksum_holds(umem, &frame, packet)
        {
            self.packets.push(Coalesced {
                out,
                at: waiting.len(),
                first: *packet,
                headers,
                segment_bytes,
                next: packet.sequence.wrapping_add(segment_bytes as u32),
                count: 1,
                is_open: !packet.tcp_flags().has(Flags::PSH),
                pushes: false,
            });
        }
        waiting.push(frame);
    }

    /// Writes the headers of the coalesced packets, and forgets them. `frames_of` passes the frames that wait for a
    /// port to a function.
    #[inline]
    pub(super) fn finish(
        &mut self,
        umem: &Umem,
        mut frames_of: impl FnMut(PortId, &dyn Fn(&mut Vec<Frame>)),
    ) {
        for coalesced in self.packets.drain(..).filter(|coalesced| coalesced.count > 1) {
            frames_of(coalesced.out, &|frames| {
                if let Some(packet) = frames.get_mut(coalesced.at) {
                    coalesced.write_headers(umem, packet);
                }
            });
        }
    }
}

impl Coalesced {
    fn is_of_flow(&self, out: PortId, packet: &Packet) -> bool {
        let first = &self.first;
        (first.src_port, first.dst_port) == (packet.src_port, packet.dst_port)
            && (first.src, first.dst) == (packet.src, packet.dst)
            && self.out == out
    }

    /// Whether a segment of the flow continues the packet whose first frame is `earlier`.
    fn takes(
        &self,
        umem: &Umem,
        earlier: &Frame,
        packet: &Packet,
        frame: &Frame,
        headers: usize,
        bytes: usize,
    ) -> bool {
        let first = &self.first;
        packet.sequence == self.next
            && (packet.acknowledgement, packet.window, packet.ttl)
                == (first.acknowledgement, first.window, first.ttl)
            && headers == self.headers
            && bytes <= self.segment_bytes
            && self.count < MULTI_BUFFER_FRAMES_MAX
            && earlier.len() + bytes <= BYTES_MAX
            && has_equal_headers(umem.data(earlier), umem.data(frame), first, headers)
            && checksum_holds(umem, frame, packet)
    }

    /// Notes that a segment has been appended.
    fn add(&mut self, packet: &Packet, bytes: usize) {
        self.count += 1;
        self.next = self.next.wrapping_add(bytes as u32);
        self.pushes = packet.tcp_flags().has(Flags::PSH);
        // A segment that is shorter than the first is the last one of a packet.
        self.is_open = bytes == self.segment_bytes && !self.pushes;
    }

    fn write_headers(&self, umem: &Umem, packet: &mut Frame) {
        let is_v4 = self.first.is_v4;
        let l4 = L3 + self.first.ip_header_bytes();
        let transport_bytes = packet.len() - l4;
        let head = umem.data_mut(packet);
        let addresses = if is_v4 {
            head[L3 + 2..L3 + 4].copy_from_slice(&((l4 - L3 + transport_bytes) as u16).to_be_bytes());
            head[L3 + 10..L3 + 12].fill(0);
            let checksum = Sum::default().add_bytes(&head[L3..l4]).finish();
            head[L3 + 10..L3 + 12].copy_from_slice(&checksum.to_be_bytes());
            L3 + 12..L3 + 20
        } else {
            let payload = l4 - L3 - ipv6::HEADER_BYTES + transport_bytes;
            head[L3 + 4..L3 + 6].copy_from_slice(&(payload as u16).to_be_bytes());
            L3 + 8..L3 + 40
        };
        if self.pushes {
            head[l4 + 13] |= Flags::PSH;
        }
        let pseudo = pseudo_header(&head[addresses], Protocol::TCP, transport_bytes).fold();
        let field = l4 + tcp::CHECKSUM_OFFSET;
        head[field..field + 2].copy_from_slice(&pseudo.to_be_bytes());
        packet.leave_checksum(l4, tcp::CHECKSUM_OFFSET);
        let header = VirtioNet {
            flags: NEEDS_CSUM,
            gso_type: if is_v4 { GSO_TCPV4 } else { GSO_TCPV6 },
            hdr_len: self.headers as u16,
            gso_size: self.segment_bytes as u16,
            csum_start: l4 as u16,
            csum_offset: tcp::CHECKSUM_OFFSET as u16,
        };
        umem.set_virtio_header(packet, header);
    }
}

/// Bytes of headers and payload of a segment that may be merged; `None` for any other. Its frame has been rewritten.
fn payload_of(umem: &Umem, frame: &Frame, packet: &Packet) -> Option<(usize, usize)> {
    let flags = packet.tcp_flags();
    let is_data = flags.has(Flags::ACK) && flags.0 & !(Flags::ACK | Flags::PSH) == 0;
    // Without Don't Fragment the identification has a meaning.
    let l4 = L3 + packet.ip_header_bytes();
    let is_plain = packet.whole && packet.dont_fragment && frame.is_plain() && l4 <= TRANSPORT_OFFSET_MAX;
    if !is_data || !is_plain || (packet.is_v4 && l4 != L3 + ipv4::HEADER_BYTES) {
        return None;
    }
    let headers = l4 + Tcp::new(umem.data(frame).get(l4..)?)?.header_bytes();
    let bytes = frame.len().checked_sub(headers)?;
    (bytes > 0).then_some((headers, bytes))
}

/// Whether the headers of two segments of a flow are equal, up to the fields that differ between segments.
fn has_equal_headers(one: &[u8], other: &[u8], first: &Packet, headers: usize) -> bool {
    let l4 = L3 + first.ip_header_bytes();
    let equal = |from: usize, to: usize| one[from..to] == other[from..to];
    let ip = if first.is_v4 {
        // Version and type of service; flags, TTL and protocol.
        equal(L3, L3 + 2) && equal(L3 + 6, L3 + 10)
    } else {
        // Traffic class and flow label; next header and hop limit; extension headers.
        equal(L3, L3 + 4) && equal(L3 + 6, L3 + 8) && equal(L3 + ipv6::HEADER_BYTES, l4)
    };
    // Data offset; options.
    ip && one[l4 + 12] == other[l4 + 12] && equal(l4 + tcp::HEADER_BYTES, headers)
}

/// Whether the checksum of a segment is unfinished or right.
fn checksum_holds(umem: &Umem, frame: &Frame, packet: &Packet) -> bool {
    if packet.unfinished {
        return true;
    }
    let head = umem.data(frame);
    let l4 = L3 + packet.ip_header_bytes();
    let addresses = if packet.is_v4 { &head[L3 + 12..L3 + 20] } else { &head[L3 + 8..L3 + 40] };
    pseudo_header(addresses, Protocol::TCP, head.len() - l4).add_bytes(&head[l4..]).fold() == 0xffff
}
