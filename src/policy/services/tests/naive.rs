//! Naive evaluator: every Service from all objects, rule by rule, without state between questions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use crate::net::flow::Protocol;
use crate::policy::objects::{Endpoint, Object, Service, ServiceKind, TargetPort, TrafficPolicy};
use crate::policy::objects::{PortOfService, TrafficDistribution};
use crate::policy::services::ServicesOptions;
use crate::tables::{ServicePort, ServicePortName, ServiceTable};

type Found = BTreeMap<SocketAddr, Endpoint>;

/// Claim of a virtual address, or of a node port.
type Key = (Protocol, Option<IpAddr>, u16);

/// Table of these objects, each name once.
pub(super) fn table(objects: &[Object], options: &ServicesOptions) -> ServiceTable {
    let services = || {
        objects.iter().filter_map(|object| match object {
            Object::Service(service) if service.kind == ServiceKind::Virtual => Some(service),
            _ => None,
        })
    };
    let mut owners: BTreeMap<Key, (u8, ServicePortName)> = BTreeMap::new();
    for service in services() {
        for port in &service.ports {
            for (rank, key) in keys(service, port) {
                let claim = (rank, name(service, port));
                let owner = owners.entry(key).or_insert_with(|| claim.clone());
                *owner = owner.clone().min(claim);
            }
        }
    }
    let mut table = ServiceTable { node_addresses: own_node(objects, options).1, ports: BTreeMap::new() };
    for service in services() {
        for port in &service.ports {
            let name = name(service, port);
            let owns = |address: Option<IpAddr>, number| owners[&(port.protocol, address, number)].1 == name;
            let listed = |list: &[IpAddr]| -> Vec<SocketAddr> {
                let own = list.iter().filter(|address| owns(Some(**address), port.port));
                own.map(|address| SocketAddr::new(*address, port.port)).collect()
            };
            let outside: Vec<IpAddr> =
                service.external_ips.iter().chain(&service.load_balancer_ips).copied().collect();
            let mut external: Vec<SocketAddr> = Vec::new();
            for address in listed(&outside) {
                if !external.contains(&address) && !service.cluster_ips.contains(&address.ip()) {
                    external.push(address);
                }
            }
            let cluster = listed(&service.cluster_ips);
            let node_port = port.node_port.filter(|number| owns(None, *number));
            if cluster.is_empty() && external.is_empty() && node_port.is_none() {
                continue;
            }
            let found = endpoints(objects, service, port, options);
            let has_outside = !outside.iter().all(|address| service.cluster_ips.contains(address))
                || port.node_port.is_some();
            let used = |policy| chosen(objects, &found, policy, options);
            let guarded = external
                .iter()
                .filter(|at| !service.source_ranges.is_empty() && !service.external_ips.contains(&at.ip()));
            let resolved = ServicePort {
                guarded: guarded.copied().collect(),
                source_ranges: service.source_ranges.clone(),
                health_check: None,
                cluster,
                external,
                node_port,
                internal_backends: used(service.internal_traffic),
                external_backends: if has_outside { used(service.external_traffic) } else { Vec::new() },
                short_circuit_backends: (has_outside && service.external_traffic == TrafficPolicy::Local)
                    .then(|| used(TrafficPolicy::Cluster)),
                affinity_seconds: service.affinity_seconds,
                mapped: Vec::new(),
            };
            table.ports.insert(name, resolved);
        }
    }
    table
}

fn name(service: &Service, port: &PortOfService) -> ServicePortName {
    ServicePortName {
        namespace: service.namespace.clone(),
        name: service.name.clone(),
        port: port.name.clone(),
        protocol: port.protocol,
    }
}

fn keys(service: &Service, port: &PortOfService) -> Vec<(u8, Key)> {
    let mut keys = Vec::new();
    for address in &service.cluster_ips {
        keys.push((0, (port.protocol, Some(*address), port.port)));
    }
    for address in service.external_ips.iter().chain(&service.load_balancer_ips) {
        keys.push((1, (port.protocol, Some(*address), port.port)));
    }
    keys.extend(port.node_port.map(|number| (0, (port.protocol, None, number))));
    keys
}

/// Zone and addresses of the node.
fn own_node(objects: &[Object], options: &ServicesOptions) -> (Option<String>, Vec<IpAddr>) {
    let nodes: Vec<_> = objects
        .iter()
        .filter_map(|object| match object {
            Object::Node(node) => Some(node),
            _ => None,
        })
        .collect();
    let own = match &options.node {
        Some(name) => nodes.iter().find(|node| node.name == *name),
        None if nodes.len() == 1 => nodes.first(),
        None => None,
    };
    let Some(own) = own else { return (None, Vec::new()) };
    (own.labels.get("topology.kubernetes.io/zone").cloned(), own.addresses.clone())
}

fn zone_of(objects: &[Object], name: &str) -> Option<String> {
    objects.iter().find_map(|object| match object {
        Object::Node(node) if node.name == name => node.labels.get("topology.kubernetes.io/zone").cloned(),
        _ => None,
    })
}

fn endpoints(
    objects: &[Object],
    service: &Service,
    port: &PortOfService,
    options: &ServicesOptions,
) -> Found {
    let mut found = Found::new();
    let mut has_slice = false;
    let mut slices = objects.to_vec();
    slices.sort_by_key(|object| match object {
        Object::EndpointSlice(slice) => slice.name.clone(),
        _ => String::new(),
    });
    for object in slices {
        let Object::EndpointSlice(slice) = object else { continue };
        if slice.namespace != service.namespace || slice.service.as_ref() != Some(&service.name) {
            continue;
        }
        has_slice = true;
        for target in slice.ports {
            if target.name != port.name.clone().unwrap_or_default() || target.protocol != port.protocol {
                continue;
            }
            for endpoint in &slice.endpoints {
                let address = SocketAddr::new(endpoint.address, target.port);
                keep_best(&mut found, address, endpoint.clone(), options);
            }
        }
    }
    if !has_slice && options.derive_endpoints {
        for object in objects {
            let Object::Pod(pod) = object else { continue };
            let Some(selector) = &service.selector else { continue };
            if pod.finished || pod.name.namespace != service.namespace || !selector.matches(&pod.labels) {
                continue;
            }
            let target = match &port.target {
                TargetPort::Number(number) => Some(*number),
                TargetPort::Named(name) => pod
                    .ports
                    .iter()
                    .find(|own| own.name.as_ref() == Some(name) && own.protocol == port.protocol)
                    .map(|own| own.port),
            };
            let Some(target) = target else { continue };
            for is_v4 in [true, false] {
                let is_of_service = match service.cluster_ips.as_slice() {
                    [] => true,
                    addresses => addresses.iter().any(|address| address.is_ipv4() == is_v4),
                };
                let Some(address) =
                    pod.addresses.iter().find(|address| address.is_ipv4() == is_v4).filter(|_| is_of_service)
                else {
                    continue;
                };
                let zone = pod.node.as_ref().and_then(|node| zone_of(objects, node));
                let ready = !pod.readiness.unready;
                let endpoint = Endpoint {
                    address: *address,
                    ready: service.publish_not_ready || (ready && !pod.readiness.terminating),
                    serving: ready,
                    terminating: pod.readiness.terminating,
                    node: pod.node.clone(),
                    zone_hints: if service.distribution.is_some() {
                        zone.into_iter().collect()
                    } else {
                        Vec::new()
                    },
                    node_hints: if service.distribution == Some(TrafficDistribution::SameNode) {
                        pod.node.clone().into_iter().collect()
                    } else {
                        Vec::new()
                    },
                };
                keep_best(&mut found, SocketAddr::new(*address, target), endpoint, options);
            }
        }
    }
    found
}

/// Of two endpoints at one address keeps the ready one; of two alike the one that serves; of two alike that of the node.
fn keep_best(found: &mut Found, address: SocketAddr, endpoint: Endpoint, options: &ServicesOptions) {
    let is_local = |endpoint: &Endpoint| options.node.is_none() || endpoint.node == options.node;
    let Some(other) = found.get(&address) else {
        found.insert(address, endpoint);
        return;
    };
    let is_better = match (endpoint.ready == other.ready, endpoint.serving == other.serving) {
        (false, _) => endpoint.ready,
        (true, false) => endpoint.serving,
        (true, true) => is_local(&endpoint) && !is_local(other),
    };
    if is_better {
        found.insert(address, endpoint);
    }
}

/// Endpoints that the node uses.
fn chosen(
    objects: &[Object],
    found: &Found,
    policy: TrafficPolicy,
    options: &ServicesOptions,
) -> Vec<SocketAddr> {
    let zone = own_node(objects, options).0;
    let is_local = |endpoint: &Endpoint| options.node.is_none() || endpoint.node == options.node;
    let mut used = BTreeSet::new();
    for is_v4 in [true, false] {
        let all: Vec<(&SocketAddr, &Endpoint)> =
            found.iter().filter(|(address, _)| address.is_ipv4() == is_v4).collect();
        let in_reach: Vec<_> = all
            .iter()
            .filter(|(_, endpoint)| policy == TrafficPolicy::Cluster || is_local(endpoint))
            .collect();
        let ready: Vec<_> = in_reach.iter().filter(|(_, endpoint)| endpoint.ready).collect();
        if ready.is_empty() {
            let dying = in_reach.iter().filter(|(_, endpoint)| endpoint.serving && endpoint.terminating);
            used.extend(dying.map(|(address, _)| **address));
            continue;
        }
        let mut picked: Vec<SocketAddr> = ready.iter().map(|(address, _)| **address).collect();
        if policy == TrafficPolicy::Cluster {
            let by_zone = ready
                .iter()
                .filter(|(_, endpoint)| zone.as_ref().is_some_and(|zone| endpoint.zone_hints.contains(zone)));
            let by_zone: Vec<SocketAddr> = by_zone.map(|(address, _)| **address).collect();
            let by_node = ready.iter().filter(|(_, endpoint)| {
                options.node.as_ref().is_some_and(|node| endpoint.node_hints.contains(node))
            });
            let by_node: Vec<SocketAddr> = by_node.map(|(address, _)| **address).collect();
            if ready.iter().all(|(_, endpoint)| !endpoint.zone_hints.is_empty()) && !by_zone.is_empty() {
                picked = by_zone;
            }
            if ready.iter().all(|(_, endpoint)| !endpoint.node_hints.is_empty()) && !by_node.is_empty() {
                picked = by_node;
            }
        }
        used.extend(picked);
    }
    used.into_iter().collect()
}
