//! The kernel's links, addresses, routes and neighbours over netlink (netlink(7), rtnetlink(7)).
//!
//! [`Interface`] has the facts of one interface. A [`RouteSocket`] changes links, addresses and routes.
//! [`LinkEvents`] and [`NeighborEvents`] receive events. Each acts in the network namespace of the thread
//! that opens it.

mod error;
mod socket;

mod ethtool;
mod interface;
mod local_ports;

mod links;
mod namespace;
mod neighbor;
mod node_routes;
mod pod_interface;
mod routes;
mod veth_peer;

mod link_events;
mod neighbor_events;

pub use error::NetlinkError;
pub use interface::{Interface, node_addresses};
pub(crate) use interface::{vlan_device, xdp_programs};
pub(crate) use link_events::{LinkEvent, LinkEvents};
pub(crate) use links::Veth;
pub use local_ports::LocalPorts;
pub use namespace::NetworkNamespace;
pub(crate) use namespace::share_namespace_directory;
pub(crate) use neighbor::{Neighbor, NudState};
pub(crate) use neighbor_events::{NeighborEvent, NeighborEvents};
pub(crate) use node_routes::NodeRoute;
pub use node_routes::{NODE_ROUTE_PROTOCOL, node_routes_of_the_switch};
pub(crate) use pod_interface::{
    PodRoute, configure_pod_interface, forward_from, raise_host_end, raise_routed_host_end,
};
pub(crate) use socket::RouteSocket;
pub use veth_peer::VethPeer;
