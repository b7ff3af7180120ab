//! Backends of a Service for one client, for commands that read manifests.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::candidates::{self, ZONE_LABEL};
use super::proxy_rules::{NodeView, reason};
use crate::net::flow::Protocol;
use crate::policy::objects::{
    EndpointSlice, Object, Pod, PortOfService, Service, ServiceKind, ServiceName, TrafficPolicy,
};

/// Most endpoints of a Service that take no flows to list.
const UNUSED_MAX: usize = 100;

/// Client of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceClient<'a> {
    /// Pod on this node, if it is known.
    Pod {
        /// `spec.nodeName`.
        node: Option<&'a str>,
    },
    /// Host outside of the cluster.
    Outside {
        /// Its address, if it is known.
        address: Option<IpAddr>,
    },
}

/// Backends of one port of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceBackends {
    /// Virtual addresses with the port.
    pub addresses: Vec<SocketAddr>,
    /// Endpoints that take new flows, with the target port.
    pub backends: Vec<SocketAddr>,
    /// Endpoints that take none, up to a limit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unused: Vec<UnusedEndpoint>,
}

impl ServiceBackends {
    /// Moves backends to the endpoints that take no flows, for this reason.
    pub fn leave_unused(&mut self, is_unused: impl Fn(&SocketAddr) -> bool, why: &'static str) {
        let (unused, backends): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.backends).into_iter().partition(is_unused);
        self.backends = backends;
        let room = UNUSED_MAX.saturating_sub(self.unused.len());
        self.unused.extend(unused.into_iter().take(room).map(|address| UnusedEndpoint { address, why }));
    }
}

/// Endpoint that takes no new flows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnusedEndpoint {
    /// Address with the target port.
    pub address: SocketAddr,
    /// Reason.
    pub why: &'static str,
}

/// Reason for which a Service cannot be asked about.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// Unknown Service.
    #[error("there is no Service {0} in the manifests")]
    Unknown(ServiceName),
    /// Service has no such port.
    #[error("service {service} has no {protocol} port {port}: it has {}", listed(.ports))]
    NoPort {
        /// Service.
        service: ServiceName,
        /// Protocol.
        protocol: Protocol,
        /// Port.
        port: u16,
        /// Its ports.
        ports: Vec<String>,
    },
    /// Headless Service.
    #[error(
        "service {0} is headless: its name resolves to the addresses of its pods, so ask about them and their ports"
    )]
    Headless(ServiceName),
    /// Alias of another host.
    #[error(
        "service {0} is of type ExternalName: its name is an alias of another host, so ask about that host"
    )]
    ExternalName(ServiceName),
}

fn listed(ports: &[String]) -> String {
    if ports.is_empty() { "none".to_owned() } else { ports.join(", ") }
}

/// Backends that a client may get. A host outside gets those of `externalTrafficPolicy`, of any node.
pub fn backends_for(
    objects: &[Object],
    name: &ServiceName,
    protocol: Protocol,
    port: u16,
    client: ServiceClient<'_>,
) -> Result<ServiceBackends, ServiceError> {
    let service = find(objects, name).ok_or_else(|| ServiceError::Unknown(name.clone()))?;
    match service.kind {
        ServiceKind::Virtual => {}
        ServiceKind::Headless => return Err(ServiceError::Headless(name.clone())),
        ServiceKind::ExternalName => return Err(ServiceError::ExternalName(name.clone())),
    }
    let wanted = |own: &&PortOfService| (own.protocol, own.port) == (protocol, port);
    let Some(own) = service.ports.iter().find(wanted) else {
        let ports = service.ports.iter().map(|own| format!("{} {}", own.protocol, own.port)).collect();
        return Err(ServiceError::NoPort { service: name.clone(), protocol, port, ports });
    };
    let node = match client {
        ServiceClient::Pod { node } => node,
        ServiceClient::Outside { .. } => None,
    };
    let zone = node.and_then(|node| zone(objects, node));
    Ok(answer(objects, service, own, NodeView { name: node, zone: zone.as_deref() }, client))
}

fn answer(
    objects: &[Object],
    service: &Service,
    port: &PortOfService,
    view: NodeView<'_>,
    client: ServiceClient<'_>,
) -> ServiceBackends {
    let slices: Vec<&EndpointSlice> = objects.iter().filter_map(|object| slice_of(object, service)).collect();
    let derived = if slices.is_empty() {
        candidates::derive(service, selected(objects, service), &|node| zone(objects, node))
    } else {
        Vec::new()
    };
    let found = if slices.is_empty() {
        candidates::of_derived(&derived, port, view)
    } else {
        candidates::of_slices(slices, port, view)
    };
    let resolved = candidates::resolve_port(service, port, &found, view);
    let is_outside = matches!(client, ServiceClient::Outside { .. })
        && !(resolved.external.is_empty() && resolved.node_port.is_none());
    let admits = |at: &SocketAddr| match client {
        ServiceClient::Outside { address: Some(source) } => resolved.admits(at, source),
        _ => true,
    };
    let is_refused = is_outside && !resolved.external.is_empty() && !resolved.external.iter().any(admits);
    let (backends, policy, addresses): (_, TrafficPolicy, _) = if is_outside {
        let addresses = resolved.external.iter().copied().filter(admits).collect();
        (resolved.external_backends, service.external_traffic, addresses)
    } else {
        (resolved.internal_backends, service.internal_traffic, resolved.cluster)
    };
    let unused = found.iter().filter(|(address, _)| backends.binary_search(address).is_err());
    let unused = unused
        .map(|(address, endpoint)| UnusedEndpoint { address: *address, why: reason(endpoint, policy, view) });
    let mut found = ServiceBackends { unused: unused.take(UNUSED_MAX).collect(), addresses, backends };
    if is_refused {
        found.leave_unused(|_| true, "loadBalancerSourceRanges do not have the client");
    }
    let virtual_addresses: HashSet<IpAddr> = objects.iter().flat_map(cluster_ips_of).copied().collect();
    // The switch translates a packet once (`usable` of the stage `translate`).
    found.leave_unused(
        |backend| virtual_addresses.contains(&backend.ip()),
        "its address is that of a Service",
    );
    found
}

fn cluster_ips_of(object: &Object) -> &[IpAddr] {
    match object {
        Object::Service(service) => &service.cluster_ips,
        _ => &[],
    }
}

fn find<'a>(objects: &'a [Object], name: &ServiceName) -> Option<&'a Service> {
    objects.iter().rev().find_map(|object| match object {
        Object::Service(service) if service.namespace == name.namespace && service.name == name.name => {
            Some(service)
        }
        _ => None,
    })
}

fn slice_of<'a>(object: &'a Object, service: &Service) -> Option<&'a EndpointSlice> {
    match object {
        Object::EndpointSlice(slice)
            if slice.namespace == service.namespace && slice.service.as_ref() == Some(&service.name) =>
        {
            Some(slice)
        }
        _ => None,
    }
}

fn selected<'a>(objects: &'a [Object], service: &Service) -> Vec<&'a Pod> {
    let Some(selector) = &service.selector else { return Vec::new() };
    let pods = objects.iter().filter_map(|object| match object {
        Object::Pod(pod) if pod.name.namespace == service.namespace && selector.matches(&pod.labels) => {
            Some(pod)
        }
        _ => None,
    });
    pods.collect()
}

fn zone(objects: &[Object], name: &str) -> Option<String> {
    objects.iter().find_map(|object| match object {
        Object::Node(node) if node.name == name => node.labels.get(ZONE_LABEL).cloned(),
        _ => None,
    })
}
