//! Resolver: the Services of a node, kept up to date change by change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::candidates::{self, ZONE_LABEL};
use super::claims::{Claim, Claims, Rank};
use super::pod_index::PodIndex;
use super::proxy_rules::NodeView;
use crate::limits::{
    NODE_ADDRESSES_MAX, SERVICE_ADDRESSES_MAX, SERVICE_BACKENDS_MAX, SERVICE_PORT_BACKENDS_MAX,
    SERVICE_PORTS_MAX,
};
use crate::policy::objects::{EndpointSlice, Node, Object, Pod, Service, ServiceKind};
use crate::policy::store::{Change, ObjectName};
use crate::tables::{ServicePort, ServicePortName, ServiceTable, ServicesDiff};

/// Number of changes at once from which all Services are resolved again.
const MANY_CHANGES: usize = 256;

/// Options of a resolver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServicesOptions {
    /// Node whose packets the Services are for. Without one every endpoint counts as local, and the only node
    /// gives zone and addresses.
    pub node: Option<String>,
    /// Derives endpoints from pods for Services with a selector and without an `EndpointSlice`. Not for
    /// objects of an API server, where a controller makes the slices.
    pub derive_endpoints: bool,
}

/// Namespace and name.
type Name = (String, String);

/// Zone and addresses of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NodeFacts {
    zone: Option<String>,
    addresses: Vec<IpAddr>,
}

/// Claims of one port.
type PortClaims = (ServicePortName, Vec<(Claim, Rank)>);

/// Services of a node.
#[derive(Debug, Default)]
pub struct Services {
    options: ServicesOptions,
    objects: BTreeMap<Name, Service>,
    slices: BTreeMap<Name, EndpointSlice>,
    /// Names of the slices of each Service.
    slices_of: BTreeMap<Name, BTreeSet<String>>,
    pods: PodIndex,
    nodes: BTreeMap<String, NodeFacts>,
    claims: Claims,
    /// Ports of each Service with their claims.
    claimed: BTreeMap<Name, Vec<PortClaims>>,
    table: ServiceTable,
    /// Backends of all ports of the table.
    backends: usize,
    /// Services to resolve.
    dirty: BTreeSet<Name>,
    /// Services with a port for which the table has no room.
    left_out: BTreeSet<Name>,
    /// Ports with more backends than a table takes.
    truncated: BTreeSet<ServicePortName>,
}

/// Ports before an update.
type Before = BTreeMap<ServicePortName, Option<ServicePort>>;

impl Services {
    /// Creates a resolver without objects.
    pub fn new(options: ServicesOptions) -> Services {
        Services { options, ..Services::default() }
    }

    /// Resolves objects. Other objects than Services, slices, pods and nodes do not matter.
    pub fn from_objects(objects: impl IntoIterator<Item = Object>, options: ServicesOptions) -> Services {
        let mut services = Services::new(options);
        for object in objects {
            services.put(object, false);
        }
        services.dirty.extend(services.objects.keys().cloned());
        services.update();
        services
    }

    /// Applies changes. Returns the difference of the tables.
    pub fn apply_all(&mut self, changes: impl IntoIterator<Item = Change>) -> ServicesDiff {
        let changes: Vec<Change> = changes.into_iter().collect();
        let is_few = changes.len() < MANY_CHANGES;
        for change in changes {
            match change {
                Change::Upsert(object) => self.put(object, is_few),
                Change::Remove(name) => self.remove(&name, is_few),
            }
        }
        if !is_few {
            self.mark_all();
        }
        self.update()
    }

    /// Tests whether Services depend on a change.
    pub fn depends_on(change: &Change) -> bool {
        match change {
            Change::Upsert(object) => {
                matches!(
                    object,
                    Object::Service(_) | Object::EndpointSlice(_) | Object::Pod(_) | Object::Node(_)
                )
            }
            Change::Remove(name) => matches!(
                name,
                ObjectName::Service { .. }
                    | ObjectName::EndpointSlice { .. }
                    | ObjectName::Pod(_)
                    | ObjectName::Node(_)
            ),
        }
    }

    /// Current table.
    pub fn table(&self) -> &ServiceTable {
        &self.table
    }

    /// Number of Services and slices.
    pub fn len(&self) -> usize {
        self.objects.len() + self.slices.len()
    }

    /// Tests whether there is no Service and no slice.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Warnings about Services that are not served as written.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.warnings_by_service().map(|(_, warning)| warning)
    }

    /// Warnings with namespace and name of their Service.
    pub fn warnings_by_service(&self) -> impl Iterator<Item = ((&str, &str), String)> {
        let contested = self.claims.warnings();
        let contested = contested.map(|(loser, text)| ((&*loser.namespace, &*loser.name), text));
        let left_out = self.left_out.iter().map(|(namespace, name)| {
            let text = format!("service {namespace}/{name} is not served: the table of Services is full");
            ((namespace.as_str(), name.as_str()), text)
        });
        let truncated = self.truncated.iter().map(|name| {
            let text = format!(
                "service {name} has more than {SERVICE_PORT_BACKENDS_MAX} backends: it uses the first ones"
            );
            ((&*name.namespace, &*name.name), text)
        });
        contested.chain(left_out).chain(truncated)
    }

    /// Number of warnings.
    pub fn warning_count(&self) -> usize {
        self.claims.losers() + self.left_out.len() + self.truncated.len()
    }

    fn put(&mut self, object: Object, marks: bool) {
        match object {
            Object::Service(service) => {
                let name = (service.namespace.clone(), service.name.clone());
                self.dirty.insert(name.clone());
                self.objects.insert(name, service);
            }
            Object::EndpointSlice(slice) => {
                let name = (slice.namespace.clone(), slice.name.clone());
                self.remove_slice(&name);
                if let Some(service) = &slice.service {
                    let service = (slice.namespace.clone(), service.clone());
                    self.slices_of.entry(service.clone()).or_default().insert(slice.name.clone());
                    self.dirty.insert(service);
                    self.slices.insert(name, slice);
                }
            }
            Object::Pod(pod) if self.options.derive_endpoints => {
                if marks {
                    self.mark_selecting(&pod);
                }
                if let Some(former) = self.pods.put(pod).filter(|_| marks) {
                    self.mark_selecting(&former);
                }
            }
            Object::Node(node) => self.put_node(node),
            _ => {}
        }
    }

    fn remove(&mut self, name: &ObjectName, marks: bool) {
        match name {
            ObjectName::Service { namespace, name } => {
                let name = (namespace.clone(), name.clone());
                self.objects.remove(&name);
                self.dirty.insert(name);
            }
            ObjectName::EndpointSlice { namespace, name } => {
                self.remove_slice(&(namespace.clone(), name.clone()));
            }
            ObjectName::Pod(name) => {
                if let Some(former) = self.pods.remove(name).filter(|_| marks) {
                    self.mark_selecting(&former);
                }
            }
            ObjectName::Node(name) if self.nodes.remove(name).is_some() => self.mark_all(),
            _ => {}
        }
    }

    fn remove_slice(&mut self, name: &Name) {
        let Some(slice) = self.slices.remove(name) else { return };
        let Some(service) = slice.service else { return };
        let service = (name.0.clone(), service);
        if let Some(names) = self.slices_of.get_mut(&service) {
            names.remove(&name.1);
            if names.is_empty() {
                self.slices_of.remove(&service);
            }
        }
        self.dirty.insert(service);
    }

    fn put_node(&mut self, node: Node) {
        let mut addresses = node.addresses;
        addresses.truncate(NODE_ADDRESSES_MAX);
        addresses.retain(is_served);
        let facts = NodeFacts { zone: node.labels.get(ZONE_LABEL).cloned(), addresses };
        if self.nodes.get(&node.name) == Some(&facts) {
            return;
        }
        let is_new_zone = self.nodes.get(&node.name).map(|known| &known.zone) != Some(&facts.zone);
        let is_own = self.options.node.as_ref().is_none_or(|own| *own == node.name);
        self.nodes.insert(node.name, facts);
        if is_new_zone && (is_own || self.options.derive_endpoints) {
            self.mark_all();
        }
    }

    fn mark_all(&mut self) {
        self.dirty.extend(self.objects.keys().cloned());
    }

    /// Marks the Services that select a pod.
    fn mark_selecting(&mut self, pod: &Pod) {
        let namespace = &pod.name.namespace;
        let selecting = self
            .objects
            .range((namespace.clone(), String::new())..)
            .take_while(|((of, _), _)| of == namespace)
            .filter(|(_, service)| {
                service.selector.as_ref().is_some_and(|selector| selector.matches(&pod.labels))
            });
        self.dirty.extend(selecting.map(|(name, _)| name.clone()));
    }

    /// This node.
    fn own_node(&self) -> Option<&NodeFacts> {
        match &self.options.node {
            Some(name) => self.nodes.get(name),
            None if self.nodes.len() == 1 => self.nodes.values().next(),
            None => None,
        }
    }

    /// Resolves the marked Services, and those for which there was no room.
    fn update(&mut self) -> ServicesDiff {
        let mut before = Before::new();
        self.dirty.append(&mut self.left_out);
        while let Some(name) = self.dirty.pop_first() {
            self.resolve(&name, &mut before);
        }
        let mut difference = ServicesDiff::default();
        for (name, before) in before {
            match self.table.ports.get(&name) {
                Some(port) if before.as_ref() == Some(port) => {}
                Some(port) => _ = difference.set.insert(name, port.clone()),
                None if before.is_some() => difference.removed.push(name),
                None => {}
            }
        }
        let addresses = self.own_node().map(|node| node.addresses.clone()).unwrap_or_default();
        if self.table.node_addresses != addresses {
            difference.node_addresses = Some(addresses.clone());
            self.table.node_addresses = addresses;
        }
        difference
    }

    /// Resolves one Service. Marks the Services that get or lose a claim by it.
    fn resolve(&mut self, name: &Name, before: &mut Before) {
        let wanted = self.wanted(name);
        let claims: Vec<PortClaims> =
            wanted.iter().map(|(name, port)| (name.clone(), Claims::of(name, port))).collect();
        self.replace_claims(name, &claims);
        let mut ports: BTreeMap<ServicePortName, ServicePort> = BTreeMap::new();
        for (name, mut port) in wanted {
            self.keep_own(&name, &mut port);
            if !(port.cluster.is_empty() && port.external.is_empty() && port.node_port.is_none()) {
                ports.insert(name, port);
            }
        }
        let former: Vec<ServicePortName> = self.ports_of(name).map(|(name, _)| name.clone()).collect();
        for name in former {
            if let Some(port) = self.table.ports.remove(&name) {
                self.backends -= count(&port);
                self.truncated.remove(&name);
                before.entry(name).or_insert(Some(port));
            }
        }
        for (port_name, mut port) in ports {
            if Services::truncate(&mut port) {
                self.truncated.insert(port_name.clone());
            }
            let has_room = self.table.ports.len() < SERVICE_PORTS_MAX
                && self.backends + count(&port) <= SERVICE_BACKENDS_MAX;
            if !has_room {
                self.left_out.insert(name.clone());
                continue;
            }
            self.backends += count(&port);
            before.entry(port_name.clone()).or_insert(None);
            self.table.ports.insert(port_name, port);
        }
    }

    /// Ports of a Service before the claims of others.
    fn wanted(&self, name: &Name) -> Vec<(ServicePortName, ServicePort)> {
        let Some(service) = self.objects.get(name).filter(|service| service.kind == ServiceKind::Virtual)
        else {
            return Vec::new();
        };
        let zone = self.own_node().and_then(|node| node.zone.as_deref());
        let view = NodeView { name: self.options.node.as_deref(), zone };
        let slices = self.slices_of.get(name);
        let derived = match (&service.selector, slices) {
            (Some(selector), None) if self.options.derive_endpoints => {
                let zones = |node: &str| self.nodes.get(node).and_then(|node| node.zone.clone());
                candidates::derive(service, self.pods.selected(&name.0, selector), &zones)
            }
            _ => Vec::new(),
        };
        let resolve = |port| {
            let found = match slices {
                Some(slices) => {
                    let slices =
                        slices.iter().filter_map(|slice| self.slices.get(&(name.0.clone(), slice.clone())));
                    candidates::of_slices(slices, port, view)
                }
                None => candidates::of_derived(&derived, port, view),
            };
            (port_name(service, port), candidates::resolve_port(service, port, &found, view))
        };
        service.ports.iter().map(resolve).collect()
    }

    fn replace_claims(&mut self, name: &Name, claims: &[PortClaims]) {
        let former = self.claimed.remove(name).unwrap_or_default();
        let mut others = Vec::new();
        for (port, of_port) in &former {
            let kept = claims.iter().find(|(other, _)| other == port).map(|(_, kept)| kept.as_slice());
            for (claim, rank) in of_port {
                if !kept.unwrap_or_default().contains(&(*claim, *rank)) {
                    others.extend(self.claims.release(*claim, *rank, port));
                }
            }
        }
        for (port, of_port) in claims {
            for (claim, rank) in of_port {
                others.extend(self.claims.take(*claim, *rank, port));
            }
        }
        let others = others.into_iter().map(|port| (port.namespace, port.name));
        self.dirty.extend(others.filter(|other| other != name));
        if !claims.is_empty() {
            self.claimed.insert(name.clone(), claims.to_vec());
        }
    }

    /// Keeps the addresses whose claims a port has.
    fn keep_own(&self, name: &ServicePortName, port: &mut ServicePort) {
        let own: BTreeSet<Claim> = Claims::of(name, port)
            .into_iter()
            .map(|(claim, _)| claim)
            .filter(|claim| self.claims.has(claim, name))
            .collect();
        let has = |address| own.contains(&Claim::address(name.protocol, address));
        port.cluster.retain(|address| has(*address));
        port.external.retain(|address| has(*address));
        port.guarded.retain(|address| has(*address));
        port.node_port = port.node_port.filter(|port| own.contains(&Claim::node_port(name.protocol, *port)));
    }

    /// Ports of the table that belong to a Service.
    fn ports_of<'a>(
        &'a self,
        name: &'a Name,
    ) -> impl Iterator<Item = (&'a ServicePortName, &'a ServicePort)> {
        let first = ServicePortName {
            namespace: name.0.clone(),
            name: name.1.clone(),
            port: None,
            protocol: crate::net::flow::Protocol(0),
        };
        let ports = self.table.ports.range(first..);
        ports.take_while(move |(port, _)| port.namespace == name.0 && port.name == name.1)
    }

    /// Cuts a port to what a table takes. Returns whether it had more backends.
    fn truncate(port: &mut ServicePort) -> bool {
        port.cluster.truncate(SERVICE_ADDRESSES_MAX);
        port.external.truncate(SERVICE_ADDRESSES_MAX);
        let most = |list: &[SocketAddr]| list.len() > SERVICE_PORT_BACKENDS_MAX;
        let has_more = most(&port.internal_backends)
            || most(&port.external_backends)
            || port.short_circuit_backends.as_deref().is_some_and(most);
        port.internal_backends.truncate(SERVICE_PORT_BACKENDS_MAX);
        port.external_backends.truncate(SERVICE_PORT_BACKENDS_MAX);
        if let Some(backends) = &mut port.short_circuit_backends {
            backends.truncate(SERVICE_PORT_BACKENDS_MAX);
        }
        has_more
    }
}

/// Name of a port of a Service.
fn port_name(service: &Service, port: &crate::policy::objects::PortOfService) -> ServicePortName {
    ServicePortName {
        namespace: service.namespace.clone(),
        name: service.name.clone(),
        port: port.name.clone(),
        protocol: port.protocol,
    }
}

fn count(port: &ServicePort) -> usize {
    let short_circuit = port.short_circuit_backends.as_ref().map_or(0, Vec::len);
    port.internal_backends.len() + port.external_backends.len() + short_circuit
}

/// Tests for an address at which a node port can be served.
fn is_served(address: &IpAddr) -> bool {
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast())
}
