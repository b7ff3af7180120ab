//! Loaded Services: a document that shares its unchanged parts with the documents before it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::endpoint::VirtualEndpoint;
use super::error::ServicesError;
use super::{ServicePort, ServicePortName, ServiceTable, ServicesDiff};
use crate::limits::{
    NODE_ADDRESSES_MAX, SERVICE_ADDRESSES_MAX, SERVICE_BACKENDS_MAX, SERVICE_PORT_BACKENDS_MAX,
    SERVICE_PORTS_MAX, SOURCE_RANGES_MAX,
};
use crate::net::address::{is_group, pack};
use crate::tables::PersistentMap;

/// Ports of Services that have passed their check. A clone shares all parts, and a change copies those that it writes.
#[derive(Debug, Clone, Default)]
pub struct ServiceSet {
    node_addresses: Arc<[IpAddr]>,
    ports: PersistentMap<Arc<ServicePortName>, Arc<ServicePort>>,
    /// Claims of virtual addresses and node ports.
    owners: PersistentMap<VirtualEndpoint, Arc<ServicePortName>>,
    /// Backends of all ports.
    backends: usize,
}

impl ServiceTable {
    /// Checks the document: addresses, protocols, claims and bounds.
    pub fn check(&self) -> Result<(), ServicesError> {
        ServiceSet::new(self).map(drop)
    }
}

impl ServiceSet {
    /// Checks a document and loads it.
    pub fn new(table: &ServiceTable) -> Result<ServiceSet, ServicesError> {
        check_count("ports", table.ports.len(), SERVICE_PORTS_MAX)?;
        let mut set =
            ServiceSet { node_addresses: node_addresses(&table.node_addresses)?, ..ServiceSet::default() };
        let mut owners = std::collections::BTreeMap::new();
        let mut ports = std::collections::BTreeMap::new();
        for (name, port) in &table.ports {
            check_port(name, port)?;
            let name = Arc::new(name.clone());
            for endpoint in endpoints(&name, port) {
                if let Some(other) = owners.insert(endpoint, name.clone())
                    && other != name
                {
                    return Err(taken(endpoint, &other, &name));
                }
            }
            set.backends += backends(port);
            ports.insert(name, Arc::new(port.clone()));
        }
        set.owners = owners.into();
        set.ports = ports.into();
        check_count("the backends of all ports", set.backends, SERVICE_BACKENDS_MAX)?;
        Ok(set)
    }

    /// Checks a difference and applies it, at the cost of its size. The set stays as it is on an error.
    pub fn changed(&self, diff: &ServicesDiff) -> Result<ServiceSet, ServicesError> {
        let mut next = self.clone();
        if let Some(addresses) = &diff.node_addresses {
            next.node_addresses = node_addresses(addresses)?;
        }
        for name in &diff.removed {
            let is_set = diff.set.contains_key(name);
            if is_set || !next.take(name) {
                return Err(ServicesError::Removed { service: Box::new(name.clone()), is_set });
            }
        }
        // An address may move from one port of a Service to another in one difference.
        for name in diff.set.keys() {
            next.take(name);
        }
        for (name, port) in &diff.set {
            check_port(name, port)?;
            next.add(name, port)?;
        }
        check_count("ports", next.ports.len(), SERVICE_PORTS_MAX)?;
        check_count("the backends of all ports", next.backends, SERVICE_BACKENDS_MAX)?;
        Ok(next)
    }

    /// The loaded Services as a document.
    pub fn table(&self) -> ServiceTable {
        let ports =
            self.ports.iter().map(|(name, port)| (ServicePortName::clone(name), ServicePort::clone(port)));
        ServiceTable { node_addresses: self.node_addresses.to_vec(), ports: ports.collect() }
    }

    /// Addresses at which node ports are served.
    pub fn node_addresses(&self) -> &[IpAddr] {
        &self.node_addresses
    }

    /// Ports of Services by name.
    pub fn ports(&self) -> &PersistentMap<Arc<ServicePortName>, Arc<ServicePort>> {
        &self.ports
    }

    /// Whether no port of a Service is loaded.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// A port of a Service here that claims a destination of this one, or the node port in the place of one of its addresses.
    pub fn claimant(&self, name: &ServicePortName, port: &ServicePort) -> Option<&ServicePortName> {
        let as_node_port = |at: &SocketAddr| VirtualEndpoint::NodePort(name.protocol, at.port());
        let mut all = endpoints(name, port).chain(port.mapped.iter().map(as_node_port));
        all.find_map(|endpoint| self.owners.get(&endpoint).map(|name| &**name))
    }

    /// Removes a port with its claims. Returns whether there was one.
    fn take(&mut self, name: &ServicePortName) -> bool {
        let Some(port) = self.ports.remove(name) else { return false };
        self.backends -= backends(&port);
        for endpoint in endpoints(name, &port) {
            self.owners.remove(&endpoint);
        }
        true
    }

    fn add(&mut self, name: &ServicePortName, port: &ServicePort) -> Result<(), ServicesError> {
        let shared = Arc::new(name.clone());
        for endpoint in endpoints(name, port) {
            if let Some(other) = self.owners.insert(endpoint, shared.clone())
                && *other != *name
            {
                return Err(taken(endpoint, &other, name));
            }
        }
        self.backends += backends(port);
        self.ports.insert(shared, Arc::new(port.clone()));
        Ok(())
    }
}

fn taken(endpoint: VirtualEndpoint, one: &ServicePortName, other: &ServicePortName) -> ServicesError {
    ServicesError::Taken { endpoint, services: Box::new([one.clone(), other.clone()]) }
}

/// Destinations that a port of a Service claims.
pub(crate) fn endpoints<'a>(
    name: &'a ServicePortName,
    port: &'a ServicePort,
) -> impl Iterator<Item = VirtualEndpoint> + 'a {
    let protocol = name.protocol;
    let addresses = port.cluster.iter().chain(&port.external).chain(&port.mapped);
    let addresses = addresses.map(move |address| VirtualEndpoint::Address(protocol, *address));
    addresses.chain(port.node_port.map(|port| VirtualEndpoint::NodePort(protocol, port)))
}

fn backends(port: &ServicePort) -> usize {
    let short_circuit = port.short_circuit_backends.as_ref().map_or(0, Vec::len);
    port.internal_backends.len() + port.external_backends.len() + short_circuit
}

fn check_port(name: &ServicePortName, port: &ServicePort) -> Result<(), ServicesError> {
    if !name.protocol.has_ports() {
        return Err(ServicesError::Protocol { service: Box::new(name.clone()) });
    }
    if port.node_port == Some(0) {
        return Err(ServicesError::NodePort { service: Box::new(name.clone()) });
    }
    let short_circuit = port.short_circuit_backends.as_deref().unwrap_or_default();
    if port.source_ranges.len() > SOURCE_RANGES_MAX {
        return Err(ServicesError::TooMany {
            field: format!("source_ranges of {name}"),
            found: port.source_ranges.len(),
            max: SOURCE_RANGES_MAX,
        });
    }
    let lists = [
        ("cluster", &port.cluster[..], SERVICE_ADDRESSES_MAX),
        ("external", &port.external, SERVICE_ADDRESSES_MAX),
        ("mapped", &port.mapped, SERVICE_ADDRESSES_MAX),
        ("guarded", &port.guarded, SERVICE_ADDRESSES_MAX),
        ("internal_backends", &port.internal_backends, SERVICE_PORT_BACKENDS_MAX),
        ("external_backends", &port.external_backends, SERVICE_PORT_BACKENDS_MAX),
        ("short_circuit_backends", short_circuit, SERVICE_PORT_BACKENDS_MAX),
    ];
    for (field, list, max) in lists {
        if list.len() > max {
            return Err(ServicesError::TooMany {
                field: format!("{field} of {name}"),
                found: list.len(),
                max,
            });
        }
        let is_usable = |address: &SocketAddr| {
            // Processes of the node may use its loopback address.
            let is_loopback = field == "mapped" && address.ip().is_loopback();
            address.port() != 0 && (is_host(address.ip()) || is_loopback)
        };
        if let Some(address) = list.iter().find(|address| !is_usable(address)) {
            return Err(ServicesError::Address { service: Box::new(name.clone()), field, address: *address });
        }
    }
    Ok(())
}

fn node_addresses(addresses: &[IpAddr]) -> Result<Arc<[IpAddr]>, ServicesError> {
    check_count("node_addresses", addresses.len(), NODE_ADDRESSES_MAX)?;
    match addresses.iter().find(|address| !is_host(**address)) {
        Some(address) => Err(ServicesError::NodeAddress { address: *address }),
        None => Ok(addresses.into()),
    }
}

/// Whether a packet may have this address of one host. An IPv4 address inside an IPv6 one is none: it would be another
/// family than its text says.
fn is_host(address: IpAddr) -> bool {
    let is_mapped = matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some());
    !address.is_unspecified() && !address.is_loopback() && !is_group(pack(address)) && !is_mapped
}

fn check_count(field: &str, found: usize, max: usize) -> Result<(), ServicesError> {
    if found > max {
        return Err(ServicesError::TooMany { field: field.to_owned(), found, max });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
