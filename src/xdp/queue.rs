//! Queue of a port: the four rings of one AF_XDP socket or in-memory port, or the descriptor of a tap device, as
//! one worker uses them.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::error::{XdpError, check_mtu};
use super::frame::Frame;
use super::frame_ownership::QueueId;
use super::memory_port::{self, MemoryPeer, MemoryRings};
use super::multi_buffer::Taken;
use super::program::{Program, Registration};
use super::socket::{Kick, XskSocket};
use super::statistics::Statistics;
use super::tap_rings::TapRings;
use super::umem::{Binder, ClosedQueue, Umem};
use crate::ids::PortId;
use crate::limits::RING_SLOTS;
use crate::netlink::Interface;
use crate::tap::TapQueue;

/// One queue of one port. All frames are of the UMEM that it was opened on; methods panic on another.
///
/// Close it and give it back to the UMEM ([`close`](PortQueue::close), [`Umem::reclaim`]). A dropped queue
/// keeps the frames in its rings for the life of the UMEM.
#[must_use = "a queue that is dropped keeps its frames: close it and reclaim them"]
pub struct PortQueue {
    port: PortId,
    umem: u32,
    queue_id: QueueId,
    /// Entry in the program that redirects frames to the queue.
    registration: Option<Registration>,
    rings: Rings,
    receiving: usize,
    outstanding: usize,
    refused: u64,
    /// Whether it polls the driver before it reads the rx ring.
    polls: bool,
}

enum Rings {
    Socket(XskSocket),
    Memory(MemoryRings),
    Tap(TapRings),
}

impl PortQueue {
    /// Opens queue `queue` of an interface: binds an AF_XDP socket to it, and registers the socket with the
    /// port's program, which redirects frames to it from then on. The system calls may last milliseconds. Any
    /// thread may call it.
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

    /// Opens queue `queue` of an interface to send only. No program redirects frames to it, and the kernel's
    /// stack receives as before.
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

    /// Opens an in-memory queue, and returns it with its peer.
    pub fn memory(binder: &Binder, port: PortId) -> Result<(PortQueue, MemoryPeer), XdpError> {
        let (rings, peer) = memory_port::pair(binder.area.clone());
        Ok((PortQueue::with(binder, port, Rings::Memory(rings))?, peer))
    }

    /// Opens an in-memory queue that takes and delivers packets with virtio-net headers, as a tap device does, and
    /// returns it with its peer.
    pub fn memory_tap(binder: &Binder, port: PortId) -> Result<(PortQueue, MemoryPeer), XdpError> {
        let (rings, peer) = memory_port::tap_pair(binder.area.clone());
        Ok((PortQueue::with(binder, port, Rings::Memory(rings))?, peer))
    }

    /// Opens a queue of a tap device.
    pub fn tap(binder: &Binder, port: PortId, queue: TapQueue) -> Result<PortQueue, XdpError> {
        PortQueue::with(binder, port, Rings::Tap(TapRings::new(queue)))
    }

    /// Whether the receiver of the port's packets takes segments larger than its MTU, and unfinished checksums.
    #[inline]
    pub fn takes_segments(&self) -> bool {
        match &self.rings {
            Rings::Socket(_) => false,
            Rings::Memory(rings) => rings.takes_segments(),
            Rings::Tap(_) => true,
        }
    }

    /// Whether the queue receives into frames that are lent to it.
    pub fn has_fill_ring(&self) -> bool {
        !matches!(self.rings, Rings::Tap(_))
    }

    /// Counter of the packets that the network stack of a tap device has refused; `None` for another queue.
    pub fn refused_by_tap(&self) -> Option<Arc<AtomicU64>> {
        match &self.rings {
            Rings::Tap(tap) => Some(tap.queue().refused()),
            Rings::Socket(_) | Rings::Memory(_) => None,
        }
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

    /// Makes [`receive`](PortQueue::receive) poll the driver first: one system call each time, but no
    /// interrupt where the driver defers its NAPI instance (`napi_defer_hard_irqs`, `gro_flush_timeout`).
    /// After an error nothing is polled. An in-memory queue has no driver.
    pub fn prefer_busy_poll(&mut self) -> std::io::Result<()> {
        if let Rings::Socket(socket) = &self.rings {
            socket.prefer_busy_poll()?;
            self.polls = true;
        }
        Ok(())
    }

    /// Port of the queue.
    pub fn port(&self) -> PortId {
        self.port
    }

    /// Moves packets from the rx ring to `out`: at most `max` frames together, and no more than `out` has
    /// capacity for. Returns the number of packets. The frames of an incomplete packet stay with the queue. A tap
    /// device has no such ring.
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
            Rings::Tap(_) => Taken::default(),
        };
        self.receiving -= taken.frames;
        self.refused += taken.refused as u64;
        taken.packets
    }

    /// Like [`receive`](PortQueue::receive), and reads the packets of a tap device into frames from the end of
    /// `free`. The last of them may exceed `max`.
    #[inline(never)]
    pub fn receive_into(
        &mut self,
        umem: &mut Umem,
        free: &mut Vec<Frame>,
        out: &mut Vec<Frame>,
        max: usize,
    ) -> usize {
        match &mut self.rings {
            Rings::Tap(tap) => tap.receive(umem, free, out, max),
            Rings::Socket(_) | Rings::Memory(_) => self.receive(umem, out, max),
        }
    }

    /// Lends frames from the end of `free` to the fill ring, up to a fill target of `fill_target` frames in fill
    /// and rx ring, at most [`RING_SLOTS`]. Returns the number of lent frames.
    #[inline]
    pub fn refill(&mut self, umem: &mut Umem, free: &mut Vec<Frame>, fill_target: usize) -> usize {
        self.check(umem);
        let mut lent = 0;
        loop {
            let missing = fill_target.min(RING_SLOTS).saturating_sub(self.receiving);
            let count = match &mut self.rings {
                Rings::Socket(socket) => socket.refill(umem, self.queue_id, free, missing),
                Rings::Memory(rings) => rings.refill(umem, self.queue_id, free, missing),
                Rings::Tap(_) => 0,
            };
            self.receiving += count;
            lent += count;
            if count == 0 {
                return lent;
            }
        }
    }

    /// Moves packets from the front of `frames` to the tx ring, as many whole ones as fit, in order. The rest
    /// stays, in order. The kernel refuses an empty frame, and a truncated packet that was not trimmed; its
    /// frames come back when the queue closes.
    #[inline]
    pub fn transmit(&mut self, umem: &mut Umem, frames: &mut Vec<Frame>) -> usize {
        self.check(umem);
        let mut sent = 0;
        loop {
            let room = RING_SLOTS - self.outstanding;
            let count = match &mut self.rings {
                Rings::Socket(socket) => socket.transmit(umem, self.queue_id, frames, room),
                Rings::Memory(rings) => rings.transmit(umem, self.queue_id, frames, room),
                Rings::Tap(tap) => tap.transmit(umem, frames, room),
            };
            self.outstanding += count.frames;
            sent += count.packets;
            if count.packets == 0 {
                return sent;
            }
        }
    }

    /// Moves transmitted frames from the completion ring to `free`, no more than it has capacity for. Returns
    /// their number.
    #[inline]
    pub fn complete(&mut self, umem: &mut Umem, free: &mut Vec<Frame>) -> usize {
        self.check(umem);
        let mut completed = 0;
        while self.outstanding > 0 {
            let max = free.capacity() - free.len();
            let taken = match &mut self.rings {
                Rings::Socket(socket) => socket.complete(umem, self.queue_id, free, max),
                Rings::Memory(rings) => rings.complete(umem, self.queue_id, free, max),
                Rings::Tap(tap) => Taken { frames: tap.complete(umem, free), ..Taken::default() },
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

    /// Wakes the kernel where it needs a wakeup. In copy mode the kernel transmits during a kick only, and a
    /// limited number of frames: kick once per batch, and again after [`Kick::Again`]. A temporary lack of
    /// buffers or an interface that is down is no error.
    #[inline]
    pub fn kick(&mut self) -> Kick {
        match &mut self.rings {
            Rings::Socket(socket) => socket.kick(),
            Rings::Memory(_) | Rings::Tap(_) => Kick::Done,
        }
    }

    /// Frames in the tx ring that the kernel has not taken. They need another [`kick`](PortQueue::kick).
    #[inline]
    pub fn unsent(&mut self) -> usize {
        match &mut self.rings {
            Rings::Socket(socket) => socket.unsent(),
            Rings::Memory(_) | Rings::Tap(_) => 0,
        }
    }

    /// Frames in the fill ring and in the rx ring.
    #[inline]
    pub fn receiving(&self) -> usize {
        self.receiving
    }

    /// Frames lent to the tx ring that have not come back.
    #[inline]
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Frames in all rings.
    #[inline]
    pub fn lent(&self) -> usize {
        self.receiving + self.outstanding
    }

    /// Descriptor, readable while frames wait; `None` for an in-memory port.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.rings {
            Rings::Socket(socket) => Some(socket.fd()),
            Rings::Memory(_) => None,
            Rings::Tap(tap) => Some(tap.queue().fd()),
        }
    }

    /// Descriptor of the AF_XDP socket; `None` for another queue.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        match &self.rings {
            Rings::Socket(socket) => Some(socket.fd()),
            Rings::Memory(_) | Rings::Tap(_) => None,
        }
    }

    /// Whether the driver writes to the UMEM itself, without a copy by the kernel. It does not: all queues of
    /// a UMEM have one mode (`xp_assign_dev_shared` of `net/xdp/xsk_buff_pool.c`), and veth has copy mode
    /// only.
    pub fn zero_copy(&self) -> bool {
        use rustix::net::sockopt::xdp_options;
        use rustix::net::xdp::XdpOptionsFlags;
        let options = self.socket().and_then(|fd| xdp_options(fd).ok());
        options.is_some_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
    }

    /// Whether kernel and driver compute the checksums that are left to them ([`Umem::leaves_checksums`]). Else the socket does.
    pub fn computes_checksums(&self) -> bool {
        !matches!(&self.rings, Rings::Socket(socket) if !socket.computes_checksums())
    }

    /// Reads the counters of the socket by a system call.
    pub fn statistics(&self) -> Statistics {
        let statistics = match &self.rings {
            Rings::Socket(socket) => socket.statistics(),
            Rings::Memory(rings) => rings.statistics(),
            Rings::Tap(_) => Statistics::default(),
        };
        Statistics { refused: self.refused, ..statistics }
    }

    /// Closes the socket. When this returns, the kernel neither receives into a frame of its rings nor sends
    /// one, even if another process has a descriptor of the socket (a child between `fork` and `exec`). The
    /// system calls may last tens of milliseconds. Any thread may call it.
    ///
    /// If the kernel does not confirm that it no longer receives, the frames stay lent for the life of the
    /// UMEM.
    pub fn close(self) -> ClosedQueue {
        let is_quiet = self.registration.is_none_or(|registration| registration.end().is_ok());
        match self.rings {
            Rings::Socket(socket) => drop(socket),
            Rings::Memory(rings) => rings.close(),
            Rings::Tap(tap) => drop(tap),
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
