//! The world: who is behind which port, where addresses lead, and what may pass. Published whole.

use std::net::IpAddr;
use std::sync::Arc;

use crate::ids::{AttachmentId, PortId};
pub use crate::net::mac::Mac;
use crate::tables::{PodName, RuleTables};
use ipnet::IpNet;

/// Everything that a verdict depends on, but for the flows themselves.
#[derive(Debug, Clone, Default)]
pub struct World {
    /// Rule tables, checked; `None` while none are loaded: then no pod may talk unless `fail_open`.
    pub tables: Option<Arc<RuleTables>>,
    /// Let traffic of pods pass that the tables do not know. Off: it is dropped.
    pub fail_open: bool,
    /// The switch itself, as pods see it.
    pub gateway: Gateway,
    /// Pods of this node.
    pub pods: Vec<PodAttachment>,
    /// The node's own stack, behind a host port.
    pub node: Option<NodeAttachment>,
    /// Routes to everything else.
    pub routes: Vec<Route>,
}

impl World {
    /// Whether the two differ in nothing but rule tables.
    pub(crate) fn is_laid_out_as(&self, other: &World) -> bool {
        let World { tables: _, fail_open, gateway, pods, node, routes } = self;
        *fail_open == other.fail_open
            && *gateway == other.gateway
            && *pods == other.pods
            && *node == other.node
            && *routes == other.routes
    }
}

/// The switch as its pods' gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gateway {
    /// Its Ethernet address on every port.
    pub mac: Mac,
    /// Addresses on which it answers an ICMP echo.
    pub addresses: Vec<IpAddr>,
}

impl Default for Gateway {
    fn default() -> Gateway {
        // Locally administered, unicast (IEEE 802c); the rest spells nothing.
        Gateway { mac: Mac([0x02, 0x50, 0x41, 0x4c, 0x00, 0x01]), addresses: Vec::new() }
    }
}

/// A pod behind a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodAttachment {
    /// This attachment; a new one each time a pod is attached.
    pub id: AttachmentId,
    /// The pod: the tables know it by this name.
    pub pod: PodName,
    /// Its port, of kind pod or memory. A port has one pod.
    pub port: PortId,
    /// Its addresses: what it may send from, and what is routed to its port.
    pub addresses: Vec<IpAddr>,
    /// Its Ethernet address; learned from its frames where absent.
    pub mac: Option<Mac>,
}

/// The node's own stack behind a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAttachment {
    /// Its port, of kind host or memory.
    pub port: PortId,
    /// The node's addresses: always let into pods, and routed to this port.
    pub addresses: Vec<IpAddr>,
    /// Its Ethernet address; learned where absent.
    pub mac: Option<Mac>,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Destination prefix.
    pub prefix: IpNet,
    /// Port it leads to.
    pub port: PortId,
    /// Router to send to; the destination itself where absent.
    pub next_hop: Option<IpAddr>,
}
