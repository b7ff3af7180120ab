//! Destinations that ports of Services claim.

use std::fmt;
use std::net::SocketAddr;

use crate::net::flow::Protocol;

/// Destination that one port of a Service claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VirtualEndpoint {
    /// Virtual address with the Service's port.
    Address(Protocol, SocketAddr),
    /// Port on each of the node's addresses.
    NodePort(Protocol, u16),
}

impl fmt::Display for VirtualEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VirtualEndpoint::Address(protocol, address) => write!(f, "{protocol} {address}"),
            VirtualEndpoint::NodePort(protocol, port) => write!(f, "{protocol} node port {port}"),
        }
    }
}
