//! One end of a wire: an AF_XDP queue of an interface, or the other side of a memory port.

use std::os::fd::BorrowedFd;

use crate::limits::{BATCH_FRAMES_MAX, RING_SLOTS};
use crate::pktgen::PktgenError;
use crate::pktgen::clock::now_ns;
use crate::xdp::{Frame, Kick, MemoryPeer, PortQueue, Umem};

/// So long the kernel may take no frame before the interface counts as dead.
const STALL_NS: u64 = 1_000_000_000;

/// What sends and receives frames.
pub(crate) enum LinkEnd {
    /// A queue of an interface.
    Socket(Box<Socket>),
    /// The far side of a memory port: what is sent here arrives there.
    Memory(MemoryPeer),
}

/// A queue, and all the frames of its UMEM.
pub(crate) struct Socket {
    umem: Umem,
    queue: PortQueue,
    interface: String,
    free: Vec<Frame>,
    staged: Vec<Frame>,
    received: Vec<Frame>,
    /// Frames to receive into; none where the wire only sends.
    receiving: usize,
}

impl Socket {
    /// Takes `receiving` of the frames to receive into, and the others to send.
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

    /// Sends what is staged, and sees to it that the kernel has taken it.
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
    /// Frames that can be staged, at least; as many as a batch has at most.
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

    /// Makes a frame ready to be sent with the next flush; `false` where there is no room.
    #[inline]
    pub(crate) fn stage(&mut self, bytes: &[u8]) -> Result<bool, PktgenError> {
        match self {
            LinkEnd::Socket(socket) => socket.stage(bytes),
            LinkEnd::Memory(peer) => {
                // A port that has no frame to receive into loses it, as a card does.
                peer.inject(bytes);
                Ok(true)
            }
        }
    }

    /// Sends what is staged.
    pub(crate) fn flush(&mut self) -> Result<(), PktgenError> {
        match self {
            LinkEnd::Socket(socket) => socket.flush(),
            LinkEnd::Memory(_) => Ok(()),
        }
    }

    /// Shows received frames to `see`, a batch at most; how many.
    #[inline]
    pub(crate) fn receive(&mut self, see: impl FnMut(&[u8])) -> usize {
        match self {
            LinkEnd::Socket(socket) => socket.receive(see),
            LinkEnd::Memory(peer) => peer.drain_with(see),
        }
    }

    /// Its socket, readable while frames wait.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            LinkEnd::Socket(socket) => socket.queue.fd(),
            LinkEnd::Memory(_) => None,
        }
    }
}
