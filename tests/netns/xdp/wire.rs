//! Minimal forwarder: a frame received on one port is transmitted on the other.

use palisade::ids::PortId;
use palisade::limits::{BATCH_FRAMES_MAX, PORT_BURST_FRAMES_MAX, RING_SLOTS};
use palisade::netlink::Interface;
use palisade::xdp::{Frame, Kick, Mode, PortQueue, Program, Umem};

/// Two ports of one worker on one UMEM.
pub(crate) struct Wire {
    pub(crate) umem: Umem,
    pub(crate) free: Vec<Frame>,
    pub(crate) ends: Vec<End>,
    pub(crate) forwarded: u64,
}

/// Queue of one port, and frames that wait for its tx ring.
pub(crate) struct End {
    pub(crate) queue: PortQueue,
    pub(crate) waiting: Vec<Frame>,
}

pub(crate) fn attach(host: &str, queues: u16) -> (Program, Mode) {
    Program::attach(&Interface::find(host).unwrap(), queues).unwrap()
}

pub(crate) fn open(umem: &Umem, program: &Program, port: u16, queue: u16) -> PortQueue {
    PortQueue::open(&umem.binder(), PortId(port), program.interface(), queue, program).unwrap()
}

impl Wire {
    /// Opens queue `queue` of two ports.
    pub(crate) fn between(programs: [&Program; 2], queue: u16, frames: usize) -> Wire {
        let (umem, free) = Umem::new(frames, false).unwrap();
        let ends = programs
            .iter()
            .zip(0..)
            .map(|(program, port)| End {
                queue: open(&umem, program, port, queue),
                waiting: Vec::with_capacity(BATCH_FRAMES_MAX),
            })
            .collect();
        Wire { umem, free, ends, forwarded: 0 }
    }

    /// Prefers busy polling on both sockets (`SO_PREFER_BUSY_POLL`).
    pub(crate) fn poll_busily(&mut self) {
        self.ends.iter_mut().for_each(|end| end.queue.prefer_busy_poll().unwrap());
    }

    /// Polls once: completions, fill rings, received frames to the other port, kicks. Returns the number of
    /// forwarded frames.
    pub(crate) fn turn(&mut self) -> usize {
        let fill_target = (self.umem.frames_total() / 4).min(RING_SLOTS);
        let mut moved = 0;
        for end in 0..self.ends.len() {
            let out = (end + 1) % self.ends.len();
            let queue = &mut self.ends[end].queue;
            queue.complete(&mut self.umem, &mut self.free);
            queue.refill(&mut self.umem, &mut self.free, fill_target);
            let mut arrived = std::mem::take(&mut self.ends[out].waiting);
            let room = arrived.capacity() - arrived.len();
            moved +=
                self.ends[end].queue.receive(&mut self.umem, &mut arrived, room.min(PORT_BURST_FRAMES_MAX));
            self.forwarded += self.ends[out].queue.transmit(&mut self.umem, &mut arrived) as u64;
            self.ends[out].waiting = arrived;
            let kick = self.ends[out].queue.kick();
            assert!(!matches!(kick, Kick::Refused(_)), "{kick:?}");
        }
        moved
    }

    /// Counts frames in rings, held and free. The sum is always the total of the UMEM.
    pub(crate) fn accounted(&self) -> usize {
        let waiting: usize = self.ends.iter().flat_map(|end| &end.waiting).map(Frame::frames).sum();
        let lent: usize = self.ends.iter().map(|end| end.queue.lent()).sum();
        assert_eq!(lent, self.umem.frames_lent());
        lent + waiting + self.free.len()
    }

    /// Closes one port and reclaims its frames.
    pub(crate) fn close(&mut self, end: usize) {
        let End { queue, mut waiting } = self.ends.remove(end);
        waiting.drain(..).for_each(|frame| self.umem.release(frame, &mut self.free));
        self.umem.reclaim(queue.close(), &mut self.free);
    }
}
