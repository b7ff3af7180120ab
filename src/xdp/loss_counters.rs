//! Frames that the kernel drops before a worker has them: by the counters of the sockets (`struct xdp_statistics` of
//! `linux/if_xdp.h`) and by those of the interface's driver (ethtool). Read on request, by system calls; no worker has a part in it.

use std::os::fd::OwnedFd;

use rustix::net::netdevice::index_to_name;
use rustix::net::sockopt::xdp_statistics;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::error::XdpError;
use super::interface::{Interface, ethtool};
use super::queue::PortQueue;

/// `ETHTOOL_GSTRINGS`, `ETHTOOL_GSTATS` and `ETH_SS_STATS` of `linux/ethtool.h`.
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETH_SS_STATS: u32 = 1;
/// `ETH_GSTRING_LEN`.
const NAME_BYTES: usize = 32;
/// Room for the driver's counters. The kernel writes as many as the driver has at that moment, whatever the caller has room for. That
/// of veth has nine for each of 4,096 queues at most.
const COUNTERS_MAX: usize = 1 << 17;

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
    before: Dropped,
    /// Lost by the queues that the port had before.
    earlier: LostFrames,
    last: LostFrames,
}

/// Frames that a driver has dropped since the interface was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Dropped {
    /// For any reason but the program's verdict; those that a socket refused are among them.
    received: u64,
    /// Because the program said so.
    by_program: u64,
}

/// Places of the driver's counters that matter.
#[derive(Debug, Default)]
struct DriverCounters {
    count: usize,
    received: Vec<usize>,
    by_program: Vec<usize>,
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
            before: Dropped::default(),
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

impl DriverCounters {
    /// Counters of the driver; `None` where it, or the interface, has none.
    fn read(&mut self, index: u32) -> Option<Dropped> {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
        let name = index_to_name(&socket, index).ok()?;
        // struct ethtool_stats: cmd and n_stats, then the counters.
        let mut words = vec![0u64; 1 + COUNTERS_MAX];
        words[0] = command(ETHTOOL_GSTATS, COUNTERS_MAX as u32);
        // SAFETY: there is room for more counters than any driver has (`COUNTERS_MAX`).
        unsafe { ethtool(&socket, &name, words.as_mut_ptr().cast())? };
        let count = second_half(words[0]).min(COUNTERS_MAX as u32) as usize;
        if count != self.count {
            *self = DriverCounters::find(&socket, &name, count)?;
        }
        let sum = |places: &[usize]| places.iter().map(|place| words[1 + place]).sum();
        Some(Dropped { received: sum(&self.received), by_program: sum(&self.by_program) })
    }

    /// Finds the counters that matter among so many: `rx_queue_N_drops` and `rx_queue_N_xdp_drops` of
    /// `drivers/net/veth.c`. Other drivers have other names, and none of these.
    fn find(socket: &OwnedFd, name: &str, count: usize) -> Option<DriverCounters> {
        // struct ethtool_gstrings: cmd, string_set and len, then the names.
        let mut bytes = vec![0u8; 12 + NAME_BYTES * COUNTERS_MAX];
        bytes[..4].copy_from_slice(&ETHTOOL_GSTRINGS.to_ne_bytes());
        bytes[4..8].copy_from_slice(&ETH_SS_STATS.to_ne_bytes());
        // SAFETY: there is room for more names than any driver has.
        unsafe { ethtool(socket, name, bytes.as_mut_ptr().cast())? };
        let mut found = DriverCounters { count, ..DriverCounters::default() };
        for (place, name) in bytes[12..].chunks_exact(NAME_BYTES).take(count).enumerate() {
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            let Some(rest) = name.strip_prefix(b"rx_queue_") else { continue };
            match rest.iter().position(|byte| *byte == b'_').map(|at| &rest[at + 1..]) {
                Some(b"drops") => found.received.push(place),
                Some(b"xdp_drops") => found.by_program.push(place),
                _ => {}
            }
        }
        Some(found)
    }
}

/// The two numbers that a command begins with, as they lie in memory.
fn command(number: u32, len: u32) -> u64 {
    let [a, b, c, d] = number.to_ne_bytes();
    let [e, f, g, h] = len.to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// The second of them.
fn second_half(word: u64) -> u32 {
    let [_, _, _, _, e, f, g, h] = word.to_ne_bytes();
    u32::from_ne_bytes([e, f, g, h])
}
