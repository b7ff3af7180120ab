//! Frames that the kernel drops before a worker has them: by the counters of the sockets (`struct xdp_statistics` of
//! `linux/if_xdp.h`) and by those of the interface's driver (ethtool). Read on request, by system calls; no worker has a part in it.

use std::os::fd::OwnedFd;

use rustix::net::sockopt::xdp_statistics;

use super::driver_counters::{DriverCounters, DriverDrops};
use super::error::XdpError;
use super::queue::PortQueue;
use crate::netlink::Interface;

/// Frames that never reached a worker, by where the kernel dropped them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LostFrames {
    /// At a socket whose fill ring had no frame to receive into.
    pub no_frame: u64,
    /// At a socket whose rx ring was full.
    pub ring_full: u64,
    /// At a socket for another reason: longer than what it takes.
    pub socket: u64,
    /// By the XDP program, on a queue without a socket.
    pub no_socket: u64,
    /// By the interface's driver, before the program or between it and the socket.
    pub interface: u64,
}

/// The counters of one port.
#[derive(Debug)]
pub struct LossCounters {
    index: u32,
    /// Descriptors of the queues' sockets. They keep a socket open: drop them before the queue is closed.
    sockets: Vec<OwnedFd>,
    driver: DriverCounters,
    /// Counters of the driver when the port was opened.
    before: DriverDrops,
    /// Lost by the queues that the port had before.
    earlier: LostFrames,
    last: LostFrames,
}

impl LossCounters {
    /// The counters of a port whose queues have just been opened, and that has lost so many frames by others before.
    pub fn of(
        interface: &Interface,
        queues: &[PortQueue],
        earlier: LostFrames,
    ) -> Result<LossCounters, XdpError> {
        let sockets =
            queues.iter().filter_map(PortQueue::fd).map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 0));
        let sockets: Result<Vec<OwnedFd>, _> = sockets.collect();
        let sockets = sockets
            .map_err(|error| XdpError::from_io("keep a socket to read its counters by", &error.into()))?;
        let mut counters = LossCounters {
            index: interface.index,
            sockets,
            driver: DriverCounters::default(),
            before: DriverDrops::default(),
            earlier,
            last: LostFrames::default(),
        };
        counters.before = counters.driver.read(interface.index).unwrap_or_default();
        Ok(counters)
    }

    /// Frames lost so far. Never less than the last time; what an interface counted that is gone is kept.
    pub fn read(&mut self) -> LostFrames {
        if self.sockets.is_empty() {
            return self.sum();
        }
        // The driver is asked first: what its sockets refused between the two readings is then not taken for its own loss.
        let dropped = self.driver.read(self.index);
        let mut now = LostFrames::default();
        for socket in &self.sockets {
            if let Ok(counts) = xdp_statistics(socket) {
                // In copy mode a frame that finds the fill ring empty counts as dropped, too (`__xsk_rcv` of `net/xdp/xsk.c`).
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
        let LostFrames { no_frame, ring_full, socket, no_socket, interface } = self.last;
        self.last = LostFrames {
            no_frame: now.no_frame.max(no_frame),
            ring_full: now.ring_full.max(ring_full),
            socket: now.socket.max(socket),
            no_socket: now.no_socket.max(no_socket),
            interface: now.interface.max(interface),
        };
        self.sum()
    }

    /// Reads the counters for the last time, and lets go of the queues' sockets.
    pub fn close(&mut self) {
        self.read();
        self.sockets.clear();
        (self.earlier, self.last) = (self.sum(), LostFrames::default());
    }

    /// Frames lost, as it was when last read.
    pub fn sum(&self) -> LostFrames {
        let (a, b) = (self.earlier, self.last);
        LostFrames {
            no_frame: a.no_frame + b.no_frame,
            ring_full: a.ring_full + b.ring_full,
            socket: a.socket + b.socket,
            no_socket: a.no_socket + b.no_socket,
            interface: a.interface + b.interface,
        }
    }
}
