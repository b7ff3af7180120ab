//! Segments that go on in an established connection: most packets of TCP.

use super::super::tcp::Segment;
use super::layout::Conntrack;
use super::slot::Slot;
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

impl Conntrack {
    /// Takes the numbers of a segment into its connection, which is established as the sender's half of the entry has it. Returns
    /// false if the segment may change the state, or if the kernel forwards the connection too: the caller takes the numbers then,
    /// again where they are taken.
    #[inline(always)]
    pub(crate) fn pass_segment(&self, slot: Slot, from_low: bool, packet: &Packet) -> bool {
        let Some(segment) = data_segment(packet).filter(|_| !self.is_offloaded(slot)) else { return false };
        self.entry(slot).pass_segment(from_low, &segment);
        !self.was_offloaded_meanwhile(slot)
    }
}
