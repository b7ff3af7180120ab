//! Capture of the packets of a batch: copies at reception, handed over with the verdicts.

use std::sync::Arc;

use crate::dataplane::capture::{Capture, Captures};
use crate::dataplane::packet::Kind;
use crate::dataplane::pipeline::batch::{Batch, Disposition};
use crate::dataplane::{CapturedPacket, PacketVerdict};
use crate::ids::Generation;
use crate::limits::{BATCH_FRAMES_MAX, CAPTURES_MAX};
use crate::xdp::Umem;

/// Copies of the packets of one batch.
pub(super) struct Recorder {
    /// Captures of the batch; `None` between two batches, so that an ended capture's buffers become free.
    captures: Option<Arc<Vec<Arc<Capture>>>>,
    /// Copies: the number of the capture, the place in the batch, and the buffer.
    copies: Vec<(usize, usize, Box<CapturedPacket>)>,
}

impl Recorder {
    pub(super) fn new() -> Recorder {
        Recorder { captures: None, copies: Vec::with_capacity(CAPTURES_MAX * BATCH_FRAMES_MAX) }
    }

    /// Copies the packets that a capture may want, before any stage changes them.
    #[cold]
    #[inline(never)]
    pub(super) fn copy(&mut self, batch: &mut Batch, umem: &Umem, captures: &Captures, at_ns: u64) {
        let captures = captures.running();
        let frames = batch.len();
        batch.notes.begin(&batch.dispositions[..frames]);
        for (number, capture) in captures.iter().enumerate().take(CAPTURES_MAX) {
            for i in 0..frames {
                let Some(mut copy) = capture.take_buffer(batch.in_ports[i]) else { continue };
                let frame = &batch.frames[i];
                for part in std::iter::once(umem.data(frame)).chain(umem.rest(frame)) {
                    let room = capture.bytes_max() - copy.bytes.len();
                    copy.bytes.extend_from_slice(&part[..part.len().min(room)]);
                }
                (copy.at_ns, copy.port, copy.frame_bytes) = (at_ns, batch.in_ports[i], batch.bytes[i]);
                self.copies.push((number, i, copy));
            }
        }
        self.captures = Some(captures);
    }

    /// Hands the copies over with the final verdicts.
    #[cold]
    #[inline(never)]
    pub(super) fn hand_over(&mut self, batch: &mut Batch, generation: Generation) {
        let captures = self.captures.take();
        for (number, i, mut copy) in self.copies.drain(..) {
            let Some(capture) = captures.as_ref().and_then(|captures| captures.get(number)) else { continue };
            copy.verdict = match batch.dispositions[i] {
                Disposition::Forward(port) => PacketVerdict::Forwarded(port),
                Disposition::Consumed => PacketVerdict::Consumed,
                Disposition::Dropped(reason) => PacketVerdict::Dropped(reason),
                // It is captured when it has a verdict.
                Disposition::Held | Disposition::Pending | Disposition::Routed => {
                    capture.put_back(copy);
                    continue;
                }
            };
            let packet = &batch.packets[i];
            let has_flow = !matches!(packet.kind, Kind::Arp) && batch.notes.is_parsed(i);
            copy.flow = has_flow.then(|| packet.flow());
            (copy.stage, copy.generation) = (batch.notes.stage_of(i), generation);
            copy.is_new_flow = batch.notes.is_new_flow(i);
            capture.hand_over(copy);
        }
        batch.notes.end();
    }
}
