//! Next hops and adjacencies.

use crate::dataplane::packet::Packet;
use crate::ids::PortId;
use crate::net::address::Address;

/// Where a destination leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hop {
    /// To the switch itself.
    Gateway,
    /// Among the addresses of this node's pods, and no pod has it.
    Nowhere,
    /// Out of a port, to a next hop or, with `None`, to the destination itself.
    Port(PortId, Option<Address>),
}

/// What a packet needs to leave by a hop: all in sixteen bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Adjacency {
    /// Ethernet address of what is there, as [`Mac::to_bits`] has it; of a hop zero where it is to be learned, and always on
    /// uplinks.
    pub mac: u64,
    /// Port that it leaves by.
    pub out: PortId,
    /// 802.1Q identifier of that port's frames, 0 without.
    pub vlan: u16,
    /// Largest IP packet that the port takes; zero where there is no such port.
    pub mtu: u16,
    /// Whether the port is an uplink.
    pub is_uplink: bool,
}

impl Adjacency {
    /// Whether a packet may leave without a further look: to a pod whose Ethernet address is given, small enough, and not at
    /// the end of its life.
    #[inline(always)]
    pub(crate) fn takes(&self, packet: &Packet) -> bool {
        (packet.ttl > 1) & (packet.ip_bytes() <= usize::from(self.mtu)) & (self.mac != 0)
    }
}
