//! Conversion of a TCP packet to the segment that the state machine of conntrack takes.

use crate::dataplane::conntrack::{Segment, Slot};
use crate::dataplane::packet::Packet;
use crate::dataplane::pipeline::context::Context;
use crate::net::flow::Protocol;
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

/// Converts a packet that cannot change the state of an established connection: one with ACK, and without SYN, RST and FIN. `None` for
/// any other. The control bits are constants, which spares the window check branches.
#[inline(always)]
fn data_segment(packet: &Packet) -> Option<Segment> {
    const DECIDING: u8 = Flags::SYN | Flags::RST | Flags::FIN | Flags::ACK;
    let is_data = (packet.protocol == Protocol::TCP)
        & !packet.first_fragment
        & (packet.tcp_flags().0 & DECIDING == Flags::ACK);
    is_data.then(|| Segment {
        flags: Flags(Flags::ACK),
        sequence: packet.sequence,
        acknowledgement: packet.acknowledgement,
        window: packet.window,
        payload_bytes: packet.tcp_payload_bytes(),
        scale: None,
    })
}

/// Takes the numbers of a segment into its connection, which is established as the sender's half of the entry has it. Returns false
/// if the segment may change the state, or if the kernel forwards the connection too: the slow path takes the numbers then, again
/// where they are taken.
#[inline(always)]
pub(in crate::dataplane::pipeline) fn pass_segment(
    packet: &Packet,
    context: &Context<'_>,
    from_low: bool,
    slot: Slot,
) -> bool {
    let conntrack = context.conntrack;
    let Some(segment) = data_segment(packet).filter(|_| !conntrack.is_offloaded(slot)) else { return false };
    conntrack.entry(slot).pass_segment(from_low, &segment);
    !conntrack.was_offloaded_meanwhile(slot)
}
