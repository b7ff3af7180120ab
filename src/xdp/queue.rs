//! One queue of one port, as one worker sees it.

use std::os::fd::BorrowedFd;

use super::error::XdpError;
use super::frame::Frame;
use super::interface::Interface;
use super::ledger::Account;
use super::memory::{self, MemoryPeer, MemoryRings};
use super::program::Program;
use super::socket::{Taken, XskSocket};
use super::umem::{Binder, Umem};
use crate::ids::PortId;
use crate::limits::RING_SLOTS;

/// One queue of one port. All frames are of the UMEM that it was opened on: methods panic when they are given another.
///
/// Close it and give it back to the UMEM ([`close`](PortQueue::close), [`Umem::reclaim`]); a queue that is merely
/// dropped keeps the frames in its rings for the life of the UMEM.
#[must_use = "a queue that is dropped keeps its frames: close it and reclaim them"]
pub struct PortQueue {
    port: PortId,
    umem: u32,
    account: Account,
    rings: Rings,
    receiving: usize,
    outstanding: usize,
    refused: u64,
}

enum Rings {
    Socket(XskSocket),
    Memory(MemoryRings),
}

/// A queue whose socket is closed, and whose frames wait for [`Umem::reclaim`].
#[must_use = "give it to Umem::reclaim, or its frames are lost to the UMEM"]
#[derive(Debug)]
pub struct ClosedQueue {
    pub(super) umem: u32,
    pub(super) account: Account,
}

/// What came of a [`kick`](PortQueue::kick).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kick {
    /// Nothing is left in the tx ring.
    Done,
    /// The kernel took some frames, or none, and there are more: kick again.
    Again,
    /// The kernel refused with this error number: the interface is gone (ENXIO), or worse. Frames stay in the ring.
    Refused(i32),
}

/// What the kernel counts for a socket (`struct xdp_statistics` of `linux/if_xdp.h`), and what we refuse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames lost before the rx ring, for no other reason in this list.
    pub rx_dropped: u64,
    /// Descriptors in the fill ring that the kernel refused.
    pub rx_invalid: u64,
    /// Frames lost because the rx ring was full.
    pub rx_ring_full: u64,
    /// Times that the kernel found the fill ring empty: a frame was lost each time.
    pub fill_ring_empty: u64,
    /// Descriptors in the tx ring that the kernel refused.
    pub tx_invalid: u64,
    /// Times that the kernel found the tx ring empty.
    pub tx_ring_empty: u64,
    /// Descriptors from the kernel that name no frame lent to this queue. Not zero only where the kernel is at fault.
    pub refused: u64,
}

impl PortQueue {
    /// Opens queue `queue` of an interface: binds an AF_XDP socket to it and enters it into the port's program, which
    /// sends frames there from then on. Takes system calls that may last milliseconds; any thread may do it.
    pub fn open(
        binder: &Binder,
        port: PortId,
        interface: &Interface,
        queue: u16,
        program: &Program,
    ) -> Result<PortQueue, XdpError> {
        let queues = interface.queues();
        if queue >= queues {
            return Err(XdpError::NoQueue { interface: interface.name.clone(), queue, queues });
        }
        let Some(umem) = binder.region.kernel() else {
            return Err(XdpError::MemoryOnly { interface: interface.name.clone() });
        };
        let socket = XskSocket::open(umem, interface, queue)?;
        program.register(queue, socket.fd())?;
        Ok(PortQueue::with(binder, port, binder.open_account()?, Rings::Socket(socket)))
    }

    /// A queue in memory, and its other side.
    pub fn memory(binder: &Binder, port: PortId) -> Result<(PortQueue, MemoryPeer), XdpError> {
        let account = binder.open_account()?;
        let (rings, peer) = memory::pair(binder.region.clone());
        Ok((PortQueue::with(binder, port, account, Rings::Memory(rings)), peer))
    }

    fn with(binder: &Binder, port: PortId, account: Account, rings: Rings) -> PortQueue {
        PortQueue { port, umem: binder.region.id(), account, rings, receiving: 0, outstanding: 0, refused: 0 }
    }

    /// The port that it is a queue of.
    pub fn port(&self) -> PortId {
        self.port
    }

    /// Takes up to `max` received frames off the rx ring, and no more than `out` has room for. Returns their number.
    #[inline]
    pub fn receive(&mut self, umem: &mut Umem, out: &mut Vec<Frame>, max: usize) -> usize {
        self.check(umem);
        let max = max.min(out.capacity() - out.len());
        let taken = match &mut self.rings {
            Rings::Socket(socket) => socket.receive(umem, self.account, out, max),
            Rings::Memory(rings) => Taken { frames: rings.receive(umem, self.account, out, max), refused: 0 },
        };
        self.receiving -= taken.frames;
        self.refused += taken.refused as u64;
        taken.frames
    }

    /// Lends frames from the end of `free` to the fill ring, until the queue has `level` frames to receive into (at
    /// most [`RING_SLOTS`], those counted that wait in the rx ring). Returns how many it lent.
    #[inline]
    pub fn refill(&mut self, umem: &mut Umem, free: &mut Vec<Frame>, level: usize) -> usize {
        self.check(umem);
        let mut lent = 0;
        loop {
            let missing = level.min(RING_SLOTS).saturating_sub(self.receiving);
            let count = match &mut self.rings {
                Rings::Socket(socket) => socket.refill(umem, self.account, free, missing),
                Rings::Memory(rings) => rings.refill(umem, self.account, free, missing),
            };
            self.receiving += count;
            lent += count;
            if count == 0 {
                return lent;
            }
        }
    }

    /// Moves frames from the front of `frames` to the tx ring, as many as it takes, in order. The rest stays, in
    /// order. An empty frame must not be among them: the kernel refuses it, and it comes back when the queue closes.
    #[inline]
    pub fn transmit(&mut self, umem: &mut Umem, frames: &mut Vec<Frame>) -> usize {
        self.check(umem);
        let mut sent = 0;
        loop {
            let room = RING_SLOTS - self.outstanding;
            let count = match &mut self.rings {
                Rings::Socket(socket) => socket.transmit(umem, self.account, frames, room),
                Rings::Memory(rings) => rings.transmit(umem, self.account, frames, room),
            };
            self.outstanding += count;
            sent += count;
            if count == 0 {
                return sent;
            }
        }
    }

    /// Moves transmitted frames from the completion ring to `free`, no more than it has room for. Returns their number.
    #[inline]
    pub fn complete(&mut self, umem: &mut Umem, free: &mut Vec<Frame>) -> usize {
        self.check(umem);
        let mut completed = 0;
        while self.outstanding > 0 {
            let max = free.capacity() - free.len();
            let taken = match &mut self.rings {
                Rings::Socket(socket) => socket.complete(umem, self.account, free, max),
                Rings::Memory(rings) => {
                    Taken { frames: rings.complete(umem, self.account, free, max), refused: 0 }
                }
            };
            self.outstanding -= taken.frames;
            self.refused += taken.refused as u64;
            completed += taken.frames;
            if taken.frames == 0 && taken.refused == 0 {
                break;
            }
        }
        completed
    }

    /// Tells the kernel to look at the rings, where it needs telling. In copy mode nothing is sent without, and one
    /// kick sends a limited number of frames: kick once per batch, and again while the answer is [`Kick::Again`].
    /// A kernel that is out of buffers for the moment, or an interface that is down, is no error.
    #[inline]
    pub fn kick(&mut self) -> Kick {
        match &mut self.rings {
            Rings::Socket(socket) => socket.kick(),
            Rings::Memory(_) => Kick::Done,
        }
    }

    /// Frames in the tx ring that the kernel has not taken: while there are any, [`kick`](PortQueue::kick).
    #[inline]
    pub fn unsent(&mut self) -> usize {
        match &mut self.rings {
            Rings::Socket(socket) => socket.unsent(),
            Rings::Memory(_) => 0,
        }
    }

    /// Frames given to the tx ring that have not come back.
    #[inline]
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Frames in all its rings.
    #[inline]
    pub fn lent(&self) -> usize {
        self.receiving + self.outstanding
    }

    /// The socket's descriptor, readable while frames wait in the rx ring. A memory port has none.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.rings {
            Rings::Socket(socket) => Some(socket.fd()),
            Rings::Memory(_) => None,
        }
    }

    /// Whether the driver writes into the UMEM itself, rather than the kernel copying.
    pub fn zero_copy(&self) -> bool {
        use rustix::net::sockopt::xdp_options;
        use rustix::net::xdp::XdpOptionsFlags;
        let options = self.fd().and_then(|fd| xdp_options(fd).ok());
        options.is_some_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
    }

    /// The socket's counters: a system call.
    pub fn statistics(&self) -> Statistics {
        let statistics = match &self.rings {
            Rings::Socket(socket) => socket.statistics(),
            Rings::Memory(rings) => rings.statistics(),
        };
        Statistics { refused: self.refused, ..statistics }
    }

    /// Closes the socket: when this returns, the kernel neither receives into a frame of its rings nor sends one. Takes
    /// system calls that may last milliseconds; any thread may do it.
    pub fn close(self) -> ClosedQueue {
        match self.rings {
            Rings::Socket(socket) => drop(socket),
            Rings::Memory(rings) => rings.close(),
        }
        ClosedQueue { umem: self.umem, account: self.account }
    }

    #[inline]
    fn check(&self, umem: &Umem) {
        let id = umem.region.id();
        assert!(self.umem == id, "a queue of UMEM {} is used with UMEM {id}", self.umem);
    }
}
