//! A route as the workers use it.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::ids::PortId;
use crate::net::mac::Mac;

/// Origin of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouteOrigin {
    /// Address of an attached pod.
    Pod,
    /// Address of the node.
    Node,
    /// Address of the switch.
    Gateway,
    /// Prefix of this node's pods, for addresses that no pod has.
    PodPrefix,
    /// Configured route.
    Configured,
}

/// Route of a destination prefix. The longest prefix counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteReport {
    /// Destination prefix.
    pub prefix: IpNet,
    /// Origin of the route.
    pub origin: RouteOrigin,
    /// Way of the packets.
    pub hop: PathHop,
    /// Node at the other end of the tunnel that the packets take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<IpAddr>,
    /// Largest IP packet that leaves, bytes.
    pub mtu: Option<u16>,
    /// Next hop on the link. `None` without an open port, and for a prefix whose destinations are all on the link.
    pub neighbor: Option<PathNeighbor>,
}

/// Way of packets to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "to", rename_all = "kebab-case")]
pub enum PathHop {
    /// No route covers the address.
    NoRoute,
    /// The address is in a pod prefix of this node, and no pod has it.
    NoPod,
    /// Local delivery to the switch.
    Gateway,
    /// Forwarding to a port.
    Port {
        /// Egress port.
        port: PortId,
        /// Whether the port is open.
        is_open: bool,
        /// Next-hop router; absent if the destination is on the link.
        next_hop: Option<IpAddr>,
    },
}

/// Next hop on the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathNeighbor {
    /// IP address of the next hop.
    pub address: IpAddr,
    /// Ethernet address of the next hop, if it is known.
    pub mac: Option<Mac>,
    /// Source of the Ethernet address.
    pub state: NeighborState,
}

/// Source of a neighbour's Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NeighborState {
    /// The pod was attached with it.
    Given,
    /// The switch has learned it from a frame of the port.
    Learned,
    /// The kernel has resolved it on the uplink.
    Resolved,
    /// It is not known: the next packet solicits it.
    Unresolved,
}

impl fmt::Display for RouteOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            RouteOrigin::Pod => "pod",
            RouteOrigin::Node => "node",
            RouteOrigin::Gateway => "gateway",
            RouteOrigin::PodPrefix => "pod-prefix",
            RouteOrigin::Configured => "configured",
        })
    }
}

impl fmt::Display for NeighborState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            NeighborState::Given => "given",
            NeighborState::Learned => "learned",
            NeighborState::Resolved => "resolved",
            NeighborState::Unresolved => "unresolved",
        })
    }
}

impl fmt::Display for PathNeighbor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mac {
            Some(mac) => write!(f, "{} at {mac} ({})", self.address, self.state),
            None => write!(f, "{} ({})", self.address, self.state),
        }
    }
}
