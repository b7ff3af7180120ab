//! A batch: the frames that go through the stages together, and what the stages find out about each.
//!
//! Laid out by use: a stage runs over the whole batch and touches only its own columns.

use std::ops::Range;

use crate::dataplane::DropReason;
use crate::dataplane::conntrack::{HalfId, Key, Slot};
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

/// What becomes of a frame. Each gets exactly one final verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
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

/// What conntrack knows of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlowStatus {
    /// Of a flow that this generation, or a later one, has judged.
    Known,
    /// Of an ended connection, opening the next one on the same ports.
    Reopen,
    /// Of no flow yet.
    New,
    /// Of no flow, and opens none: judged by itself.
    Untracked,
}

/// A packet's place in conntrack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Track {
    /// Key of its flow, or of the flow that it reports an error about.
    pub key: Key,
    /// Hash of the key.
    pub hash: u64,
    /// Slot of the flow, or the one whose tag fits.
    pub slot: Slot,
    /// The hop that a packet of no known flow takes.
    pub hop: Option<u16>,
    /// What is known.
    pub status: FlowStatus,
    /// Whether the packet comes from the lower endpoint of the key.
    pub from_low: bool,
}

impl Track {
    const NONE: Track = Track {
        key: Key::from_words([0; 5]),
        hash: 0,
        slot: Slot::NONE,
        hop: None,
        status: FlowStatus::New,
        from_low: false,
    };
}

/// Lines of conntrack entries: at most two a packet.
pub(crate) struct HalfList {
    lines: [HalfId; 2 * BATCH_FRAMES_MAX],
    len: usize,
}

impl HalfList {
    pub(crate) fn new() -> HalfList {
        HalfList { lines: [HalfId::FIRST; 2 * BATCH_FRAMES_MAX], len: 0 }
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds a line, and the other one of its entry with `both`.
    #[inline(always)]
    pub(crate) fn add(&mut self, line: HalfId, both: bool) {
        if let Some([first, second]) = self.lines.get_mut(self.len..self.len + 2) {
            (*first, *second) = (line, line.other());
            self.len += 1 + usize::from(both);
        }
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[HalfId] {
        &self.lines[..self.len]
    }
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
    /// Its flow.
    pub tracks: Box<[Track; BATCH_FRAMES_MAX]>,
    /// How it leaves.
    pub adjacencies: Box<[Adjacency; BATCH_FRAMES_MAX]>,
    /// What becomes of it.
    pub verdicts: [Verdict; BATCH_FRAMES_MAX],
    /// The frame is an answer now, to leave by the port that it came from.
    pub answers: [bool; BATCH_FRAMES_MAX],
    /// The frame is a fragment that has waited for the first of its datagram.
    pub waited: [bool; BATCH_FRAMES_MAX],
    /// Lines of conntrack entries that are to be loaded into the cache.
    pub lines: HalfList,
    /// Packets whose flow is looked for by tags: it is not where its hash says, or of most in the last batch it was not.
    pub misses: Vec<u16>,
    /// Of those, packets whose flow may be where a tag fits.
    pub candidates: Vec<u16>,
    /// Of those, packets for which a second group of tags has to be asked.
    pub second_bucket: Vec<u16>,
    /// Whether most packets of the last batch were of flows that are not where their hashes say: of new ones.
    pub miss_heavy: bool,
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
            tracks: Box::new([Track::NONE; BATCH_FRAMES_MAX]),
            adjacencies: Box::new([Adjacency::default(); BATCH_FRAMES_MAX]),
            verdicts: [Verdict::Pending; BATCH_FRAMES_MAX],
            answers: [false; BATCH_FRAMES_MAX],
            waited: [false; BATCH_FRAMES_MAX],
            lines: HalfList::new(),
            misses: Vec::with_capacity(BATCH_FRAMES_MAX),
            candidates: Vec::with_capacity(BATCH_FRAMES_MAX),
            second_bucket: Vec::with_capacity(BATCH_FRAMES_MAX),
            miss_heavy: false,
            has_fragments: false,
            has_others: false,
        }
    }

    /// Notes where the frames from `start` on came from.
    pub(crate) fn note_received(&mut self, start: usize, port: PortId) {
        for (i, frame) in self.frames.iter().enumerate().skip(start) {
            self.in_ports[i] = port;
            self.bytes[i] = frame.len() as u16;
            self.verdicts[i] = Verdict::Pending;
            self.answers[i] = false;
            self.waited[i] = false;
        }
    }

    /// Adds a fragment that has waited, with its verdict where there is one already.
    pub(crate) fn resume(&mut self, frame: Frame, port: PortId, verdict: Verdict) {
        let start = self.len();
        self.frames.push(frame);
        self.note_received(start, port);
        self.waited[start] = true;
        self.verdicts[start] = verdict;
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

    /// The hashes of the flows of these packets.
    pub(crate) fn hashes_of(&self, packets: &[u16]) -> impl Iterator<Item = u64> {
        packets.iter().map(|i| self.tracks[usize::from(*i)].hash)
    }

    /// Whether the stages are not done with frame `i`.
    #[inline]
    pub(crate) fn is_pending(&self, i: usize) -> bool {
        self.verdicts[i] == Verdict::Pending
    }

    /// Drops frame `i`.
    #[inline]
    pub(crate) fn drop(&mut self, i: usize, reason: DropReason) {
        self.verdicts[i] = Verdict::Dropped(reason);
    }
}
