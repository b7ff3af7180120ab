//! Loss counters of a port: frames that the kernel drops before a worker receives them, counted by the
//! sockets (`struct xdp_statistics` of `linux/if_xdp.h`) and by the interface's driver. They are read on
//! request, and by no worker.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::sockopt::xdp_statistics;

use super::driver_counters::{DriverCounters, DriverDrops};
use super::error::XdpError;
use super::queue::PortQueue;
use crate::netlink::Interface;
use crate::tap::UnreadPackets;

/// Frames that did not reach a worker, by the place at which the kernel dropped them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LostFrames {
    /// Dropped at a socket with an empty fill ring.
    pub no_frame: u64,
    /// Dropped at a socket with a full rx ring.
    pub ring_full: u64,
    /// Dropped at a socket for another reason, such as their length.
    pub socket: u64,
    /// Dropped by the XDP program on a queue without a socket.
    pub no_socket: u64,
    /// Dropped by the interface's driver, before the program or between it and the socket. Sent by a pod into a tap
    /// device whose queue is full.
    pub interface: u64,
    /// Refused by the network stack of a tap device, to which the switch had given the packet.
    pub refused: u64,
}

/// Loss counters of one port.
#[derive(Debug)]
pub struct LossCounters {
    index: u32,
    /// Descriptors of the queues' sockets. They keep a socket open, so they are dropped before the queue is
    /// closed.
    sockets: Vec<OwnedFd>,
    /// Counters of a tap device, and of its queues.
    tap: Option<UnreadPackets>,
    refused: Vec<Arc<AtomicU64>>,
    driver: DriverCounters,
    /// Counters of the driver at the opening of the port.
    before: DriverDrops,
    /// Losses of the queues that the port had before.
    earlier: LostFrames,
    last: LostFrames,
}

impl LossCounters {
    /// Begins the counters of a port with newly opened queues. `earlier` are the losses of the queues it had
    /// before.
    pub fn of(
        interface: &Interface,
        queues: &[PortQueue],
        tap: Option<UnreadPackets>,
        earlier: LostFrames,
    ) -> Result<LossCounters, XdpError> {
        let sockets =
            queues.iter().filter_map(PortQueue::socket).map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 0));
        let sockets: Result<Vec<OwnedFd>, _> = sockets.collect();
        let sockets = sockets
            .map_err(|error| XdpError::from_io("keep a socket to read its counters by", &error.into()))?;
        let mut counters = LossCounters {
            index: interface.index,
            sockets,
            tap,
            refused: queues.iter().filter_map(PortQueue::refused_by_tap).collect(),
            driver: DriverCounters::default(),
            before: DriverDrops::default(),
            earlier,
            last: LostFrames::default(),
        };
        if counters.tap.is_none() {
            counters.before = counters.driver.read(interface.index).unwrap_or_default();
        }
        Ok(counters)
    }

    /// Reads the lost frames. The counters never decrease, and keep those of an interface that is removed.
    pub fn read(&mut self) -> LostFrames {
        if let Some(tap) = &mut self.tap {
            self.last.interface = tap.read();
            self.last.refused = self.refused.iter().map(|refused| refused.load(Ordering::Relaxed)).sum();
        }
        if self.sockets.is_empty() {
            return self.sum();
        }
        // The driver comes first: frames that its sockets refuse between the two readings do not count as its
        // own loss.
        let dropped = self.driver.read(self.index);
        let mut now = LostFrames::default();
        for socket in &self.sockets {
            if let Ok(counts) = xdp_statistics(socket) {
                // In copy mode a frame for an empty fill ring counts as dropped as well (`__xsk_rcv` of
                // `net/xdp/xsk.c`).
                let no_frame = counts.rx_fill_ring_empty_descs.unwrap_or(0).min(counts.rx_dropped);
                now.no_frame += no_frame;
                now.ring_full += counts.rx_ring_full.unwrap_or(0);
                now.socket += counts.rx_dropped - no_frame;
            }
        }
        if let Some(dropped) = dropped {
            let received = dropped.received.saturating_sub(self.before.received);
            now.interface = received.saturating_sub(now.no_frame + now.ring_full + now.socket);
            now.no_socket = dropped.by_program.saturating_sub(self.before.by_program);
        }
        let LostFrames { no_frame, ring_full, socket, no_socket, interface, refused } = self.last;
        self.last = LostFrames {
            no_frame: now.no_frame.max(no_frame),
            ring_full: now.ring_full.max(ring_full),
            socket: now.socket.max(socket),
            no_socket: now.no_socket.max(no_socket),
            interface: now.interface.max(interface),
            refused,
        };
        self.sum()
    }

    /// Reads the counters for the last time, and closes the descriptors of the queues' sockets.
    pub fn close(&mut self) {
        self.read();
        self.sockets.clear();
        self.tap = None;
        self.refused.clear();
        (self.earlier, self.last) = (self.sum(), LostFrames::default());
    }

    /// Frames lost by the last reading.
    pub fn sum(&self) -> LostFrames {
        let (a, b) = (self.earlier, self.last);
        LostFrames {
            no_frame: a.no_frame + b.no_frame,
            ring_full: a.ring_full + b.ring_full,
            socket: a.socket + b.socket,
            no_socket: a.no_socket + b.no_socket,
            interface: a.interface + b.interface,
            refused: a.refused + b.refused,
        }
    }
}
