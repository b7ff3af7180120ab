//! Flows that ports of Services have opened.

use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Flows that a port of a Service has opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceFlows {
    /// Flows since the port is loaded, those to backends that have left too.
    pub total: u64,
    /// Flows to each backend since it is one of this port.
    pub backends: BTreeMap<SocketAddr, u64>,
}
