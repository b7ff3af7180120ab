//! Name and drop counters of an interface's driver, over ethtool's ioctl: its netlink family has no counters of a
//! driver's own.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::netdevice::index_to_name;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Room for the counters of a driver. The kernel writes as many as the driver has at that moment, whatever
/// the caller has room for. The driver of veth has nine for each of 4,096 queues at most.
const COUNTERS_MAX: usize = 1 << 17;
/// `ETH_SS_STATS` of `linux/ethtool.h`: the set of the counters' names.
const ETH_SS_STATS: u32 = 1;

/// A command of ethtool that reads one element for each counter.
#[derive(Debug, Clone, Copy)]
enum Command {
    /// `ETHTOOL_GSTRINGS`: the names of the counters.
    Names,
    /// `ETHTOOL_GSTATS`: the counters.
    Counters,
    /// `ETHTOOL_GDRVINFO`: the name of the driver, and other texts.
    Driver,
}

/// Frames that a driver has dropped since the interface was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DriverDrops {
    /// Dropped for any reason but the program's verdict, those that a socket refused included.
    pub(super) received: u64,
    /// Dropped by the program's verdict.
    pub(super) by_program: u64,
}

/// Positions of the drop counters among the counters of a driver.
#[derive(Debug, Default)]
pub(super) struct DriverCounters {
    count: usize,
    received: Vec<usize>,
    by_program: Vec<usize>,
}

impl DriverCounters {
    /// Reads the counters of an interface; `None` where it is gone or its driver has none.
    pub(super) fn read(&mut self, index: u32) -> Option<DriverDrops> {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
        let name = index_to_name(&socket, index).ok()?;
        let bytes = ethtool(&socket, &name, Command::Counters)?;
        let (header, counters) = bytes.split_at(Command::Counters.header_bytes());
        // struct ethtool_stats: cmd, n_stats.
        let [_, count] = header.as_chunks::<4>().0 else { return None };
        let count = (u32::from_ne_bytes(*count) as usize).min(COUNTERS_MAX);
        if count != self.count {
            *self = DriverCounters::find(&socket, &name, count)?;
        }
        let counters = counters.as_chunks::<8>().0;
        let sum = |positions: &[usize]| positions.iter().map(|at| u64::from_ne_bytes(counters[*at])).sum();
        Some(DriverDrops { received: sum(&self.received), by_program: sum(&self.by_program) })
    }

    /// Finds the drop counters among `count`: `rx_queue_N_drops` and `rx_queue_N_xdp_drops` of
    /// `drivers/net/veth.c`. Other drivers have other names, and none of these.
    fn find(socket: &OwnedFd, name: &str, count: usize) -> Option<DriverCounters> {
        let bytes = ethtool(socket, name, Command::Names)?;
        let names = &bytes[Command::Names.header_bytes()..];
        let mut found = DriverCounters { count, ..DriverCounters::default() };
        for (at, name) in names.chunks_exact(Command::Names.element_bytes()).take(count).enumerate() {
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            let Some(rest) = name.strip_prefix(b"rx_queue_") else { continue };
            match rest.iter().position(|byte| *byte == b'_').map(|at| &rest[at + 1..]) {
                Some(b"drops") => found.received.push(at),
                Some(b"xdp_drops") => found.by_program.push(at),
                _ => {}
            }
        }
        Some(found)
    }
}

/// Name of the driver of an interface; `None` where it tells none.
pub(super) fn driver_of(interface: &str) -> Option<String> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    let bytes = ethtool(&socket, interface, Command::Driver)?;
    let name = bytes[Command::Driver.header_bytes()..][..32].split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(name).into_owned())
}

impl Command {
    /// First numbers of the command's structure.
    fn header(self) -> Vec<u32> {
        match self {
            // struct ethtool_gstrings: cmd, string_set, len.
            Command::Names => vec![0x1b, ETH_SS_STATS, 0],
            // struct ethtool_stats: cmd, n_stats.
            Command::Counters => vec![0x1d, COUNTERS_MAX as u32],
            // struct ethtool_drvinfo: cmd; driver, version and more, 192 bytes in all.
            Command::Driver => vec![0x03],
        }
    }

    fn header_bytes(self) -> usize {
        self.header().len() * size_of::<u32>()
    }

    fn element_bytes(self) -> usize {
        match self {
            // `ETH_GSTRING_LEN`.
            Command::Names => 32,
            Command::Counters => size_of::<u64>(),
            Command::Driver => 1,
        }
    }
}

/// Runs a command on an interface, and returns its structure as the kernel has filled it; `None` where it is
/// not supported.
fn ethtool(socket: &OwnedFd, name: &str, command: Command) -> Option<Vec<u8>> {
    // Memory that the kernel gives with zeroes in it: none of its pages takes room before something is written there.
    let mut bytes = vec![0; command.header_bytes() + COUNTERS_MAX * command.element_bytes()];
    for (to, from) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(command.header()) {
        *to = from.to_ne_bytes();
    }
    let mut ifr_name = [0; libc::IFNAMSIZ];
    // The last byte stays zero.
    for (to, from) in ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    let ifr_ifru = libc::__c_anonymous_ifr_ifru { ifru_data: bytes.as_mut_ptr().cast() };
    let mut request = libc::ifreq { ifr_name, ifr_ifru };
    // SAFETY: the request and the bytes outlive the call. Two commands write a header and one element for
    // each counter of the driver, the third one writes 196 bytes. The bytes have room for more counters than
    // any driver has (`COUNTERS_MAX`).
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    (answer == 0).then_some(bytes)
}
