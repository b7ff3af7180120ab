//! Routes of a snapshot, with the state of their neighbours.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::dataplane::fib::next_hop::Hop;
use crate::dataplane::fib::snapshot::Snapshot;
use crate::dataplane::neighbor::table::Neighbors;
use crate::dataplane::{DesiredState, NeighborState, PathHop, PathNeighbor, RouteOrigin, RouteReport};
use crate::net::address::{Address, pack, unpack};
use crate::net::mac::Mac;

/// Routes of a snapshot.
pub(super) struct Routes<'a> {
    snapshot: &'a Snapshot,
    neighbors: &'a Neighbors,
    /// Prefix, origin, and number of the hop.
    entries: Vec<(IpNet, RouteOrigin, u32)>,
}

impl<'a> Routes<'a> {
    /// Routes of a snapshot, which was built from `desired`.
    pub(super) fn of(snapshot: &'a Snapshot, desired: &DesiredState, neighbors: &'a Neighbors) -> Routes<'a> {
        Routes { snapshot, neighbors, entries: snapshot.routes(desired) }
    }

    /// Reports all routes.
    pub(super) fn reports(&self) -> Vec<RouteReport> {
        self.entries.iter().map(|route| self.report(route, None)).collect()
    }

    /// Reports the route of an address, with the neighbour that gets its packets.
    pub(super) fn route_of(&self, address: IpAddr) -> Option<RouteReport> {
        let number = self.snapshot.hop_number(pack(address))?;
        let route = self.entries.iter().find(|(_, _, hop)| *hop == number)?;
        Some(self.report(route, Some(address)))
    }

    fn report(&self, route: &(IpNet, RouteOrigin, u32), address: Option<IpAddr>) -> RouteReport {
        let (prefix, origin, number) = *route;
        let (hop, adjacency) = self.snapshot.hop_and_adjacency(number);
        let hop = hop_report(self.snapshot, hop);
        let (is_open, next_hop) = match hop {
            PathHop::Port { is_open, next_hop, .. } => (is_open, next_hop),
            _ => (false, None),
        };
        let is_host = prefix.prefix_len() == prefix.max_prefix_len();
        let on_link = address.or(is_host.then(|| prefix.addr()));
        RouteReport {
            prefix,
            origin,
            hop,
            tunnel: self.snapshot.tunnels().and_then(|tunnels| tunnels.remote(number)).map(unpack),
            mtu: is_open.then_some(adjacency.mtu),
            neighbor: next_hop
                .or(on_link)
                .and_then(|address| neighbor(self.snapshot, self.neighbors, number, pack(address))),
        }
    }
}

/// Neighbour that gets packets to an address by the hop with this number; `None` without an open port.
pub(super) fn neighbor(
    snapshot: &Snapshot,
    neighbors: &Neighbors,
    number: u32,
    address: Address,
) -> Option<PathNeighbor> {
    let (out, address) = snapshot.neighbor(number, address)?;
    snapshot.port(out)?;
    let adjacency = snapshot.adjacency(number)?;
    let (mac, known) = match adjacency.mac {
        0 if adjacency.is_uplink() => (neighbors.peek_uplink_mac(out, address), NeighborState::Resolved),
        0 => (neighbors.port_mac(out), NeighborState::Learned),
        given => (Some(Mac::from_bits(given)), NeighborState::Given),
    };
    let state = if mac.is_some() { known } else { NeighborState::Unresolved };
    Some(PathNeighbor { address: unpack(address), mac, state })
}

/// Way of packets by a hop.
pub(super) fn hop_report(snapshot: &Snapshot, hop: Hop) -> PathHop {
    match hop {
        Hop::Nowhere => PathHop::NoPod,
        Hop::Gateway => PathHop::Gateway,
        Hop::Port(port, next_hop) => {
            PathHop::Port { port, is_open: snapshot.port(port).is_some(), next_hop: next_hop.map(unpack) }
        }
    }
}
