//! Segments that go on in an established connection: most packets of TCP.

use super::context::Context;
use crate::dataplane::conntrack::{Segment, Slot};
use crate::dataplane::packet::Packet;
use crate::net::flow::Protocol;
use crate::net::tcp::Flags;

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
pub(super) fn pass_segment(packet: &Packet, context: &Context<'_>, from_low: bool, slot: Slot) -> bool {
    let conntrack = context.conntrack;
    let Some(segment) = data_segment(packet).filter(|_| !conntrack.is_offloaded(slot)) else { return false };
    conntrack.entry(slot).pass_segment(from_low, &segment);
    !conntrack.was_offloaded_meanwhile(slot)
}
