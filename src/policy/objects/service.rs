//! Services and `EndpointSlices`: the fields that virtual addresses and their backends depend on.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

use super::selector::LabelSelector;
use crate::net::flow::Protocol;

/// Name of a Service. Displays as `namespace/name`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceName {
    /// Namespace.
    pub namespace: String,
    /// Name within the namespace.
    pub name: String,
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for ServiceName {
    type Err = String;

    fn from_str(text: &str) -> Result<ServiceName, String> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(ServiceName { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err(format!("{text:?} is no name of a Service: write namespace/name")),
        }
    }
}

/// Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// `spec.type`.
    pub kind: ServiceKind,
    /// `spec.selector`; `None` if absent or empty: something else than the selection of pods makes the
    /// endpoints.
    pub selector: Option<LabelSelector>,
    /// `spec.clusterIPs`, or `spec.clusterIP`; empty for a Service that is headless, or has no address yet.
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip`, without those of `ipMode: Proxy`.
    pub load_balancer_ips: Vec<IpAddr>,
    /// `spec.loadBalancerSourceRanges`: sources that reach the load balancer's addresses; empty for all.
    pub source_ranges: Vec<IpNet>,
    /// `spec.healthCheckNodePort`: port at which a load balancer asks whether the node has a backend.
    pub health_check_port: Option<u16>,
    /// `spec.ipFamilies`; empty if absent.
    pub families: Vec<AddressFamily>,
    /// `spec.ports`.
    pub ports: Vec<PortOfService>,
    /// `spec.sessionAffinityConfig.clientIP.timeoutSeconds`, if `spec.sessionAffinity` is `ClientIP`.
    pub affinity_seconds: Option<u32>,
    /// `spec.internalTrafficPolicy`.
    pub internal_traffic: TrafficPolicy,
    /// `spec.externalTrafficPolicy`.
    pub external_traffic: TrafficPolicy,
    /// `spec.publishNotReadyAddresses`.
    pub publish_not_ready: bool,
    /// `spec.trafficDistribution`.
    pub distribution: Option<TrafficDistribution>,
}

/// `spec.type` of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceKind {
    /// `ClusterIP` with a virtual address, `NodePort` or `LoadBalancer`.
    Virtual,
    /// `clusterIP: None`: names resolve to the addresses of the endpoints.
    Headless,
    /// `ExternalName`: the name is an alias.
    ExternalName,
}

/// Address family of a Service or an `EndpointSlice`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressFamily {
    /// `IPv4`.
    V4,
    /// `IPv6`.
    V6,
}

impl AddressFamily {
    /// Family of an address.
    pub fn of(address: IpAddr) -> AddressFamily {
        if address.is_ipv4() { AddressFamily::V4 } else { AddressFamily::V6 }
    }
}

/// `internalTrafficPolicy` or `externalTrafficPolicy`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// Endpoints of all nodes.
    #[default]
    Cluster,
    /// Endpoints of the node itself.
    Local,
}

/// `trafficDistribution`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrafficDistribution {
    /// `PreferSameZone`, or its older name `PreferClose`.
    SameZone,
    /// `PreferSameNode`.
    SameNode,
}

/// Entry of `spec.ports`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortOfService {
    /// `name`.
    pub name: Option<String>,
    /// `protocol`, TCP if absent.
    pub protocol: Protocol,
    /// `port`.
    pub port: u16,
    /// `targetPort`, the same as `port` if absent.
    pub target: TargetPort,
    /// `nodePort`.
    pub node_port: Option<u16>,
}

/// `targetPort`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetPort {
    /// Number.
    Number(u16),
    /// Name of a container port with the same protocol.
    Named(String),
}

/// `EndpointSlice`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Label `kubernetes.io/service-name`: the Service, of the same namespace.
    pub service: Option<String>,
    /// `endpoints`; empty for `addressType: FQDN`.
    pub endpoints: Vec<Endpoint>,
    /// `ports`, without those that have no number.
    pub ports: Vec<EndpointPort>,
}

/// Entry of `endpoints`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// First entry of `addresses`. "No semantics are defined for additional addresses beyond the first, and
    /// kube-proxy does not look at them" (`discovery/v1/types.go`).
    pub address: IpAddr,
    /// `conditions.ready`, true if absent.
    pub ready: bool,
    /// `conditions.serving`, true if absent.
    pub serving: bool,
    /// `conditions.terminating`, false if absent.
    pub terminating: bool,
    /// `nodeName`.
    pub node: Option<String>,
    /// `hints.forZones[].name`.
    pub zone_hints: Vec<String>,
    /// `hints.forNodes[].name`.
    pub node_hints: Vec<String>,
}

/// Entry of `ports` of an `EndpointSlice`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointPort {
    /// `name`: that of the Service's port; empty if it has none.
    pub name: String,
    /// `protocol`, TCP if absent.
    pub protocol: Protocol,
    /// `port`: the target port.
    pub port: u16,
}
