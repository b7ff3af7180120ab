//! Dataplane that opens no port: it checks whether the interfaces of ports are there and usable, and changes nothing.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{
    check_link, is_offloadable, missing_queues, not_offloaded_warning, offload_obstacle, usable_queues,
};
use crate::dataplane::api::{CandidateTables, DataplaneApi, Flows, PacketCaptures, Workers};
use crate::dataplane::core::Core;
use crate::dataplane::fib::port::PortView;
use crate::dataplane::{
    Backend, ConntrackSettings, Counters, DesiredState, DropSamples, FlowDecisions, FlowMemory, FlowPath,
    PortError, PortHealth, PortKind, PortReport, PortSpec, PublishError, RouteReport, Settings, StartError,
    StuckWorker, WorkerTimes, uplink,
};
use crate::ids::{Generation, PortId};
use crate::limits::MTU_MAX;
use crate::net::flow::FlowKey;
use crate::netlink::{Interface, NetworkNamespace};

/// Capacity of the flow table, which stays empty.
const FLOWS: usize = 1024;

/// Dataplane for the check of a configuration.
pub struct DryRun {
    core: Core,
    /// Whether the configuration has flows offloaded.
    offloads: bool,
    /// Index of each port's interface in the node's network namespace.
    interfaces: Mutex<BTreeMap<PortId, u32>>,
}

impl DryRun {
    /// Creates a dataplane without threads, files and sockets for AF_XDP. `settings` are those of the switch to check.
    pub fn new(settings: &Settings) -> Result<DryRun, StartError> {
        let conntrack =
            ConntrackSettings { flows_max: FLOWS, memory: FlowMemory::Process, ..settings.conntrack.clone() };
        let offloads = settings.offload.is_some();
        let settings = Settings { conntrack, huge_pages: false, offload: None, ..settings.clone() };
        let core = Core::new(&settings, Instant::now())?;
        Ok(DryRun { core, offloads, interfaces: Mutex::default() })
    }

    /// Finds the interface of a port, and the warnings about it.
    fn examine(&self, spec: &PortSpec) -> Result<(Interface, Vec<String>), PortError> {
        let interface = Interface::find(&spec.interface)?;
        let interfaces = self.interfaces.lock().unwrap_or_else(PoisonError::into_inner);
        if interfaces.values().any(|index| *index == interface.index) {
            return Err(PortError::Taken { interface: spec.interface.clone() });
        }
        check_link(spec.kind, &interface)?;
        let workers = self.core.workers() as u16;
        let queues = usable_queues(&interface, workers, MTU_MAX)?;
        let mut warnings = missing_queues(&interface, queues, workers);
        if self.offloads && is_offloadable(spec.kind) {
            let obstacle = offload_obstacle(spec.kind, spec.vlan, &interface);
            warnings.extend(obstacle.map(|reason| not_offloaded_warning(&interface, &reason)));
        }
        if spec.kind == PortKind::Uplink {
            uplink::check_prefixes(&spec.interface, &self.core.desired().uplink_prefixes())?;
            warnings.extend(uplink::probe(&interface, spec.vlan)?.warning);
        }
        Ok((interface, warnings))
    }
}

impl DataplaneApi for DryRun {
    fn backend(&self) -> Backend {
        Backend::AfXdp
    }

    fn workers(&self) -> Option<&dyn Workers> {
        Some(self)
    }

    fn open_port(&self, spec: &PortSpec) -> Result<PortReport, PortError> {
        let id = self.core.free_port(None)?;
        let (interface, warnings) = match &spec.namespace {
            Some(namespace) => {
                // The device in the namespace is the switch's own to make.
                NetworkNamespace::open(namespace).map_err(|error| match error.kind() {
                    io::ErrorKind::NotFound => PortError::NoNamespace { namespace: namespace.clone() },
                    _ => {
                        PortError::Kernel(format!("network namespace {namespace} cannot be opened: {error}"))
                    }
                })?;
                (Interface::default(), Vec::new())
            }
            None => self.examine(spec)?,
        };
        let view = PortView::new(spec.kind, spec.vlan, interface.mtu.min(MTU_MAX as u32) as u16, None);
        self.core.add_port(id, view, None, &|_, _| {});
        if spec.namespace.is_none() {
            self.interfaces.lock().unwrap_or_else(PoisonError::into_inner).insert(id, interface.index);
        }
        Ok(PortReport::without_program(id, &interface, warnings))
    }

    fn close_port(&self, port: PortId, _detach: bool) -> Result<(), PortError> {
        self.interfaces.lock().unwrap_or_else(PoisonError::into_inner).remove(&port);
        self.core.remove_port(port, &|_, _| {});
        Ok(())
    }

    fn publish(&self, desired: DesiredState) -> Result<Generation, PublishError> {
        Ok(self.core.publish(&mut self.core.state(), Some(desired), &|_, _| {}))
    }

    fn path(&self, flow: &FlowKey, backend: Option<SocketAddr>) -> FlowPath {
        self.core.path(flow, backend)
    }

    fn reopen_port(&self, port: PortId, _: &PortSpec) -> Result<PortReport, PortError> {
        Err(PortError::Unknown(port))
    }

    fn check_port(&self, port: PortId) -> Result<PortHealth, PortError> {
        Err(PortError::Unknown(port))
    }

    fn block_interface(&self, _: &str) -> Result<(), PortError> {
        Ok(())
    }

    fn block_new_interface(&self, _: u32, _: &str) -> Result<(), PortError> {
        Ok(())
    }

    fn unblock_interface(&self, _: &str) -> Result<(), PortError> {
        Ok(())
    }

    fn decisions(&self, flow: &FlowKey) -> FlowDecisions {
        self.core.decisions(flow)
    }

    fn routes(&self) -> Vec<RouteReport> {
        self.core.routes()
    }

    fn route_of(&self, address: IpAddr) -> Option<RouteReport> {
        self.core.route_of(address)
    }

    fn counters(&self) -> Counters {
        self.core.counters()
    }

    fn problems(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Workers that do not run.
impl Workers for DryRun {
    fn flows(&self) -> &dyn Flows {
        &self.core
    }

    fn candidates(&self) -> &dyn CandidateTables {
        &self.core
    }

    fn captures(&self) -> &dyn PacketCaptures {
        &self.core
    }

    fn times(&self) -> Vec<WorkerTimes> {
        Vec::new()
    }

    fn stuck_for(&self, _: Duration) -> Vec<StuckWorker> {
        Vec::new()
    }

    fn take_drop_samples(&self) -> DropSamples {
        DropSamples::default()
    }

    fn offloads(&self) -> bool {
        self.offloads
    }

    fn without_links(&self) -> Option<&str> {
        None
    }

    fn without_xdp(&self) -> Option<&str> {
        None
    }

    fn services_left_out(&self) -> usize {
        0
    }
}
