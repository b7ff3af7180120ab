//! Services that the switch serves: the loaded ones, and beside them ports of the node that lead to pods.

use std::net::IpAddr;
use std::sync::Arc;

use crate::netlink::LocalPorts;
use crate::tables::{PodName, PortMapping, ServicePort, ServicePortName, ServiceSet, ServicesDiff};

/// Services that the switch serves.
#[derive(Debug, Clone, Default)]
pub(in crate::control) struct ServedServices {
    /// All of them; `None` while none are loaded and no port of the node leads to a pod.
    pub(in crate::control) all: Option<Arc<ServiceSet>>,
    /// Ports of the node alone.
    pub(in crate::control) mapped: Arc<ServiceSet>,
    /// Ports of the node that do not lead to their pods, a sentence each.
    pub(in crate::control) problems: Vec<String>,
    made_of: Parts,
}

/// Parts that the served Services are made of.
#[derive(Debug, Clone, Default)]
pub(in crate::control) struct Parts {
    /// Loaded Services.
    pub(in crate::control) loaded: Option<Arc<ServiceSet>>,
    /// Addresses of the node.
    pub(in crate::control) node_addresses: Vec<IpAddr>,
    /// Ports of the node.
    pub(in crate::control) mappings: Vec<Mapping>,
}

/// Port of the node, with its pod and the addresses of this.
pub(in crate::control) type Mapping = (PodName, Vec<IpAddr>, PortMapping);

impl PartialEq for Parts {
    fn eq(&self, other: &Parts) -> bool {
        let loaded = |parts: &Parts| parts.loaded.as_ref().map(Arc::as_ptr);
        loaded(self) == loaded(other)
            && (&self.node_addresses, &self.mappings) == (&other.node_addresses, &other.mappings)
    }
}

impl ServedServices {
    /// The Services of these parts: those before, if they are made of the same.
    pub(in crate::control) fn next(&self, parts: Parts) -> ServedServices {
        if parts == self.made_of { self.clone() } else { ServedServices::of(parts) }
    }

    fn of(parts: Parts) -> ServedServices {
        if parts.mappings.is_empty() {
            return ServedServices { all: parts.loaded.clone(), made_of: parts, ..ServedServices::default() };
        }
        let Parts { loaded, node_addresses, mappings } = &parts;
        let loaded = loaded.as_deref().cloned().unwrap_or_default();
        let mut problems = Vec::new();
        let local_ports = LocalPorts::read().ok();
        let mut diff = ServicesDiff {
            node_addresses: (loaded.node_addresses() != node_addresses).then(|| node_addresses.clone()),
            ..ServicesDiff::default()
        };
        for (pod, addresses, mapping) in mappings {
            let (name, port) = mapping.service(pod, addresses, node_addresses);
            match obstacle(&loaded, mapping, &name, &port, node_addresses) {
                None => {
                    if local_ports.as_ref().is_some_and(|local| local.gives(mapping.port)) {
                        problems.push(format!(
                            "port {mapping} of pod {pod} is one that sockets of the node may get, which have no answers by an \
                             uplink then: add it to net.ipv4.ip_local_reserved_ports"
                        ));
                    }
                    diff.set.insert(name, port);
                }
                Some(reason) => problems.push(format!("port {mapping} does not lead to pod {pod}: {reason}")),
            }
        }
        let mut with = |set: &ServiceSet| {
            let changed = set.changed(&diff).unwrap_or_else(|error| {
                problems.push(format!("ports of the node do not lead to their pods: {error}"));
                set.clone()
            });
            Arc::new(changed)
        };
        let (mapped, all) = (with(&ServiceSet::default()), with(&loaded));
        problems.dedup();
        ServedServices { all: Some(all), mapped, problems, made_of: parts }
    }
}

/// Reason for which a port of the node cannot lead to its pod.
fn obstacle(
    loaded: &ServiceSet,
    mapping: &PortMapping,
    name: &ServicePortName,
    port: &ServicePort,
    node_addresses: &[IpAddr],
) -> Option<String> {
    let strange =
        mapping.address.filter(|address| !address.is_loopback() && !node_addresses.contains(address));
    if let Some(address) = strange {
        return Some(format!("{address} is no address of the node that the switch knows"));
    }
    if port.mapped.is_empty() {
        return Some("the pod has no address of that family".to_owned());
    }
    loaded.claimant(name, port).map(|service| format!("Service {service} has it"))
}
