//! A batch of frames, and the results of the stages for each.
//!
//! The batch is a set of columns: a stage runs over the whole batch, and reads and writes the columns that it
//! needs. No stage reads a column before an earlier stage has written it for every pending frame.

mod disposition;
mod stage_notes;

use std::collections::VecDeque;
use std::ops::Range;

pub(crate) use self::disposition::Disposition;
use self::stage_notes::StageNotes;
use crate::dataplane::DropReason;
use crate::dataplane::conntrack::FrontEnd;
use crate::dataplane::fib::next_hop::Adjacency;
use crate::dataplane::packet::Packet;
use crate::dataplane::service::Translation;
use crate::dataplane::waiting::Waiting;
use crate::ids::PortId;
use crate::limits::{BATCH_FRAMES_MAX, PORT_SEGMENTS_MAX, RING_SLOTS};
use crate::xdp::{Frame, Umem};

/// Most segments of one batch. Packets with segments beyond are dropped.
const SEGMENTS_MAX: usize = 2 * RING_SLOTS;

const _: () = assert!(PORT_SEGMENTS_MAX <= u8::MAX as usize);

/// Prefetches the headers of a frame a few places behind frame `i`.
#[inline(always)]
pub(super) fn prefetch_frame(frames: &[Frame], i: usize, umem: &Umem) {
    const AHEAD: usize = 2;
    if let Some(next) = frames.get(i + AHEAD) {
        umem.prefetch(next);
    }
}

/// A batch.
pub(crate) struct Batch {
    /// Frames in the order of reception.
    pub frames: Vec<Frame>,
    /// Port that each frame came from.
    pub in_ports: [PortId; BATCH_FRAMES_MAX],
    /// Length of each frame at reception, bytes.
    pub bytes: [u16; BATCH_FRAMES_MAX],
    /// Parsed headers of each frame.
    pub packets: Box<[Packet; BATCH_FRAMES_MAX]>,
    /// Adjacency of each frame that has been routed.
    pub adjacencies: Box<[Adjacency; BATCH_FRAMES_MAX]>,
    /// Disposition of each frame.
    pub dispositions: [Disposition; BATCH_FRAMES_MAX],
    /// Whether the frame holds an answer of the switch, which leaves by the port that the frame came from.
    pub answers: [bool; BATCH_FRAMES_MAX],
    /// Packets that are larger than the MTU of their adjacency, and are to be cut into fragments.
    pub oversize: Vec<u16>,
    /// Whether a packet of the batch was cut into fragments.
    pub has_fragments_to_send: bool,
    /// Number of the segments or fragments that the frame has been cut into, if it has a virtio-net header and leaves by a port
    /// that takes none, or is larger than the MTU.
    pub segment_counts: [u8; BATCH_FRAMES_MAX],
    /// Segments of all such frames, in order.
    pub segments: VecDeque<Frame>,
    /// Packets of known flows that policy has denied, of the direction opposite to that which policy evaluated.
    pub denied_replies: Vec<u16>,
    /// Dropped TCP segments of no flow that are answered with a reset.
    pub unknown_segments: Vec<u16>,
    /// Whether the frame has waited for another one.
    pub waited: [bool; BATCH_FRAMES_MAX],
    /// Whether the frame has come by a tunnel.
    pub by_tunnel: [bool; BATCH_FRAMES_MAX],
    /// Translations, of the packets that `translated` names.
    pub translations: Box<[Translation; BATCH_FRAMES_MAX]>,
    /// Packets that are translated.
    pub translated: Vec<u16>,
    /// Of packets that are translated: the port of the client, where the flow has another one in its place, else zero.
    pub client_ports: [u16; BATCH_FRAMES_MAX],
    /// External ports of packets of masqueraded flows, else zero. The destination of a packet to such a port is the pod.
    pub external_ports: [u16; BATCH_FRAMES_MAX],
    /// Whether a packet was dropped because a Service does not serve it.
    pub has_unserved: bool,
    /// SYNs that wait for the end of the connection that has their ports. Without a place if one worker receives all.
    pub early_syns: Waiting,
    /// Notes for a capture.
    pub notes: Box<StageNotes>,
    /// Whether the batch has frames of a port that delivers virtio-net headers.
    pub has_virtio_headers: bool,
    /// Whether the batch has a fragment.
    pub has_fragments: bool,
    /// Whether the batch has a packet of a kind other than
    /// [`Kind::Flow`](crate::dataplane::packet::Kind::Flow).
    pub has_others: bool,
}

impl Batch {
    /// Makes a batch of a worker, with places for SYNs that wait.
    pub(crate) fn new(early_syns: Waiting) -> Batch {
        Batch {
            frames: Vec::with_capacity(BATCH_FRAMES_MAX),
            in_ports: [PortId(0); BATCH_FRAMES_MAX],
            bytes: [0; BATCH_FRAMES_MAX],
            packets: Box::new([Packet::default(); BATCH_FRAMES_MAX]),
            adjacencies: Box::new([Adjacency::default(); BATCH_FRAMES_MAX]),
            dispositions: [Disposition::Pending; BATCH_FRAMES_MAX],
            answers: [false; BATCH_FRAMES_MAX],
            oversize: Vec::with_capacity(2 * BATCH_FRAMES_MAX),
            has_fragments_to_send: false,
            segment_counts: [0; BATCH_FRAMES_MAX],
            segments: VecDeque::with_capacity(SEGMENTS_MAX),
            denied_replies: Vec::with_capacity(BATCH_FRAMES_MAX),
            unknown_segments: Vec::with_capacity(BATCH_FRAMES_MAX),
            waited: [false; BATCH_FRAMES_MAX],
            by_tunnel: [false; BATCH_FRAMES_MAX],
            translations: Box::new([Translation::default(); BATCH_FRAMES_MAX]),
            translated: Vec::with_capacity(2 * BATCH_FRAMES_MAX),
            client_ports: [0; BATCH_FRAMES_MAX],
            external_ports: [0; BATCH_FRAMES_MAX],
            has_unserved: false,
            early_syns,
            notes: Box::new(StageNotes::new()),
            has_virtio_headers: false,
            has_fragments: false,
            has_others: false,
        }
    }

    /// Begins the columns of the frames from `start` on, which came from `port`.
    pub(crate) fn note_received(&mut self, start: usize, port: PortId) {
        let received = start..self.len();
        // Each column by itself: the compiler writes many fields at once.
        self.in_ports[received.clone()].fill(port);
        self.dispositions[received.clone()].fill(Disposition::Pending);
        self.answers[received.clone()].fill(false);
        self.waited[received.clone()].fill(false);
        self.by_tunnel[received.clone()].fill(false);
        self.external_ports[received.clone()].fill(0);
        for (bytes, frame) in self.bytes[received.clone()].iter_mut().zip(&self.frames[received]) {
            *bytes = frame.len() as u16;
        }
    }

    /// Adds a frame that has waited, with its disposition.
    pub(crate) fn resume(&mut self, frame: Frame, port: PortId, disposition: Disposition) {
        let start = self.len();
        self.frames.push(frame);
        self.note_received(start, port);
        self.waited[start] = true;
        self.dispositions[start] = disposition;
    }

    /// Number of frames.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        // The minimum tells the compiler that every column is long enough.
        self.frames.len().min(BATCH_FRAMES_MAX)
    }

    /// The run of frames of one port that begins at `start`.
    #[inline]
    pub(crate) fn run_of_port(&self, start: usize) -> Range<usize> {
        let port = self.in_ports[start];
        let same = self.in_ports[start..self.len()].iter().take_while(|other| **other == port);
        start..start + same.count()
    }

    /// Whether no stage has decided on frame `i`.
    #[inline]
    pub(crate) fn is_pending(&self, i: usize) -> bool {
        self.dispositions[i] == Disposition::Pending
    }

    /// Whether frame `i` leaves by its adjacency, if no stage decides otherwise.
    #[inline]
    pub(crate) fn leaves(&self, i: usize) -> bool {
        matches!(self.dispositions[i], Disposition::Pending | Disposition::Routed)
    }

    /// Notes the translation of packet `i`, whose flow has another port in the place of `client_port`, if that is not zero.
    #[inline(always)]
    pub(crate) fn translate(&mut self, i: usize, translation: Translation, client_port: u16) {
        (self.translations[i], self.client_ports[i]) = (translation, client_port);
        self.translated.push(i as u16);
    }

    /// Front end to which packet `i` was sent, if its destination or its source is another one.
    #[inline]
    pub(crate) fn virtual_end(&self, i: usize) -> Option<FrontEnd> {
        let Translation { address, port, .. } = self.translations[i];
        let (client_port, external_port) = (self.client_ports[i], self.external_ports[i]);
        let is_translated = self.packets[i].translated || external_port != 0;
        is_translated.then_some(FrontEnd { address, port, client_port, external_port })
    }

    /// Source port of packet `i`, which is translated, as its sender has it.
    #[inline]
    pub(crate) fn client_port(&self, i: usize) -> u16 {
        match self.client_ports[i] {
            0 => self.packets[i].src_port,
            port => port,
        }
    }

    /// Drops frame `i`.
    #[inline]
    pub(crate) fn drop(&mut self, i: usize, reason: DropReason) {
        self.dispositions[i] = Disposition::Dropped(reason);
    }
}
