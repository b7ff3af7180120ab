//! AF_XDP socket: the four rings of one queue of one interface.

mod pending_release;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use xsk_rs::config::{Interface as InterfaceName, LibxdpFlags, QueueSize, SocketConfig};
use xsk_rs::{CompQueue, FillQueue, FrameDesc, RxQueue, TxQueue};

use self::pending_release::{BoundQueue, timeout};
use super::driver_counters::driver_of;
use super::error::{XdpError, io_source};
use super::frame::{CONTINUED, Frame};
use super::frame_ownership::{Direction, QueueId};
use super::multi_buffer::{Assembler, Taken, fitting};
use super::statistics::Statistics;
use super::umem::Umem;
use super::umem_area::UmemArea;
use super::umem_owner::close_on_exec;
use crate::limits::{BATCH_FRAMES_MAX, FRAME_BYTES, PORT_BURST_FRAMES_MAX, RING_SLOTS};
use crate::netlink::Interface;

/// `XDP_MAX_TX_SKB_BUDGET` of `linux/if_xdp.h` (Linux 6.17): most frames that one `sendto` transmits in copy
/// mode.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

/// Options of a descriptor in `linux/if_xdp.h`: the packet continues in the next one; metadata is in front of
/// the packet.
const XDP_PKT_CONTD: u32 = 1 << 0;
const XDP_TX_METADATA: u32 = 1 << 1;
/// Microseconds that a blocking call polls the driver for (`SO_BUSY_POLL`). Calls here do not block and poll
/// once, which any value but zero allows. This one is that of the kernel's example
/// (`Documentation/networking/napi.rst`).
const BUSY_POLL_US: libc::c_int = 20;

/// Time between two attempts to bind to a queue that is taken.
const RELEASE_POLL: Duration = Duration::from_millis(2);

/// Drivers with which the kernel is seen to compute what transmit metadata asks for. In copy mode it does so for drivers that
/// take linear packets (`xsk_build_skb` of `net/xdp/xsk.c`); for others, such as `virtio_net`, Linux 6.12 sends the
/// packets as they are.
const COMPUTE_CHECKSUMS: [&str; 2] = ["veth", "igb"];

/// Result of a [`kick`](super::PortQueue::kick).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kick {
    /// The tx ring is empty.
    Done,
    /// The tx ring has more frames: kick again.
    Again,
    /// The kernel refused with this error number, such as ENXIO for a removed interface. Frames stay in the
    /// ring.
    Refused(i32),
}

/// The four rings of a socket. The socket is closed when the last of them is dropped.
pub(super) struct XskSocket {
    rx: RxQueue,
    tx: TxQueue,
    fill: FillQueue,
    completion: CompQueue,
    assembler: Assembler,
    /// Whether kernel and driver compute the checksums that transmit metadata asks for.
    computes_checksums: bool,
    _queue: BoundQueue,
}

impl XskSocket {
    /// Binds a socket that shares `umem`. Its mode is that of the owner socket: copy, with `need_wakeup`.
    pub(super) fn open(
        umem: &xsk_rs::Umem,
        interface: &Interface,
        queue: u16,
    ) -> Result<XskSocket, XdpError> {
        let slots = QueueSize::new(RING_SLOTS as u32).expect("limits.rs asserts a power of two");
        let config = SocketConfig::builder()
            .rx_queue_size(slots)
            .tx_queue_size(slots)
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .build();
        let name: InterfaceName = interface
            .name
            .parse()
            .map_err(|_| XdpError::NoInterface { interface: interface.name.clone() })?;
        let deadline = Instant::now() + timeout(interface.index, queue);
        let (tx, rx, shared) = loop {
            // SAFETY: libxdp loads no program (INHIBIT_PROG_LOAD), as the contract demands.
            let error = match unsafe { xsk_rs::Socket::new(config, umem, &name, u32::from(queue)) } {
                Ok(rings) => break rings,
                Err(error) => io_source(&error),
            };
            if error.raw_os_error() != Some(libc::EBUSY) || Instant::now() > deadline {
                return Err(bind_error(&error, interface, queue));
            }
            thread::sleep(RELEASE_POLL);
        };
        // A socket without rings of its own is the second one of this UMEM on the queue.
        let (fill, completion) =
            shared.ok_or_else(|| XdpError::QueueTaken { interface: interface.name.clone(), queue })?;
        close_on_exec(rx.fd())?;
        let queue = BoundQueue::of(interface.index, queue);
        let driver = driver_of(&interface.name);
        let computes_checksums = driver.is_some_and(|driver| COMPUTE_CHECKSUMS.contains(&driver.as_str()));
        let assembler = Assembler::new();
        let socket = XskSocket { rx, tx, fill, completion, assembler, computes_checksums, _queue: queue };
        socket.raise_tx_budget();
        Ok(socket)
    }

    /// Whether kernel and driver compute the checksums that are left to them.
    pub(super) fn computes_checksums(&self) -> bool {
        self.computes_checksums
    }

    /// Makes one kick send a whole batch instead of 32 frames, on a kernel with `XDP_MAX_TX_SKB_BUDGET`.
    fn raise_tx_budget(&self) {
        let budget = BATCH_FRAMES_MAX as libc::c_uint;
        // SAFETY: the descriptor is open, and the option's value is one `unsigned int`, which outlives the
        // call. A kernel before 6.17 answers ENOPROTOOPT, which costs more kicks.
        unsafe {
            libc::setsockopt(
                self.fd().as_raw_fd(),
                libc::SOL_XDP,
                XDP_MAX_TX_SKB_BUDGET,
                (&raw const budget).cast(),
                size_of_val(&budget) as libc::socklen_t,
            );
        }
    }

    /// Enables busy polling by the worker, with interrupts deferred to it (`xsk_recvmsg` of `net/xdp/xsk.c`,
    /// `busy_poll_stop` of `net/core/dev.c`; Linux 5.11). Needs `CAP_NET_ADMIN`.
    pub(super) fn prefer_busy_poll(&self) -> io::Result<()> {
        let options = [
            (libc::SO_PREFER_BUSY_POLL, 1),
            (libc::SO_BUSY_POLL, BUSY_POLL_US),
            (libc::SO_BUSY_POLL_BUDGET, PORT_BURST_FRAMES_MAX as libc::c_int),
        ];
        options.into_iter().try_for_each(|(option, value)| {
            // SAFETY: the descriptor is open, and each option's value is one `int`, which outlives the call.
            let done = unsafe {
                libc::setsockopt(
                    self.fd().as_raw_fd(),
                    libc::SOL_SOCKET,
                    option,
                    (&raw const value).cast(),
                    size_of_val(&value) as libc::socklen_t,
                )
            };
            if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        })
    }

    /// Wakes the driver for the receive direction: it receives where busy polling is enabled, and reads the
    /// fill ring if it waits for it.
    pub(super) fn poll_driver(&self) {
        // SAFETY: the descriptor is open, and the kernel writes nothing without a buffer. Received frames are
        // in the rx ring, whatever the answer is.
        unsafe {
            libc::recvfrom(
                self.fd().as_raw_fd(),
                ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
    }

    pub(super) fn receive(
        &mut self,
        umem: &mut Umem,
        queue_id: QueueId,
        out: &mut Vec<Frame>,
        max: usize,
    ) -> Taken {
        let wanted = max.min(umem.scratch.len());
        // SAFETY: the ring is of this UMEM, and the scratch descriptors only receive addresses.
        let count = unsafe { self.rx.consume(&mut umem.scratch[..wanted]) };
        let mut taken = Taken::default();
        for at in 0..count {
            let descriptor = umem.scratch[at];
            if (descriptor.options() & XDP_PKT_CONTD != 0) | !self.assembler.is_idle() {
                taken += self.assembler.add(umem, queue_id, part(&descriptor), out);
                continue;
            }
            let index = descriptor.addr() / FRAME_BYTES;
            if umem.ownership.take_back(index, queue_id, Direction::Receive) {
                // The ownership table had the frame because its token was given up, so this token is the only
                // one.
                let mut frame = Frame::new(umem.area.id(), index as u32);
                frame.place(descriptor.addr() % FRAME_BYTES, descriptor.lengths().data());
                out.push(frame);
                (taken.packets, taken.frames) = (taken.packets + 1, taken.frames + 1);
            } else {
                taken.refused += 1;
            }
        }
        taken
    }

    pub(super) fn complete(
        &mut self,
        umem: &mut Umem,
        queue_id: QueueId,
        out: &mut Vec<Frame>,
        max: usize,
    ) -> Taken {
        let wanted = max.min(umem.scratch.len());
        // SAFETY: the ring is of this UMEM, and the scratch descriptors only receive addresses.
        let count = unsafe { self.completion.consume(&mut umem.scratch[..wanted]) };
        take_back(umem, queue_id, count, out)
    }

    /// Lends up to `max` frames from the end of `free` to the fill ring.
    pub(super) fn refill(
        &mut self,
        umem: &mut Umem,
        queue_id: QueueId,
        free: &mut Vec<Frame>,
        max: usize,
    ) -> usize {
        let wanted = max.min(free.len()).min(umem.scratch.len());
        let count = wanted.min(self.fill.nb_free(wanted as u32) as usize);
        let rest = free.len() - count;
        for (frame, slot) in free.drain(rest..).zip(&mut umem.scratch) {
            umem.area.check(&frame);
            *slot = umem.templates[frame.index()];
            umem.ownership.lend(frame.index(), queue_id, Direction::Receive);
        }
        // SAFETY: the descriptors are of this UMEM, and their tokens are given up, so no code accesses the
        // frames until the rx ring returns them.
        let produced = unsafe { self.fill.produce(&umem.scratch[..count]) };
        assert!(produced == count, "the fill ring has fewer slots than it said");
        // A driver that found the ring empty waits for a wakeup, even with nothing to send. In copy mode none
        // does.
        if self.fill.needs_wakeup() {
            self.poll_driver();
        }
        count
    }

    /// Lends packets from the front of `frames` to the tx ring, of at most `max` descriptors together.
    pub(super) fn transmit(
        &mut self,
        umem: &mut Umem,
        queue_id: QueueId,
        frames: &mut Vec<Frame>,
        max: usize,
    ) -> Taken {
        let (_, wanted) = fitting(frames, max.min(umem.scratch.len()));
        let (packets, count) = fitting(frames, wanted.min(self.tx.nb_free(wanted as u32) as usize));
        let mut at = 0;
        for mut frame in frames.drain(..packets) {
            umem.area.move_behind_headroom(&mut frame);
            let mut options = if frame.is_multi_buffer() { XDP_PKT_CONTD } else { 0 };
            if let Some((start, field)) = frame.checksum_left()
                && !self.computes_checksums
            {
                umem.finish_checksum(&mut frame, start.into(), field.into());
            } else if let Some((start, field)) = frame.checksum_left() {
                umem.area.write_checksum_request(&frame, start, field);
                options |= XDP_TX_METADATA;
            }
            umem.scratch[at] = described(&umem.area, &umem.templates, &frame, options);
            umem.ownership.lend(frame.index(), queue_id, Direction::Transmit);
            at += 1;
            if frame.is_multi_buffer() {
                at = describe_rest(umem, queue_id, &frame, at);
            }
        }
        // SAFETY: as in `refill`; the completion ring returns the frames.
        let produced = unsafe { self.tx.produce(&umem.scratch[..count]) };
        assert!(produced == count && at == count, "the tx ring has fewer slots than it said");
        Taken { packets, frames: count, refused: 0 }
    }

    /// Frames in the tx ring that the kernel has not taken yet.
    pub(super) fn unsent(&mut self) -> usize {
        RING_SLOTS.saturating_sub(self.tx.nb_free_exact() as usize)
    }

    pub(super) fn kick(&mut self) -> Kick {
        let sending = self.unsent() > 0 && self.tx.needs_wakeup();
        let sent = if sending { self.tx.wakeup() } else { Ok(()) };
        match sent {
            Err(error) => Kick::Refused(error.raw_os_error().unwrap_or(0)),
            Ok(()) if self.unsent() > 0 => Kick::Again,
            Ok(()) => Kick::Done,
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the rings, which `self` owns.
        unsafe { BorrowedFd::borrow_raw(self.rx.fd().as_raw_fd()) }
    }

    pub(super) fn statistics(&self) -> Statistics {
        let Ok(counts) = self.rx.fd().xdp_statistics() else { return Statistics::default() };
        Statistics {
            rx_dropped: counts.rx_dropped(),
            rx_invalid: counts.rx_invalid_descs(),
            rx_ring_full: counts.rx_ring_full(),
            fill_ring_empty: counts.rx_fill_ring_empty_descs(),
            tx_invalid: counts.tx_invalid_descs(),
            tx_ring_empty: counts.tx_ring_empty_descs(),
            refused: 0,
        }
    }
}

fn take_back(umem: &mut Umem, queue_id: QueueId, count: usize, out: &mut Vec<Frame>) -> Taken {
    let before = out.len();
    for descriptor in &umem.scratch[..count] {
        let index = descriptor.addr() / FRAME_BYTES;
        if umem.ownership.take_back(index, queue_id, Direction::Transmit) {
            // The ownership table had the frame because its token was given up, so this token is the only
            // one.
            out.push(Frame::new(umem.area.id(), index as u32));
        }
    }
    let frames = out.len() - before;
    Taken { packets: frames, frames, refused: count - frames }
}

/// Writes the descriptors of the frames behind the head from scratch descriptor `at` on, and returns the
/// index behind them.
#[cold]
#[inline(never)]
fn describe_rest(umem: &mut Umem, queue_id: QueueId, head: &Frame, mut at: usize) -> usize {
    let Umem { area, ownership, templates, scratch, .. } = umem;
    let last = at + head.frames() - 2;
    for mut frame in area.followers(head) {
        area.move_behind_headroom(&mut frame);
        scratch[at] = described(area, templates, &frame, if at < last { XDP_PKT_CONTD } else { 0 });
        ownership.lend(frame.index(), queue_id, Direction::Transmit);
        at += 1;
    }
    at
}

/// Returns the frame's descriptor, with the length of its part of the packet.
#[inline]
fn described(area: &UmemArea, templates: &[FrameDesc], frame: &Frame, options: u32) -> FrameDesc {
    let kernel = area.kernel().expect("a socket exists only on a UMEM that is registered");
    let mut descriptor = templates[frame.index()];
    // SAFETY: the descriptor is of this UMEM, and the caller owns its frame.
    unsafe { kernel.data_mut(&mut descriptor) }.cursor().set_pos(frame.head_len());
    descriptor.set_options(options);
    descriptor
}

/// Packs a received descriptor into one word.
fn part(descriptor: &FrameDesc) -> u64 {
    let index = (descriptor.addr() / FRAME_BYTES).min(u32::MAX as usize);
    let len = descriptor.lengths().data().min(usize::from(u16::MAX));
    let goes_on = if descriptor.options() & XDP_PKT_CONTD == 0 { 0 } else { CONTINUED };
    index as u64 | ((descriptor.addr() % FRAME_BYTES) as u64) << 32 | (len as u64) << 48 | goes_on
}

fn bind_error(error: &std::io::Error, interface: &Interface, queue: u16) -> XdpError {
    let name = interface.name.clone();
    match error.raw_os_error() {
        Some(libc::EBUSY) => XdpError::QueueTaken { interface: name, queue },
        Some(libc::ENODEV | libc::ENXIO) => XdpError::NoInterface { interface: name },
        Some(libc::ENOMEM | libc::ENOBUFS) => XdpError::Memory {
            action: format!("open an AF_XDP socket on queue {queue} of {name}"),
            bytes: RING_SLOTS * 48,
        },
        _ => XdpError::from_io(format!("open an AF_XDP socket on queue {queue} of {name}"), error),
    }
}
