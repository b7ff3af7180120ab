//! Ports that the kernel gives to sockets of the node (`net.ipv4.ip_local_port_range`, for both families).

use std::fs;
use std::io;
use std::ops::RangeInclusive;

/// Directory of the settings.
const SETTINGS: &str = "/proc/sys/net/ipv4";

/// Ports that the kernel gives to sockets which ask for none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPorts {
    range: RangeInclusive<u16>,
    reserved: Vec<RangeInclusive<u16>>,
}

impl LocalPorts {
    /// Reads the settings of this network namespace.
    pub fn read() -> io::Result<LocalPorts> {
        let read = |name: &str| fs::read_to_string(format!("{SETTINGS}/{name}"));
        Ok(LocalPorts::of(&read("ip_local_port_range")?, &read("ip_local_reserved_ports")?))
    }

    /// The ports of the contents of `ip_local_port_range` and `ip_local_reserved_ports`.
    pub fn of(range: &str, reserved: &str) -> LocalPorts {
        let mut local = range.split_whitespace().filter_map(|number| number.parse().ok());
        let range = local.next().unwrap_or(1)..=local.next().unwrap_or(u16::MAX);
        LocalPorts { range, reserved: reserved.trim().split(',').filter_map(interval).collect() }
    }

    /// Whether a socket may get a port.
    pub fn gives(&self, port: u16) -> bool {
        self.range.contains(&port) && !self.reserved.iter().any(|interval| interval.contains(&port))
    }
}

/// Interval of `ip_local_reserved_ports`: `8080` or `9000-9010`.
fn interval(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}
