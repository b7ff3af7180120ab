//! Services: loading, changes, and the report on them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::ApiError;
use super::protocol::{BackendReport, Loaded, ServiceReport, ServicesPatch, ServicesReport};
use super::state::LoadedServices;
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

    /// The loaded Services as a document, with any base for a change of them. `None` while none are loaded.
    pub fn services(&self) -> Option<(Generation, ServiceTable)> {
        let state = self.state.load_full();
        let loaded = state.services.as_ref()?;
        Some((loaded.since, loaded.set.table()))
    }

    /// Reports the loaded Services with the flows that they have opened.
    pub fn services_report(&self) -> ServicesReport {
        let state = self.state.load_full();
        let Some(loaded) = &state.services else {
            return ServicesReport { generation: state.generation, ..ServicesReport::default() };
        };
        let counts = self.dataplane.service_flows();
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
        ServicesReport {
            generation: state.generation,
            since: Some(loaded.since),
            node_addresses: loaded.set.node_addresses().to_vec(),
            ports: loaded.set.ports().iter().map(report).collect(),
        }
    }
}
