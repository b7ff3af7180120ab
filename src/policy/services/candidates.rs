//! Endpoints of a Service: those of its `EndpointSlices`, or derived from the pods that it selects.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::proxy_rules::{Candidates, NodeView, backends};
use crate::policy::objects::{
    AddressFamily, Endpoint, EndpointSlice, Pod, PortOfService, Service, TargetPort, TrafficDistribution,
    TrafficPolicy,
};
use crate::tables::{HealthCheck, ServicePort};

/// Label of a node with its zone (`corev1.LabelTopologyZone`).
pub(super) const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// Endpoints of one port in slices.
pub(super) fn of_slices<'a>(
    slices: impl IntoIterator<Item = &'a EndpointSlice>,
    port: &PortOfService,
    view: NodeView<'_>,
) -> Candidates<'a> {
    let mut found = Candidates::new();
    let name = port.name.as_deref().unwrap_or_default();
    for slice in slices {
        let target =
            slice.ports.iter().find(|target| target.name == name && target.protocol == port.protocol);
        let Some(target) = target else { continue };
        for endpoint in &slice.endpoints {
            add(&mut found, SocketAddr::new(endpoint.address, target.port), endpoint, view);
        }
    }
    found
}

/// Adds an endpoint. Of several with one address and port the ready one counts, then one that serves, then one of the
/// node's own, then the first: a pod that goes has the address of the one that comes after it for a while.
fn add<'a>(found: &mut Candidates<'a>, address: SocketAddr, endpoint: &'a Endpoint, view: NodeView<'_>) {
    let rank = |endpoint: &Endpoint| (endpoint.ready, endpoint.serving, view.is_local(endpoint));
    if found.get(&address).is_none_or(|other| rank(endpoint) > rank(other)) {
        found.insert(address, endpoint);
    }
}

/// Endpoint made from a pod.
#[derive(Debug)]
pub(super) struct Derived<'a> {
    endpoint: Endpoint,
    pod: &'a Pod,
}

/// Derives the endpoints of a Service from the pods that it selects, as the endpoint slice controller does
/// (`podToEndpoint`).
pub(super) fn derive<'a>(
    service: &Service,
    pods: impl IntoIterator<Item = &'a Pod>,
    zones: &dyn Fn(&str) -> Option<String>,
) -> Vec<Derived<'a>> {
    let families = families(service);
    let mut derived = Vec::new();
    // "Pods in a terminal phase have no endpoint" (`ShouldPodBeInEndpoints`).
    for pod in pods.into_iter().filter(|pod| !pod.finished) {
        let zone = pod.node.as_deref().and_then(zones);
        for family in &families {
            let of_family = |address: &&IpAddr| AddressFamily::of(**address) == *family;
            if let Some(address) = pod.addresses.iter().find(of_family) {
                derived.push(Derived { endpoint: endpoint(service, pod, *address, zone.as_deref()), pod });
            }
        }
    }
    derived
}

/// Families of a Service: the given ones, else those of its addresses, else both.
fn families(service: &Service) -> Vec<AddressFamily> {
    if !service.families.is_empty() {
        return service.families.clone();
    }
    let mut found: Vec<_> = service.cluster_ips.iter().map(|address| AddressFamily::of(*address)).collect();
    if found.is_empty() {
        found = vec![AddressFamily::V4, AddressFamily::V6];
    }
    found
}

fn endpoint(service: &Service, pod: &Pod, address: IpAddr, zone: Option<&str>) -> Endpoint {
    let serving = !pod.readiness.unready;
    let terminating = pod.readiness.terminating;
    let list = |name: Option<&str>| name.map(str::to_owned).into_iter().collect();
    Endpoint {
        address,
        // "ready" should never be "true" if a pod is terminating, unless publishNotReadyAddresses was set
        // (`podToEndpoint`).
        ready: service.publish_not_ready || serving && !terminating,
        serving,
        terminating,
        node: pod.node.clone(),
        zone_hints: list(zone.filter(|_| service.distribution.is_some())),
        node_hints: list(
            pod.node.as_deref().filter(|_| service.distribution == Some(TrafficDistribution::SameNode)),
        ),
    }
}

/// Endpoints of one port among derived ones. A pod without the named port has none.
pub(super) fn of_derived<'a>(
    derived: &'a [Derived<'_>],
    port: &PortOfService,
    view: NodeView<'_>,
) -> Candidates<'a> {
    let mut found = Candidates::new();
    for Derived { endpoint, pod } in derived {
        if let Some(target) = target_port(pod, port) {
            add(&mut found, SocketAddr::new(endpoint.address, target), endpoint, view);
        }
    }
    found
}

/// Target port on a pod (`FindPort`).
pub fn target_port(pod: &Pod, port: &PortOfService) -> Option<u16> {
    match &port.target {
        TargetPort::Number(number) => Some(*number),
        TargetPort::Named(name) => {
            let is_named = |own: &&crate::policy::objects::ContainerPort| {
                own.name.as_ref() == Some(name) && own.protocol == port.protocol
            };
            pod.ports.iter().find(is_named).map(|own| own.port)
        }
    }
}

/// Number of ready endpoints of this node. Those that terminate do not count: "the health check node port fails".
fn ready_here(candidates: &Candidates<'_>, view: NodeView<'_>) -> usize {
    let ready = candidates.iter().filter(|(_, endpoint)| endpoint.ready && view.is_local(endpoint));
    ready.map(|(at, _)| at.ip()).collect::<BTreeSet<_>>().len()
}

/// Virtual addresses and backends of one port, before claims of other Services.
pub(super) fn resolve_port(
    service: &Service,
    port: &PortOfService,
    candidates: &Candidates<'_>,
    view: NodeView<'_>,
) -> ServicePort {
    let at = |address: &IpAddr| SocketAddr::new(*address, port.port);
    let cluster: Vec<SocketAddr> = service.cluster_ips.iter().map(at).collect();
    let mut external = Vec::new();
    for address in service.external_ips.iter().chain(&service.load_balancer_ips).map(at) {
        if !cluster.contains(&address) && !external.contains(&address) {
            external.push(address);
        }
    }
    let is_balancers = |at: &&SocketAddr| !service.external_ips.contains(&at.ip());
    let guarded = external.iter().filter(|_| !service.source_ranges.is_empty()).filter(is_balancers);
    let is_outside = !external.is_empty() || port.node_port.is_some();
    ServicePort {
        internal_backends: backends(candidates, service.internal_traffic, view),
        external_backends: if is_outside {
            backends(candidates, service.external_traffic, view)
        } else {
            Vec::new()
        },
        short_circuit_backends: (is_outside && service.external_traffic == TrafficPolicy::Local)
            .then(|| backends(candidates, TrafficPolicy::Cluster, view)),
        guarded: guarded.copied().collect(),
        health_check: service
            .health_check_port
            .map(|port| HealthCheck { port, endpoints: ready_here(candidates, view) }),
        source_ranges: service.source_ranges.clone(),
        cluster,
        external,
        node_port: port.node_port,
        affinity_seconds: service.affinity_seconds,
        mapped: Vec::new(),
    }
}
