//! Interface between control side and dataplane. Tests implement it to run the switch without privilege.

use crate::dataplane::{
    Counters, Dataplane, DesiredState, FlowInfo, FlowPath, FlowTableReport, NotTaken, PortError, PortHealth,
    PortReport, PortSpec, StuckWorker,
};
use crate::ids::{Generation, PortId};
use crate::net::flow::FlowKey;

/// Operations of a dataplane that the control side uses. Each method may be called from any thread and may
/// block.
///
/// A dataplane without kernel interfaces, such as a simulated one, keeps the default methods.
pub trait DataplaneApi: Send + Sync {
    /// See [`Dataplane::open_port`].
    fn open_port(&self, spec: &PortSpec) -> Result<PortReport, PortError>;

    /// See [`Dataplane::close_port`].
    fn close_port(&self, port: PortId, detach: bool) -> Result<(), PortError>;

    /// See [`Dataplane::publish`].
    fn publish(&self, world: DesiredState) -> Result<Generation, NotTaken>;

    /// See [`Dataplane::path`].
    fn path(&self, flow: &FlowKey) -> FlowPath;

    /// See [`Dataplane::reopen_port`].
    fn reopen_port(&self, port: PortId, _spec: &PortSpec) -> Result<PortReport, PortError> {
        Err(PortError::Unknown(port))
    }

    /// See [`Dataplane::check_port`].
    fn check_port(&self, port: PortId) -> Result<PortHealth, PortError> {
        Err(PortError::Unknown(port))
    }

    /// See [`Dataplane::guard`].
    fn guard(&self, _interface: &str) -> Result<(), PortError> {
        Ok(())
    }

    /// See [`Dataplane::guard_new`].
    fn guard_new(&self, _index: u32, interface: &str) -> Result<(), PortError> {
        self.guard(interface)
    }

    /// See [`Dataplane::release`].
    fn release(&self, _interface: &str) -> Result<(), PortError> {
        Ok(())
    }

    /// See [`Dataplane::stuck_workers`].
    fn stuck_workers(&self) -> Vec<StuckWorker> {
        Vec::new()
    }

    /// See [`Dataplane::without_links`].
    fn without_links(&self) -> Option<&str> {
        None
    }

    /// See [`Dataplane::counters`].
    fn counters(&self) -> Counters {
        Counters::default()
    }

    /// See [`Dataplane::flows`].
    fn flows(&self, _max: usize, _wanted: &mut dyn FnMut(&FlowInfo) -> bool) -> Vec<FlowInfo> {
        Vec::new()
    }

    /// See [`Dataplane::flow_table`].
    fn flow_table(&self) -> FlowTableReport {
        FlowTableReport::default()
    }
}

impl DataplaneApi for Dataplane {
    fn open_port(&self, spec: &PortSpec) -> Result<PortReport, PortError> {
        Dataplane::open_port(self, spec)
    }

    fn close_port(&self, port: PortId, detach: bool) -> Result<(), PortError> {
        Dataplane::close_port(self, port, detach)
    }

    fn reopen_port(&self, port: PortId, spec: &PortSpec) -> Result<PortReport, PortError> {
        Dataplane::reopen_port(self, port, spec)
    }

    fn check_port(&self, port: PortId) -> Result<PortHealth, PortError> {
        Dataplane::check_port(self, port)
    }

    fn guard(&self, interface: &str) -> Result<(), PortError> {
        Dataplane::guard(self, interface)
    }

    fn guard_new(&self, index: u32, interface: &str) -> Result<(), PortError> {
        Dataplane::guard_new(self, index, interface)
    }

    fn release(&self, interface: &str) -> Result<(), PortError> {
        Dataplane::release(self, interface)
    }

    fn publish(&self, world: DesiredState) -> Result<Generation, NotTaken> {
        Dataplane::publish(self, world)
    }

    fn stuck_workers(&self) -> Vec<StuckWorker> {
        Dataplane::stuck_workers(self)
    }

    fn without_links(&self) -> Option<&str> {
        Dataplane::without_links(self)
    }

    fn counters(&self) -> Counters {
        Dataplane::counters(self)
    }

    fn flows(&self, max: usize, wanted: &mut dyn FnMut(&FlowInfo) -> bool) -> Vec<FlowInfo> {
        Dataplane::flows(self, max, wanted)
    }

    fn path(&self, flow: &FlowKey) -> FlowPath {
        Dataplane::path(self, flow)
    }

    fn flow_table(&self) -> FlowTableReport {
        Dataplane::flow_table(self)
    }
}
