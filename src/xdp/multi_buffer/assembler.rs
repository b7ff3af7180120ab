//! Assembly of received descriptors into packets.

use crate::xdp::frame::{CONTINUED, Frame};
use crate::xdp::frame_ownership::{Direction, QueueId};
use crate::xdp::umem::Umem;

/// Most descriptors of one packet. More of them are dropped in groups of this size, which bounds the damage
/// of a kernel fault.
pub(super) const PARTS_MAX: usize = 64;
/// Assembler of packets from the descriptors of a ring.
#[derive(Default)]
pub(in crate::xdp) struct Assembler {
    /// Descriptors of an incomplete packet. Their frames are still lent, so that none is lost when the queue
    /// closes.
    parts: Vec<u64>,
    /// Whether parts of the packet were dropped or refused.
    broken: bool,
}

/// Packets and frames taken from a ring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::xdp) struct Taken {
    /// Packets.
    pub(in crate::xdp) packets: usize,
    /// Frames of these packets.
    pub(in crate::xdp) frames: usize,
    /// Descriptors that name no frame lent in this direction, which are refused.
    pub(in crate::xdp) refused: usize,
}

impl Assembler {
    pub(in crate::xdp) fn new() -> Assembler {
        Assembler { parts: Vec::with_capacity(PARTS_MAX), broken: false }
    }

    /// Whether the next descriptor is the first of a packet.
    #[inline]
    pub(in crate::xdp) fn is_idle(&self) -> bool {
        self.parts.is_empty() & !self.broken
    }

    /// Adds one descriptor of a multi-buffer packet. The last one completes the packet, which goes to `out`.
    #[cold]
    #[inline(never)]
    pub(in crate::xdp) fn add(
        &mut self,
        umem: &mut Umem,
        queue_id: QueueId,
        descriptor: u64,
        out: &mut Vec<Frame>,
    ) -> Taken {
        self.parts.push(descriptor & !CONTINUED);
        let is_last = descriptor & CONTINUED == 0;
        if !is_last && self.parts.len() < PARTS_MAX {
            return Taken::default();
        }
        let refused = self.take_back(umem, queue_id);
        self.broken |= refused > 0 || !is_last;
        let taken = self.join(umem, refused, out);
        self.broken = !is_last;
        taken
    }

    /// Takes the frames back in the ownership table, drops the descriptors that name none, and counts these.
    fn take_back(&mut self, umem: &mut Umem, queue_id: QueueId) -> usize {
        let before = self.parts.len();
        self.parts
            .retain(|part| umem.ownership.take_back(*part as u32 as usize, queue_id, Direction::Receive));
        before - self.parts.len()
    }

    fn join(&mut self, umem: &Umem, refused: usize, out: &mut Vec<Frame>) -> Taken {
        let frames = self.parts.len();
        for part in &mut self.parts {
            let mut frame = Frame::from_descriptor(umem.area.id(), *part);
            let fits = frame.place(frame.headroom(), frame.head_len()) && !frame.is_empty();
            self.broken |= !fits;
            *part = frame.descriptor();
        }
        let Some((first, followers)) = self.parts.split_first() else {
            return Taken { refused, ..Taken::default() };
        };
        // The ownership table had the frames because their tokens were given up, so these tokens are the only
        // ones.
        let mut head = Frame::from_descriptor(umem.area.id(), *first);
        umem.area.link(&mut head, followers, !self.broken);
        out.push(head);
        self.parts.clear();
        Taken { packets: 1, frames, refused }
    }
}

/// Counts the packets from the front that take at most `room` descriptors together, and their descriptors.
#[inline]
pub(in crate::xdp) fn fitting(frames: &[Frame], room: usize) -> (usize, usize) {
    let (mut packets, mut used) = (0, 0);
    for frame in frames {
        if used + frame.frames() > room {
            break;
        }
        (packets, used) = (packets + 1, used + frame.frames());
    }
    (packets, used)
}

impl std::ops::AddAssign for Taken {
    #[inline]
    fn add_assign(&mut self, other: Taken) {
        self.packets += other.packets;
        self.frames += other.frames;
        self.refused += other.refused;
    }
}
