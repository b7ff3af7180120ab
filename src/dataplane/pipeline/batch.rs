//! A batch: the frames that go through the stages together, and what the stages find out about each.
//!
//! Laid out by use: a stage runs over the whole batch and touches only its own columns.

use std::ops::Range;

use crate::dataplane::DropReason;
use crate::dataplane::fib::next_hop::Adjacency;
use crate::dataplane::packet::Packet;
use crate::ids::PortId;
use crate::limits::BATCH_FRAMES_MAX;
use crate::xdp::{Frame, Umem};

/// Starts to load a frame that comes a few places after the one with this number.
#[inline(always)]
pub(super) fn prefetch_frame(frames: &[Frame], i: usize, umem: &Umem) {
    const AHEAD: usize = 2;
    if let Some(next) = frames.get(i + AHEAD) {
        umem.prefetch(next);
    }
}

/// Disposition of a frame. Each frame gets exactly one final disposition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// The stages are not done with it.
    Pending,
    /// A fragment to be decided on by what became of the first of its datagram; behind the stages: once that has come.
    Held,
    /// Leaves by this port.
    Forward(PortId),
    /// Was for the switch itself.
    Consumed,
    /// Goes no further.
    Dropped(DropReason),
}

/// The batch.
pub(crate) struct Batch {
    /// The frames, in the order in which they came.
    pub frames: Vec<Frame>,
    /// Port that each came from.
    pub in_ports: [PortId; BATCH_FRAMES_MAX],
    /// Bytes of each as it came.
    pub bytes: [u16; BATCH_FRAMES_MAX],
    /// What each is.
    pub packets: Box<[Packet; BATCH_FRAMES_MAX]>,
    /// How it leaves.
    pub adjacencies: Box<[Adjacency; BATCH_FRAMES_MAX]>,
    /// What becomes of it.
    pub dispositions: [Disposition; BATCH_FRAMES_MAX],
    /// The frame is an answer now, to leave by the port that it came from.
    pub answers: [bool; BATCH_FRAMES_MAX],
    /// The frame is a fragment that has waited for the first of its datagram.
    pub waited: [bool; BATCH_FRAMES_MAX],
    /// Whether there is a fragment among the frames.
    pub has_fragments: bool,
    /// Whether there is something else than packets of flows.
    pub has_others: bool,
}

impl Batch {
    pub(crate) fn new() -> Batch {
        Batch {
            frames: Vec::with_capacity(BATCH_FRAMES_MAX),
            in_ports: [PortId(0); BATCH_FRAMES_MAX],
            bytes: [0; BATCH_FRAMES_MAX],
            packets: Box::new([Packet::default(); BATCH_FRAMES_MAX]),
            adjacencies: Box::new([Adjacency::default(); BATCH_FRAMES_MAX]),
            dispositions: [Disposition::Pending; BATCH_FRAMES_MAX],
            answers: [false; BATCH_FRAMES_MAX],
            waited: [false; BATCH_FRAMES_MAX],
            has_fragments: false,
            has_others: false,
        }
    }

    /// Notes where the frames from `start` on came from.
    pub(crate) fn note_received(&mut self, start: usize, port: PortId) {
        for (i, frame) in self.frames.iter().enumerate().skip(start) {
            self.in_ports[i] = port;
            self.bytes[i] = frame.len() as u16;
            self.dispositions[i] = Disposition::Pending;
            self.answers[i] = false;
            self.waited[i] = false;
        }
    }

    /// Adds a fragment that has waited, with its disposition, if known.
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
        // The minimum lets the compiler see that every column is long enough.
        self.frames.len().min(BATCH_FRAMES_MAX)
    }

    /// The frames from `start` on that came by the same port, one after another.
    #[inline]
    pub(crate) fn run_of_port(&self, start: usize) -> Range<usize> {
        let port = self.in_ports[start];
        let same = self.in_ports[start..self.len()].iter().take_while(|other| **other == port);
        start..start + same.count()
    }

    /// Whether the stages are not done with frame `i`.
    #[inline]
    pub(crate) fn is_pending(&self, i: usize) -> bool {
        self.dispositions[i] == Disposition::Pending
    }

    /// Drops frame `i`.
    #[inline]
    pub(crate) fn drop(&mut self, i: usize, reason: DropReason) {
        self.dispositions[i] = Disposition::Dropped(reason);
    }
}
