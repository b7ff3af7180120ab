//! Transmission in a switch with tap ports: packets that were cut into segments, and segments that are coalesced.

mod coalesce;

pub(super) use self::coalesce::Coalescer;
use super::ports::{LocalPort, PortList};
use crate::dataplane::packet::Packet;
use crate::ids::PortId;
use crate::xdp::{Frame, Umem};

impl LocalPort {
    /// Bytes of the frames that wait for transmission, and their segments beyond the first of each.
    #[inline]
    pub(super) fn waiting_bytes_and_segments(&self, umem: &Umem) -> (usize, usize) {
        let bytes = self.waiting.iter().map(Frame::len).sum();
        let segments = |frame: &Frame| Some(umem.virtio_header(frame)?.segments(frame.len()) - 1);
        let further = if self.takes_segments { self.waiting.iter().filter_map(segments).sum() } else { 0 };
        (bytes, further)
    }
}

impl PortList {
    /// Sends a frame of a switch with tap ports: the segments that it was cut into; by a tap port behind an earlier
    /// segment of its flow, if there is one; or as it is.
    #[inline(never)]
    pub(super) fn send_by_kind(
        &mut self,
        out: PortId,
        (packet, frame, segments): (&Packet, Frame, impl ExactSizeIterator<Item = Frame>),
        coalescer: &mut Coalescer,
        umem: &Umem,
        free: &mut Vec<Frame>,
    ) {
        if segments.len() > 0 {
            segments.for_each(|segment| self.send(out, segment, umem, free));
            return umem.release(frame, free);
        }
        match self.get_mut(out).filter(|port| port.takes_segments) {
            Some(port) => {
                coalescer.send(umem, out, packet, frame, &mut port.waiting);
                self.activate(out);
            }
            None => self.send(out, frame, umem, free),
        }
    }

    /// Writes the headers of the coalesced packets.
    #[inline]
    pub(super) fn finish_coalesced(&mut self, coalescer: &mut Coalescer, umem: &Umem) {
        coalescer.finish(umem, |out, write| {
            if let Some(port) = self.get_mut(out) {
                write(&mut port.waiting);
            }
        });
    }
}
