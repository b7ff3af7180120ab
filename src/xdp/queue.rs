//! One queue of one port, as one worker sees it.

use std::os::fd::BorrowedFd;

use super::error::{XdpError, check_mtu};
use super::frame::Frame;
use super::frame_ownership::Account;
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
    account: Account,
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
    pub(super) account: Option<Account>,
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
        let Some(umem) = binder.region.kernel() else {
            return Err(XdpError::MemoryOnly { interface: interface.name.clone() });
        };
        XskSocket::open(umem, interface, queue)
    }

    /// A queue in memory, and its other side.
    pub fn memory(binder: &Binder, port: PortId) -> Result<(PortQueue, MemoryPeer), XdpError> {
        let (rings, peer) = memory_port::pair(binder.region.clone());
        Ok((PortQueue::with(binder, port, Rings::Memory(rings))?, peer))
    }

    fn with(binder: &Binder, port: PortId, rings: Rings) -> Result<PortQueue, XdpError> {
        Ok(PortQueue {
            port,
            umem: binder.region.id(),
            account: binder.open_account()?,
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
                socket.receive(umem, self.account, out, max)
            }
            Rings::Memory(rings) => rings.receive(umem, self.account, out, max),
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
                Rings::Socket(socket) => socket.transmit(umem, self.account, frames, room),
                Rings::Memory(rings) => rings.transmit(umem, self.account, frames, room),
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
                Rings::Socket(socket) => socket.complete(umem, self.account, free, max),
                Rings::Memory(rings) => rings.complete(umem, self.account, free, max),
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
        ClosedQueue { umem: self.umem, account: is_quiet.then_some(self.account) }
    }

    #[inline]
    fn check(&self, umem: &Umem) {
        let id = umem.region.id();
        assert!(self.umem == id, "a queue of UMEM {} is used with UMEM {id}", self.umem);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;
    use crate::limits::BATCH_FRAMES_MAX;

    fn port(frames: usize) -> (Umem, Vec<Frame>, PortQueue, MemoryPeer) {
        let (umem, free) = Umem::in_memory(frames);
        let (queue, peer) = PortQueue::memory(&umem.binder(), PortId(3)).unwrap();
        (umem, free, queue, peer)
    }

    #[test]
    fn a_packet_comes_in_and_goes_out_by_the_four_rings() {
        let (mut umem, mut free, mut queue, peer) = port(8);
        assert_eq!(queue.refill(&mut umem, &mut free, 5), 5);
        assert_eq!((queue.lent(), free.len()), (5, 3));
        assert!(peer.inject(b"a packet"));
        let mut batch = Vec::with_capacity(4);
        assert_eq!(queue.receive(&mut umem, &mut batch, 4), 1);
        assert_eq!(umem.data(&batch[0]), b"a packet");
        assert!(batch[0].headroom() >= 4, "room to push a tag");
        umem.data_mut(&mut batch[0])[..1].copy_from_slice(b"A");
        assert_eq!(queue.transmit(&mut umem, &mut batch), 1);
        assert_eq!(queue.kick(), Kick::Done);
        assert_eq!(queue.complete(&mut umem, &mut free), 0, "not before the other side has it");
        assert_eq!(peer.collect(), [b"A packet"]);
        assert_eq!(queue.outstanding(), 1);
        assert_eq!(queue.complete(&mut umem, &mut free), 1);
        assert_eq!((queue.outstanding(), queue.lent(), free.len()), (0, 4, 4));
        assert_eq!(queue.port(), PortId(3));
    }

    #[test]
    fn a_packet_without_a_frame_to_receive_it_is_lost_and_counted() {
        let (mut umem, mut free, mut queue, peer) = port(4);
        assert!(!peer.inject(b"early"));
        queue.refill(&mut umem, &mut free, 1);
        assert!(peer.inject(b"in time"));
        assert!(!peer.inject(b"late"));
        assert_eq!(queue.statistics(), Statistics { fill_ring_empty: 2, ..Statistics::default() });
    }

    #[test]
    fn a_packet_longer_than_a_frame_is_dropped_and_its_frame_is_not() {
        let (mut umem, mut free, mut queue, peer) = port(1);
        queue.refill(&mut umem, &mut free, 1);
        assert!(!peer.inject_with(1 << 20, |_| panic!("there is no room to write")));
        assert_eq!(queue.statistics(), Statistics { rx_dropped: 1, ..Statistics::default() });
        assert!(peer.inject(b"short"));
    }

    #[test]
    fn refill_tops_up_to_the_level_and_waiting_frames_count() {
        let (mut umem, mut free, mut queue, peer) = port(2 * RING_SLOTS);
        assert_eq!(queue.refill(&mut umem, &mut free, 10), 10);
        assert!(peer.inject(b"x"));
        assert_eq!(queue.refill(&mut umem, &mut free, 10), 0);
        assert_eq!(queue.refill(&mut umem, &mut free, 12), 2);
        assert_eq!(queue.refill(&mut umem, &mut free, usize::MAX), RING_SLOTS - 12);
    }

    #[test]
    fn transmit_takes_from_the_front_and_leaves_the_rest_in_order() {
        let (mut umem, mut frames, mut queue, peer) = port(RING_SLOTS + 3);
        for (number, frame) in frames.iter_mut().enumerate() {
            umem.write(frame, &number.to_be_bytes()).unwrap();
        }
        assert_eq!(queue.transmit(&mut umem, &mut frames), RING_SLOTS);
        let rest: Vec<_> = frames.iter().map(|frame| umem.data(frame).to_vec()).collect();
        assert_eq!(
            rest,
            [RING_SLOTS, RING_SLOTS + 1, RING_SLOTS + 2].map(|number| number.to_be_bytes().to_vec())
        );
        let mut expected = 0..RING_SLOTS;
        assert_eq!(
            peer.drain_with(|packet| assert_eq!(packet, expected.next().unwrap().to_be_bytes())),
            RING_SLOTS
        );
        assert_eq!(queue.transmit(&mut umem, &mut frames), 0, "the completion ring is full");
        let mut free = Vec::with_capacity(RING_SLOTS);
        assert_eq!(queue.complete(&mut umem, &mut free), RING_SLOTS);
        assert_eq!(queue.transmit(&mut umem, &mut frames), 3);
    }

    #[test]
    fn nothing_grows_beyond_its_capacity() {
        let (mut umem, mut free, mut queue, peer) = port(8);
        queue.refill(&mut umem, &mut free, 8);
        (0..8).for_each(|_| assert!(peer.inject(b"x")));
        let mut batch = Vec::with_capacity(3);
        let capacity = batch.capacity();
        assert_eq!(queue.receive(&mut umem, &mut batch, 8), capacity);
        assert_eq!(queue.receive(&mut umem, &mut batch, 8), 0);
        queue.transmit(&mut umem, &mut batch);
        peer.collect();
        assert_eq!(queue.complete(&mut umem, &mut Vec::new()), 0);
        assert_eq!(queue.outstanding(), capacity);
    }

    #[test]
    fn a_closed_queue_gives_back_each_frame_once_from_all_four_rings() {
        let (mut umem, mut free, mut queue, peer) = port(16);
        queue.refill(&mut umem, &mut free, 6);
        (0..3).for_each(|_| assert!(peer.inject(b"x")));
        let mut batch = Vec::with_capacity(BATCH_FRAMES_MAX);
        assert_eq!(queue.receive(&mut umem, &mut batch, 1), 1);
        queue.transmit(&mut umem, &mut batch);
        peer.collect();
        let mut unseen: Vec<Frame> = free.drain(..2).collect();
        queue.transmit(&mut umem, &mut unseen);
        // In the fill ring 3, the rx ring 2, the completion ring 1, the tx ring 2.
        assert_eq!((queue.lent(), umem.frames_lent()), (8, 8));
        umem.reclaim(queue.close(), &mut free);
        assert_eq!((free.len(), umem.frames_lent()), (16, 0));
        let distinct: HashSet<usize> = free.iter().map(Frame::index).collect();
        assert_eq!(distinct.len(), 16);
        assert!(!peer.inject(b"x"), "nothing goes in any more");
        assert!(peer.collect().is_empty());
    }

    #[test]
    fn frames_that_the_kernel_may_still_write_to_stay_lent() {
        let (mut umem, mut free, mut queue, _peer) = port(8);
        queue.refill(&mut umem, &mut free, 5);
        let closed = ClosedQueue { account: None, ..queue.close() };
        umem.reclaim(closed, &mut free);
        assert_eq!((free.len(), umem.frames_lent()), (3, 5));
    }

    #[test]
    fn frames_are_conserved_while_the_other_side_is_busy_on_another_thread() {
        let (mut umem, mut free, mut queue, peer) = port(64);
        let stop = AtomicBool::new(false);
        let mut received = 0;
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    peer.inject(b"x");
                    peer.drain_with(|packet| assert_eq!(packet, b"x"));
                }
            });
            let mut batch = Vec::with_capacity(BATCH_FRAMES_MAX);
            while received < 20_000 {
                queue.complete(&mut umem, &mut free);
                queue.refill(&mut umem, &mut free, 32);
                received += queue.receive(&mut umem, &mut batch, 16);
                queue.transmit(&mut umem, &mut batch);
                assert_eq!(queue.lent() + batch.len() + free.len(), umem.frames_total());
            }
            // Closed while the other side is at it.
            umem.reclaim(queue.close(), &mut free);
            free.append(&mut batch);
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(free.iter().map(Frame::index).collect::<HashSet<_>>().len(), 64);
        assert_eq!((free.len(), umem.frames_lent()), (64, 0));
    }

    #[test]
    #[should_panic(expected = "a queue of UMEM")]
    fn a_queue_is_not_used_with_another_umem() {
        let (_umem, _free, mut queue, _peer) = port(1);
        let (mut other, mut others) = Umem::in_memory(1);
        queue.refill(&mut other, &mut others, 1);
    }

    #[test]
    #[should_panic(expected = "is used with UMEM")]
    fn a_frame_of_another_umem_is_not_transmitted() {
        let (mut umem, _free, mut queue, _peer) = port(1);
        let (_other, mut others) = Umem::in_memory(1);
        queue.transmit(&mut umem, &mut others);
    }

    #[test]
    #[should_panic(expected = "is given back to UMEM")]
    fn a_closed_queue_is_not_reclaimed_by_another_umem() {
        let (_umem, mut free, queue, _peer) = port(1);
        let (mut other, _others) = Umem::in_memory(1);
        other.reclaim(queue.close(), &mut free);
    }
}
