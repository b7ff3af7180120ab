//! Next hops and adjacencies.

use crate::dataplane::packet::Packet;
use crate::ids::PortId;
use crate::net::address::Address;

/// Next hop of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hop {
    /// The switch.
    Gateway,
    /// None: a prefix of this node's pods, without a pod that has the address.
    Nowhere,
    /// A port, and a router behind it; the destination itself with `None`.
    Port(PortId, Option<Address>),
}

/// Adjacency: the layer-2 rewrite for packets that leave by a hop, in sixteen bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Adjacency {
    /// Destination Ethernet address, as [`Mac::to_bits`](crate::net::mac::Mac::to_bits) has it. In the
    /// adjacency of a hop it is zero where it has to be learned, which is so on every uplink.
    pub mac: u64,
    /// Port of the hop.
    pub out: PortId,
    /// VLAN identifier of the port, 0 without.
    pub vlan: u16,
    /// Largest IP packet that the port takes, bytes; zero without such a port.
    pub mtu: u16,
    /// Kind of the way out.
    pub egress: Egress,
}

/// Kind of the way that an adjacency leads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Egress {
    /// A port whose packets are those of the wire.
    #[default]
    Plain,
    /// A tap: it takes packets with segments, and unfinished checksums.
    Tap,
    /// An uplink.
    Uplink,
    /// A tunnel by an uplink.
    Tunnel,
}

const _: () = assert!(size_of::<Adjacency>() == 16);

impl Adjacency {
    /// Whether the port is an uplink.
    #[inline(always)]
    pub(crate) fn is_uplink(&self) -> bool {
        matches!(self.egress, Egress::Uplink | Egress::Tunnel)
    }

    /// Whether the port takes packets with segments, and unfinished checksums.
    #[inline(always)]
    pub(crate) fn takes_segments(&self) -> bool {
        self.egress == Egress::Tap
    }

    /// Whether a packet can leave at once: its TTL allows it, it fits the MTU as a whole, and the Ethernet address
    /// is given.
    #[inline(always)]
    pub(crate) fn takes(&self, packet: &Packet) -> bool {
        (packet.ttl > 1) & (packet.ip_bytes() <= usize::from(self.mtu)) & (self.mac != 0)
    }
}
