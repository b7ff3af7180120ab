//! Conversion of a TCP packet to the segment that the state machine of conntrack takes.

use crate::dataplane::conntrack::Segment;
use crate::dataplane::packet::Packet;
use crate::net::tcp::{self, Flags};

/// Converts a packet, whose first buffer is `frame`. "A Window Scale option in a segment without a SYN bit MUST be ignored" (RFC 7323
/// section 2.2).
pub(super) fn tcp_segment(packet: &Packet, frame: &[u8]) -> Segment {
    let flags = packet.tcp_flags();
    let scale = if flags.has(Flags::SYN) {
        let header = packet.transport(frame);
        let header_bytes = tcp::Tcp::new(header).map_or(0, tcp::Tcp::header_bytes);
        header.get(tcp::HEADER_BYTES..header_bytes).and_then(tcp::window_scale)
    } else {
        None
    };
    Segment {
        flags,
        sequence: packet.sequence,
        acknowledgement: packet.acknowledgement,
        window: packet.window,
        payload_bytes: packet.tcp_payload_bytes(),
        scale,
    }
}
