//! Services as a document: virtual addresses of a node, and the backends that they stand for.
//!
//! The source of objects resolves Services and `EndpointSlices` to this form for one node: targets, traffic
//! policies, conditions and topology hints are applied. The packet path knows addresses and ports alone.

mod endpoint;
mod error;
mod port_mapping;
mod set;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::net::flow::Protocol;

pub use endpoint::VirtualEndpoint;
pub use error::ServicesError;
pub use port_mapping::PortMapping;
pub use set::ServiceSet;

/// Name of one port of a Service: `namespace/name:port`, without `:port` if the port has no name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServicePortName {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// Name of the port (`spec.ports[].name`), absent if the only port has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// `spec.ports[].protocol`: TCP, UDP or SCTP.
    pub protocol: Protocol,
}

impl fmt::Display for ServicePortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)?;
        self.port.as_ref().map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// Virtual addresses and backends of one port of a Service, for the packets that this node sees.
///
/// A backend serves the virtual addresses of its own address family.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServicePort {
    /// Addresses inside the cluster (`clusterIPs`), with the Service's port.
    pub cluster: Vec<SocketAddr>,
    /// Addresses for the outside (`externalIPs`, `status.loadBalancer.ingress`), with the Service's port.
    pub external: Vec<SocketAddr>,
    /// Those of `external` that only `source_ranges` reach: a load balancer's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub guarded: Vec<SocketAddr>,
    /// Sources that reach these (`loadBalancerSourceRanges`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub source_ranges: Vec<IpNet>,
    /// Port on each of the node's addresses (`nodePort`).
    pub node_port: Option<u16>,
    /// Addresses of the node itself with a port that leads here: those of a [`PortMapping`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mapped: Vec<SocketAddr>,
    /// Backends of `cluster` (`internalTrafficPolicy` and hints applied), with the target port. A backend that
    /// is in neither list takes no new flow.
    pub internal_backends: Vec<SocketAddr>,
    /// Backends of `external`, `node_port` and `mapped` (`externalTrafficPolicy` and hints applied).
    pub external_backends: Vec<SocketAddr>,
    /// The same for packets of this node's pods and of the node itself: "Even if the external traffic policy is
    /// 'Local', we need Cluster endpoints to implement short circuiting" (`UsesClusterEndpoints` of kube-proxy).
    /// Absent: `external_backends`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub short_circuit_backends: Option<Vec<SocketAddr>>,
    /// Answer to health checks of the load balancer, if it asks (`healthCheckNodePort`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheck>,
    /// Seconds for which a client keeps its backend after its last new flow (`sessionAffinity: ClientIP`,
    /// `sessionAffinityConfig.clientIP.timeoutSeconds`).
    pub affinity_seconds: Option<u32>,
}

impl ServicePort {
    /// Whether packets from an address reach an address of the port.
    pub fn admits(&self, at: &SocketAddr, source: IpAddr) -> bool {
        !self.guarded.contains(at) || self.source_ranges.iter().any(|range| range.contains(&source))
    }
}

/// Answer to the health checks of a load balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HealthCheck {
    /// Port of the node at which the load balancer asks.
    pub port: u16,
    /// Ready backends of this node.
    pub endpoints: usize,
}

/// All Services of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServiceTable {
    /// Addresses at which `node_port` is served: those of the node.
    pub node_addresses: Vec<IpAddr>,
    /// Ports of Services by name.
    #[serde(with = "entries")]
    pub ports: BTreeMap<ServicePortName, ServicePort>,
}

/// Difference between two tables of Services.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServicesDiff {
    /// The node's addresses, if they change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_addresses: Option<Vec<IpAddr>>,
    /// Ports that are new or changed.
    #[serde(with = "entries")]
    pub set: BTreeMap<ServicePortName, ServicePort>,
    /// Ports that end.
    pub removed: Vec<ServicePortName>,
}

impl ServicesDiff {
    /// Whether the difference changes nothing.
    pub fn is_empty(&self) -> bool {
        self.node_addresses.is_none() && self.set.is_empty() && self.removed.is_empty()
    }
}

/// A map as a JSON array of objects with the fields `service` and `port`, because its keys are not text.
mod entries {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{ServicePort, ServicePortName};

    #[derive(Serialize)]
    struct EntryRef<'a> {
        service: &'a ServicePortName,
        port: &'a ServicePort,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Entry {
        service: ServicePortName,
        port: ServicePort,
    }

    pub(super) fn serialize<S: Serializer>(
        ports: &BTreeMap<ServicePortName, ServicePort>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(ports.iter().map(|(service, port)| EntryRef { service, port }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<ServicePortName, ServicePort>, D::Error> {
        let entries = Vec::<Entry>::deserialize(deserializer)?;
        Ok(entries.into_iter().map(|entry| (entry.service, entry.port)).collect::<BTreeMap<_, _>>())
    }
}
