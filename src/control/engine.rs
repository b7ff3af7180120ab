//! What the control side asks of a dataplane: the seam that lets the switch be tested without privilege.

use crate::dataplane::{
    Counters, Dataplane, FlowInfo, FlowTableReport, PortError, PortReport, PortSpec, World,
};
use crate::ids::{Generation, PortId};

/// A dataplane as the control side sees it. Each method may be called from any thread, and may block.
pub trait Engine: Send + Sync {
    /// See [`Dataplane::open_port`].
    fn open_port(&self, spec: &PortSpec) -> Result<PortReport, PortError>;

    /// See [`Dataplane::close_port`].
    fn close_port(&self, port: PortId, detach: bool) -> Result<(), PortError>;

    /// See [`Dataplane::publish`].
    fn publish(&self, world: World) -> Generation;

    /// See [`Dataplane::counters`].
    fn counters(&self) -> Counters;

    /// See [`Dataplane::flows`].
    fn flows(&self, max: usize, wanted: &mut dyn FnMut(&FlowInfo) -> bool) -> Vec<FlowInfo>;

    /// See [`Dataplane::flow_table`].
    fn flow_table(&self) -> FlowTableReport;
}

impl Engine for Dataplane {
    fn open_port(&self, spec: &PortSpec) -> Result<PortReport, PortError> {
        Dataplane::open_port(self, spec)
    }

    fn close_port(&self, port: PortId, detach: bool) -> Result<(), PortError> {
        Dataplane::close_port(self, port, detach)
    }

    fn publish(&self, world: World) -> Generation {
        Dataplane::publish(self, world)
    }

    fn counters(&self) -> Counters {
        Dataplane::counters(self)
    }

    fn flows(&self, max: usize, wanted: &mut dyn FnMut(&FlowInfo) -> bool) -> Vec<FlowInfo> {
        Dataplane::flows(self, max, wanted)
    }

    fn flow_table(&self) -> FlowTableReport {
        Dataplane::flow_table(self)
    }
}
