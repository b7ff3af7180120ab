//! Services: loading, changes, and the report on them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::ApiError;
use super::protocol::{BackendReport, Loaded, PodRequest, ServiceReport, ServicesPatch, ServicesReport};
use super::state::{LoadedServices, State};
use super::switch::Switch;
use crate::ids::Generation;
use crate::tables::{ServicePort, ServicePortName, ServiceSet, ServiceTable, ServicesDiff};

impl Switch {
    /// Loads Services in place of those before. An empty table ends translation.
    pub fn replace_services(&self, table: &ServiceTable) -> Result<Loaded, ApiError> {
        let set = ServiceSet::new(table)?;
        let _writer = self.lock_writer();
        self.publish_services(set)
    }

    /// Changes the loaded Services on behalf of a client of the control socket.
    pub fn patch_services(&self, patch: &ServicesPatch) -> Result<Loaded, ApiError> {
        self.change_services(patch.base, &patch.diff)
    }

    /// Changes the loaded Services, at a cost that depends on the size of the change. `base` is any generation since these
    /// Services were loaded or changed last.
    pub fn change_services(&self, base: Generation, diff: &ServicesDiff) -> Result<Loaded, ApiError> {
        let _writer = self.lock_writer();
        let state = self.state.load_full();
        let loaded = state.services.as_ref().ok_or(ApiError::NoServicesBase)?;
        if !(loaded.since..=state.generation).contains(&base) {
            return Err(ApiError::ServicesBase { base, current: state.generation });
        }
        if diff.is_empty() {
            return Ok(Loaded { generation: state.generation });
        }
        self.publish_services(loaded.set.changed(diff)?)
    }

    /// Publishes Services. The caller has locked the writer.
    fn publish_services(&self, set: ServiceSet) -> Result<Loaded, ApiError> {
        if !set.is_empty() {
            self.require_workers("Services", "let kube-proxy translate them; policy applies after it")?;
        }
        let mut next = self.draft();
        // `publish` stores the generation.
        let since = next.generation;
        next.services = Some(LoadedServices { set: Arc::new(set), since });
        Ok(Loaded { generation: self.publish(next)? })
    }

    /// Refuses ports of the node that lead to another pod.
    pub(super) fn check_port_mappings(&self, state: &State, request: &PodRequest) -> Result<(), ApiError> {
        if !request.port_mappings.is_empty() {
            self.require_workers("port_mappings", "let the CNI plugin `portmap` translate them")?;
        }
        for mapping in &request.port_mappings {
            if let Some(pod) = state.pod_with_mapping(mapping) {
                return Err(ApiError::PortMappingTaken { mapping: *mapping, pod: pod.clone() });
            }
        }
        Ok(())
    }

    /// The loaded Services as a document, with any base for a change of them. `None` while none are loaded.
    pub fn services(&self) -> Option<(Generation, ServiceTable)> {
        let state = self.state.load_full();
        let loaded = state.services.as_ref()?;
        Some((loaded.since, loaded.set.table()))
    }

    /// Reports the loaded Services with the flows that they have opened.
    pub fn services_report(&self) -> ServicesReport {
        let state = self.state.load_full();
        let Some(served) = &state.served.all else {
            return ServicesReport { generation: state.generation, ..ServicesReport::default() };
        };
        let counts =
            self.dataplane.workers().map(|workers| workers.flows().of_services()).unwrap_or_default();
        let report = |(name, port): (&Arc<ServicePortName>, &Arc<ServicePort>)| {
            let opened = counts.get(&**name);
            let short_circuit = port.short_circuit_backends.iter().flatten();
            let backends: BTreeSet<_> =
                port.internal_backends.iter().chain(&port.external_backends).chain(short_circuit).collect();
            let backend = |address: &_| BackendReport {
                address: *address,
                flows_opened: opened.and_then(|opened| opened.backends.get(address)).copied().unwrap_or(0),
            };
            ServiceReport {
                service: ServicePortName::clone(name),
                port: ServicePort::clone(port),
                flows_opened: opened.map_or(0, |opened| opened.total),
                backends: backends.into_iter().map(backend).collect(),
            }
        };
        let is_mapping = |report: &ServiceReport| !report.port.mapped.is_empty();
        let (port_mappings, ports) = served.ports().iter().map(report).partition(is_mapping);
        ServicesReport {
            generation: state.generation,
            since: state.services.as_ref().map(|loaded| loaded.since),
            node_addresses: served.node_addresses().to_vec(),
            ports,
            port_mappings,
        }
    }
}
