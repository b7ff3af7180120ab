//! One queue of one port, as one worker sees it.

use std::os::fd::BorrowedFd;

use super::error::{XdpError, check_mtu};
use super::frame::Frame;
use super::frame_ownership::QueueId;
use super::memory_port::{self, MemoryPeer, MemoryRings};
use super::program::{Program, Registration};
use super::socket::XskSocket;
use super::umem::{Binder, Umem};
use crate::ids::PortId;
use crate::limits::RING_SLOTS;
use crate::netlink::Interface;

/// One queue of one port. All frames are of the UMEM that it was opened on: methods panic when they are given another.
///
/// Close it and give it back to the UMEM ([`close`](PortQueue::close), [`Umem::reclaim`]); a queue that is merely
/// dropped keeps the frames in its rings for the life of the UMEM.
#[must_use = "a queue that is dropped keeps its frames: close it and reclaim them"]
pub struct PortQueue {
    port: PortId,
    umem: u32,
    queue_id: QueueId,
    /// Where a program sends it frames.
    registration: Option<Registration>,
    rings: Rings,
    receiving: usize,
    outstanding: usize,
    refused: u64,
    /// Whether it polls the driver before it looks at the rx ring.
    polls: bool,
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
    /// None where the kernel may still receive into its frames.
    pub(super) queue_id: Option<QueueId>,
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
        let socket = PortQueue::bind(binder, interface, queue)?;
        let registration = program.register(queue, socket.fd())?;
        let opened = PortQueue::with(binder, port, Rings::Socket(socket))?;
        Ok(PortQueue { registration: Some(registration), ..opened })
    }

    /// Opens queue `queue` of an interface to send by it only: no program sends it frames, and what the interface
    /// receives stays with the kernel's stack.
    pub fn open_to_send(
        binder: &Binder,
        port: PortId,
        interface: &Interface,
        queue: u16,
    ) -> Result<PortQueue, XdpError> {
        let socket = PortQueue::bind(binder, interface, queue)?;
        PortQueue::with(binder, port, Rings::Socket(socket))
    }

    fn bind(binder: &Binder, interface: &Interface, queue: u16) -> Result<XskSocket, XdpError> {
        let queues = interface.queues();
        if queue >= queues {
            return Err(XdpError::NoQueue { interface: interface.name.clone(), queue, queues });
        }
        check_mtu(interface, binder.mtu_max())?;
        let Some(umem) = binder.area.kernel() else {
            return Err(XdpError::MemoryOnly { interface: interface.name.clone() });
        };
        XskSocket::open(umem, interface, queue)
    }

    /// A queue in memory, and its other side.
    pub fn memory(binder: &Binder, port: PortId) -> Result<(PortQueue, MemoryPeer), XdpError> {
        let (rings, peer) = memory_port::pair(binder.area.clone());
        Ok((PortQueue::with(binder, port, Rings::Memory(rings))?, peer))
    }

    fn with(binder: &Binder, port: PortId, rings: Rings) -> Result<PortQueue, XdpError> {
        Ok(PortQueue {
            port,
            umem: binder.area.id(),
            queue_id: binder.allocate_queue_id()?,
            registration: None,
            rings,
            receiving: 0,
            outstanding: 0,
            refused: 0,
            polls: false,
        })
    }

    /// Lets the worker poll the driver itself whenever it looks at the rx ring: a system call each time, but no interrupt, where the
    /// driver's NAPI instance is put off (`napi_defer_hard_irqs`, `gro_flush_timeout`). On an error nothing is polled. A queue
    /// in memory has no driver.
    pub fn prefer_busy_poll(&mut self) -> std::io::Result<()> {
        if let Rings::Socket(socket) = &self.rings {
            socket.prefer_busy_poll()?;
            self.polls = true;
        }
        Ok(())
    }

    /// The port that it is a queue of.
    pub fn port(&self) -> PortId {
        self.port
    }

    /// Takes packets off the rx ring, of up to `max` frames together and no more than `out` has room for. Returns their
    /// number. Of a packet that has not come as a whole the frames stay with the queue.
    #[inline]
    pub fn receive(&mut self, umem: &mut Umem, out: &mut Vec<Frame>, max: usize) -> usize {
        self.check(umem);
        let max = max.min(out.capacity() - out.len());
        let taken = match &mut self.rings {
            Rings::Socket(socket) => {
                if self.polls {
                    socket.poll_driver();
                }
                socket.receive(umem, self.queue_id, out, max)
            }
            Rings::Memory(rings) => rings.receive(umem, self.queue_id, out, max),
        };
        self.receiving -= taken.frames;
        self.refused += taken.refused as u64;
        taken.packets
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
                Rings::Socket(socket) => socket.refill(umem, self.queue_id, free, missing),
                Rings::Memory(rings) => rings.refill(umem, self.queue_id, free, missing),
            };
            self.receiving += count;
            lent += count;
            if count == 0 {
                return lent;
            }
        }
    }

    /// Moves packets from the front of `frames` to the tx ring, as many as it takes as a whole, in order. The rest stays,
    /// in order. An empty frame must not be among them, nor a chain that was cut and not trimmed: the kernel refuses it,
    /// and it comes back when the queue closes.
    #[inline]
    pub fn transmit(&mut self, umem: &mut Umem, frames: &mut Vec<Frame>) -> usize {
        self.check(umem);
        let mut sent = 0;
        loop {
            let room = RING_SLOTS - self.outstanding;
            let count = match &mut self.rings {
                Rings::Socket(socket) => socket.transmit(umem, self.queue_id, frames, room),
                Rings::Memory(rings) => rings.transmit(umem, self.queue_id, frames, room),
            };
            self.outstanding += count.frames;
            sent += count.packets;
            if count.packets == 0 {
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
                Rings::Socket(socket) => socket.complete(umem, self.queue_id, free, max),
                Rings::Memory(rings) => rings.complete(umem, self.queue_id, free, max),
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

    /// Frames in the fill ring and in the rx ring.
    #[inline]
    pub fn receiving(&self) -> usize {
        self.receiving
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

    /// Whether the driver writes into the UMEM itself, rather than the kernel copying. All queues of a UMEM are alike in
    /// this (`xp_assign_dev_shared` of `net/xdp/xsk_buff_pool.c`), and veth cannot: so the answer is no.
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

    /// Closes the socket: when this returns, the kernel neither receives into a frame of its rings nor sends one, not
    /// even where another process has a descriptor of it (a child, from its `fork` to its `exec`). Takes system calls
    /// that may last tens of milliseconds; any thread may do it.
    ///
    /// Should the kernel refuse to say that it no longer receives, the frames stay lent for the life of the UMEM.
    pub fn close(self) -> ClosedQueue {
        let is_quiet = self.registration.is_none_or(|registration| registration.end().is_ok());
        match self.rings {
            Rings::Socket(socket) => drop(socket),
            Rings::Memory(rings) => rings.close(),
        }
        ClosedQueue { umem: self.umem, queue_id: is_quiet.then_some(self.queue_id) }
    }

    #[inline]
    fn check(&self, umem: &Umem) {
        let id = umem.area.id();
        assert!(self.umem == id, "a queue of UMEM {} is used with UMEM {id}", self.umem);
    }
}

#[cfg(test)]
mod tests;
