//! Tunnels that packets take by the routes of a snapshot.

use super::Snapshot;
use crate::dataplane::fib::tunnel::Tunnels;
use crate::net::address::Address;

impl Snapshot {
    /// Tunnels to other nodes, if there are any.
    #[inline]
    pub(crate) fn tunnels(&self) -> Option<&Tunnels> {
        self.tunnels.as_deref()
    }

    /// Other end of the tunnel of packets to an address.
    pub(crate) fn tunnel_remote(&self, destination: Address) -> Option<Address> {
        self.tunnels()?.remote(self.hop_number(destination)?)
    }

    /// Other end of the tunnel of packets from `source` to `destination`. Packets of this node itself to
    /// another node take none: it answers to the node.
    pub(crate) fn tunnel_of(&self, source: Address, destination: Address) -> Option<Address> {
        let is_of_pod = || self.port_of_address(source).is_some_and(|(_, port)| port.is_pod());
        self.tunnel_remote(destination).filter(|remote| *remote != destination || is_of_pod())
    }

    /// Whether packets from an address come by a tunnel only. A node itself needs none.
    pub(crate) fn is_behind_tunnel(&self, source: Address) -> bool {
        self.tunnel_remote(source).is_some_and(|remote| remote != source)
    }
}
