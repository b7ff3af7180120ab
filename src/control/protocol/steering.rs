//! Messages about drains of ports, and single routes.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::tables::PodName;

/// Flows of a port with a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortFlows {
    /// Name of the port.
    pub port: String,
    /// Pod behind the port.
    pub pod: PodName,
    /// Whether the port is drained: no flow from or to the pod begins.
    pub draining: bool,
    /// Number of flows from or to the pod. Connections that have ended do not count.
    pub flows: u64,
}

/// Route to add. The path of the request has its prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteRequest {
    /// Name of the port that the route leads to.
    pub port: String,
    /// Address of the next router; the destination itself where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_hop: Option<IpAddr>,
    /// Whether the node's own kernel gets the route, too.
    #[serde(default)]
    pub node: bool,
}
