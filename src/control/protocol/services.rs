//! Messages about Services.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::ids::Generation;
use crate::tables::{ServicePort, ServicePortName, ServicesDiff};

/// Difference to loaded Services.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServicesPatch {
    /// Any generation since the Services were loaded or changed last.
    pub base: Generation,
    /// Difference.
    pub diff: ServicesDiff,
}

/// Loaded Services, with the flows that they have opened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicesReport {
    /// Generation that the workers use.
    pub generation: Generation,
    /// Generation that loaded or changed the Services. `None` while none are loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Generation>,
    /// Addresses at which node ports are served.
    pub node_addresses: Vec<IpAddr>,
    /// Ports of Services by name.
    pub ports: Vec<ServiceReport>,
    /// Ports of the node that lead to pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub port_mappings: Vec<ServiceReport>,
}

/// One port of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceReport {
    /// Its name.
    pub service: ServicePortName,
    /// Its virtual addresses and backends.
    pub port: ServicePort,
    /// Flows that it has opened since the switch started.
    pub flows_opened: u64,
    /// Each backend of either list once, by address.
    pub backends: Vec<BackendReport>,
}

/// One backend of a port of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendReport {
    /// Its address and target port.
    pub address: SocketAddr,
    /// Flows that have been opened to it since it is a backend of this port.
    pub flows_opened: u64,
}
