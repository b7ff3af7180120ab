//! Link ends: AF_XDP queues of an interface, or peers of in-memory ports.

use std::os::fd::BorrowedFd;

use crate::limits::{BATCH_FRAMES_MAX, RING_SLOTS};
use crate::pktgen::PktgenError;
use crate::pktgen::clock::now_ns;
use crate::xdp::{Frame, Kick, MemoryPeer, PortQueue, Umem};

/// Time without progress after which an interface counts as stalled.
const STALL_NS: u64 = 1_000_000_000;

/// An end of a link, which sends and receives frames.
pub(crate) enum LinkEnd {
    /// A queue of an interface.
    Socket(Box<Socket>),
    /// The peer of an in-memory port: the port receives the frames sent here.
    Memory(MemoryPeer),
}

/// A queue, and all frames of its UMEM.
pub(crate) struct Socket {
    umem: Umem,
    queue: PortQueue,
    interface: String,
    free: Vec<Frame>,
    staged: Vec<Frame>,
    received: Vec<Frame>,
    /// Fill target; 0 for an end that only sends.
    receiving: usize,
}

impl Socket {
    /// Keeps `receiving` of the frames in the fill ring, and the others to send.
    pub(crate) fn new(
        umem: Umem,
        frames: Vec<Frame>,
        queue: PortQueue,
        interface: &str,
        receiving: usize,
    ) -> Socket {
        Socket {
            umem,
            queue,
            interface: interface.to_owned(),
            free: frames,
            staged: Vec::with_capacity(BATCH_FRAMES_MAX),
            received: Vec::with_capacity(BATCH_FRAMES_MAX),
            receiving: receiving.min(RING_SLOTS),
        }
    }

    #[inline]
    fn stage(&mut self, bytes: &[u8]) -> Result<bool, PktgenError> {
        let Some(mut frame) = self.free.pop() else { return Ok(false) };
        if self.umem.write(&mut frame, bytes).is_err() {
            self.free.push(frame);
            return Err(PktgenError::TooLong { bytes: bytes.len() });
        }
        self.staged.push(frame);
        Ok(true)
    }

    /// Transmits the staged frames, and returns when the kernel has completed them.
    fn flush(&mut self) -> Result<(), PktgenError> {
        let mut stalled_since = None;
        loop {
            let before = self.queue.unsent() + self.staged.len();
            self.queue.transmit(&mut self.umem, &mut self.staged);
            if let Kick::Refused(error) = self.queue.kick() {
                let source = std::io::Error::from_raw_os_error(error);
                return Err(PktgenError::Send { interface: self.interface.clone(), source });
            }
            self.queue.complete(&mut self.umem, &mut self.free);
            match self.queue.unsent() + self.staged.len() {
                0 => return Ok(()),
                rest if rest < before => stalled_since = None,
                _ => self.check_stall(*stalled_since.get_or_insert_with(now_ns))?,
            }
        }
    }

    fn check_stall(&self, since: u64) -> Result<(), PktgenError> {
        if now_ns() - since < STALL_NS {
            return Ok(());
        }
        Err(PktgenError::Stalled { interface: self.interface.clone() })
    }

    fn receive(&mut self, mut see: impl FnMut(&[u8])) -> usize {
        self.queue.refill(&mut self.umem, &mut self.free, self.receiving);
        let received = self.queue.receive(&mut self.umem, &mut self.received, BATCH_FRAMES_MAX);
        for frame in self.received.drain(..) {
            see(self.umem.data(&frame));
            self.umem.release(frame, &mut self.free);
        }
        received
    }
}

impl LinkEnd {
    /// Counts the frames that can be staged, at most a batch.
    #[inline]
    pub(crate) fn room(&mut self) -> usize {
        match self {
            LinkEnd::Socket(socket) => {
                socket.queue.complete(&mut socket.umem, &mut socket.free);
                socket.free.len().min(socket.staged.capacity() - socket.staged.len()).min(BATCH_FRAMES_MAX)
            }
            LinkEnd::Memory(_) => BATCH_FRAMES_MAX,
        }
    }

    /// Stages a frame for the next flush; `false` without a free frame.
    #[inline]
    pub(crate) fn stage(&mut self, bytes: &[u8]) -> Result<bool, PktgenError> {
        match self {
            LinkEnd::Socket(socket) => socket.stage(bytes),
            LinkEnd::Memory(peer) => {
                // A port without a frame in its fill ring drops it, as a network card does.
                peer.inject(bytes);
                Ok(true)
            }
        }
    }

    /// Sends the staged frames.
    pub(crate) fn flush(&mut self) -> Result<(), PktgenError> {
        match self {
            LinkEnd::Socket(socket) => socket.flush(),
            LinkEnd::Memory(_) => Ok(()),
        }
    }

    /// Passes received frames, a batch at most, to `see`, and counts them.
    #[inline]
    pub(crate) fn receive(&mut self, see: impl FnMut(&[u8])) -> usize {
        match self {
            LinkEnd::Socket(socket) => socket.receive(see),
            LinkEnd::Memory(peer) => peer.drain_with(see),
        }
    }

    /// Returns the socket, readable while frames wait; `None` in memory.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            LinkEnd::Socket(socket) => socket.queue.fd(),
            LinkEnd::Memory(_) => None,
        }
    }
}
