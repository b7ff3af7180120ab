//! Errors of a document of Services, or of a difference to one.

use std::net::{IpAddr, SocketAddr};

use super::ServicePortName;
use super::endpoint::VirtualEndpoint;

/// Reason for which the switch rejects Services.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServicesError {
    /// A protocol without ports.
    #[error("service {service}: protocol {protocol} is not served: use TCP, UDP or SCTP", protocol = service.protocol)]
    Protocol {
        /// Port of the Service.
        service: Box<ServicePortName>,
    },
    /// An address that no packet of a Service can have.
    #[error(
        "service {service}: {field} has {address}: give a unicast address of a host, and a port from 1 to 65535"
    )]
    Address {
        /// Port of the Service.
        service: Box<ServicePortName>,
        /// Field of the document.
        field: &'static str,
        /// Invalid address.
        address: SocketAddr,
    },
    /// Node port 0.
    #[error("service {service}: node_port is 0: give a port from 1 to 65535, or leave it out")]
    NodePort {
        /// Port of the Service.
        service: Box<ServicePortName>,
    },
    /// A node address that no packet can have.
    #[error("node_addresses has {address}: give unicast addresses of the node")]
    NodeAddress {
        /// Invalid address.
        address: IpAddr,
    },
    /// Two ports of Services with one virtual address.
    #[error("services {one} and {other} both claim {endpoint}: one of them must give it up", one = services[0], other = services[1])]
    Taken {
        /// Virtual address, or node port.
        endpoint: VirtualEndpoint,
        /// Ports of Services that claim it.
        services: Box<[ServicePortName; 2]>,
    },
    /// Too many entries.
    #[error("{field} has {found} entries, above the limit of {max}")]
    TooMany {
        /// Field of the document, with the port of the Service if it is one's.
        field: String,
        /// Number of entries.
        found: usize,
        /// Limit.
        max: usize,
    },
    /// A removed port of a Service is not loaded, or is set by the same difference.
    #[error("the difference removes service {service}, which {fault}", fault = if *is_set { "it also sets" } else { "is not loaded" })]
    Removed {
        /// Port of the Service.
        service: Box<ServicePortName>,
        /// Whether the difference also sets it.
        is_set: bool,
    },
}
