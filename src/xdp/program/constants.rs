//! Constants of an uplink's program, `struct constants` of `bpf/uplink.bpf.c`.

use std::net::IpAddr;
use std::ops::RangeInclusive;

/// Constants of an uplink's program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UplinkConstants {
    /// 802.1Q identifier of the port's frames, 0 without.
    pub vlan: u16,
    /// Addresses of the node that masqueraded flows have: the first one of each family.
    pub external: Vec<IpAddr>,
    /// External ports.
    pub ports: RangeInclusive<u16>,
    /// External identifiers of ICMP queries.
    pub identifiers: RangeInclusive<u16>,
    /// Addresses of the node at which tunnels end: the first one of each family.
    pub tunnel_ends: Vec<IpAddr>,
    /// UDP port of tunnels, 0 without.
    pub tunnel_port: u16,
}

impl Default for UplinkConstants {
    fn default() -> UplinkConstants {
        UplinkConstants {
            vlan: 0,
            external: Vec::new(),
            ports: 0..=0,
            identifiers: 0..=0,
            tunnel_ends: Vec::new(),
            tunnel_port: 0,
        }
    }
}

impl UplinkConstants {
    /// Constants of a port with this tag, 0 for none, where no flow is masqueraded.
    pub fn of_tag(vlan: u16) -> UplinkConstants {
        UplinkConstants { vlan, ..UplinkConstants::default() }
    }

    /// The constants as the program has them.
    pub fn bytes(&self) -> Vec<u8> {
        let octets = |of: &[IpAddr], v4: bool| match of.iter().find(|address| address.is_ipv4() == v4) {
            Some(IpAddr::V4(address)) => address.to_ipv6_mapped().octets(),
            Some(IpAddr::V6(address)) => address.octets(),
            None => [0; 16],
        };
        let ends = [&self.external, &self.tunnel_ends];
        let ends = ends.map(|of| [octets(of, true), octets(of, false)]);
        let mut bytes = ends.concat().concat();
        let ranges = [&self.ports, &self.identifiers];
        let bounds = ranges.into_iter().flat_map(|range| [*range.start(), *range.end()]);
        bounds.chain([self.vlan, self.tunnel_port]).for_each(|number| bytes.extend(number.to_ne_bytes()));
        bytes
    }
}
