//! Ports of Services that uplinks take from the kernel.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use super::port_entry::PortEntry;
use crate::limits::UPLINK_SERVICE_PORTS_MAX;
use crate::net::address::{Address, pack, unpack};
use crate::net::flow::Protocol;
use crate::tables::ServicePort;
use crate::xdp::ServiceDestinations;

/// Destination that a Service serves for clients outside, and whether it is a port of the node, which has its address itself. The
/// unspecified address of a family stands for all addresses of the node.
type Destination = (Protocol, SocketAddr, bool);

/// Destinations with a backend for clients outside. A clone shares them.
#[derive(Clone, Default)]
pub(super) struct UplinkPorts {
    ports: Arc<BTreeSet<Destination>>,
    /// Those that no address of this node hides, and the node's addresses.
    destinations: Arc<ServiceDestinations>,
    /// Number of those beyond the limit, which stay with the kernel.
    left_out: usize,
}

/// Destinations that a change of the Services takes and gives.
#[derive(Default)]
pub(super) struct Changes {
    gone: BTreeSet<Destination>,
    come: BTreeSet<Destination>,
}

impl Changes {
    /// Notes that a port is removed.
    pub(super) fn remove(&mut self, protocol: Protocol, port: &ServicePort, entry: &PortEntry) {
        for destination in destinations(protocol, port, entry) {
            if !self.come.remove(&destination) {
                self.gone.insert(destination);
            }
        }
    }

    /// Notes that a port is added.
    pub(super) fn add(&mut self, protocol: Protocol, port: &ServicePort, entry: &PortEntry) {
        for destination in destinations(protocol, port, entry) {
            if !self.gone.remove(&destination) {
                self.come.insert(destination);
            }
        }
    }
}

impl UplinkPorts {
    /// Applies changes. `refused` are the virtual addresses that this node itself has, in order; `is_same_node` states that these and
    /// the node's addresses are those of the last time.
    pub(super) fn apply(
        &mut self,
        changes: &Changes,
        is_same_node: bool,
        refused: &[Address],
        node_addresses: &[Address],
    ) {
        if is_same_node && changes.gone.is_empty() && changes.come.is_empty() {
            return;
        }
        let ports = Arc::make_mut(&mut self.ports);
        ports.retain(|destination| !changes.gone.contains(destination));
        ports.extend(&changes.come);
        let is_served =
            |(_, at, is_nodes): &&Destination| *is_nodes || refused.binary_search(&pack(at.ip())).is_err();
        self.left_out = ports.iter().filter(is_served).count().saturating_sub(UPLINK_SERVICE_PORTS_MAX);
        self.destinations = Arc::new(ServiceDestinations {
            ports: ports
                .iter()
                .filter(is_served)
                .take(UPLINK_SERVICE_PORTS_MAX)
                .map(|(protocol, at, _)| (*protocol, *at))
                .collect(),
            node_addresses: node_addresses.iter().map(|address| unpack(*address)).collect(),
        });
    }

    /// Destinations that uplinks take.
    pub(super) fn destinations(&self) -> &Arc<ServiceDestinations> {
        &self.destinations
    }

    /// Number of destinations beyond [`UPLINK_SERVICE_PORTS_MAX`].
    pub(super) fn left_out(&self) -> usize {
        self.left_out
    }
}

/// Destinations of a port for clients outside. Without a backend that they may take, the kernel keeps them: another proxy may
/// reach one.
fn destinations<'a>(
    protocol: Protocol,
    port: &'a ServicePort,
    entry: &'a PortEntry,
) -> impl Iterator<Item = Destination> + 'a {
    let node = |address: IpAddr| port.node_port.map(|port| SocketAddr::new(address, port));
    let node = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()].into_iter().filter_map(node);
    let mapped = port.mapped.iter().copied().filter(|at| !at.ip().is_loopback());
    let of_node = mapped.chain(node).map(|at| (at, true));
    let all = port.external.iter().map(|at| (*at, false)).chain(of_node);
    all.filter(|(at, _)| entry.serves_outside(at.is_ipv4()))
        .map(move |(at, is_nodes)| (protocol, at, is_nodes))
}
