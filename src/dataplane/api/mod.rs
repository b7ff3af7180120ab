//! Operations of the dataplane that the control side uses.

mod core;
mod engine;
mod workers;

use std::net::{IpAddr, SocketAddr};

pub use self::workers::{CandidateTables, Flows, PacketCaptures, Workers};
use super::{
    Backend, Counters, DesiredState, FlowDecisions, FlowPath, PortError, PortHealth, PortReport, PortSpec,
    PublishError, RouteReport,
};
use crate::ids::{Generation, PortId};
use crate::net::flow::FlowKey;

/// Operations of a dataplane that the control side uses. Each method may be called from any thread and may block.
///
/// No method has a default: a dataplane that leaves one out does not compile.
pub trait DataplaneApi: Send + Sync {
    /// Program that forwards the packets.
    fn backend(&self) -> Backend;

    /// Its workers. `None` where the kernel forwards.
    fn workers(&self) -> Option<&dyn Workers>;

    /// Opens a port. Each of the first workers gets one of its queues. If it has fewer queues than there are workers, the
    /// others hand frames off to these. Frames of a pod are dropped until a published state places the pod on the port.
    fn open_port(&self, spec: &PortSpec) -> Result<PortReport, PortError>;

    /// Opens a port again after a change of its interface, whose name may have changed too. The pod behind it keeps its
    /// connections. On failure the port is closed, and its program drops every frame.
    fn reopen_port(&self, port: PortId, spec: &PortSpec) -> Result<PortReport, PortError>;

    /// Compares an open port with the state of its interface in the kernel.
    fn check_port(&self, port: PortId) -> Result<PortHealth, PortError>;

    /// Closes a port. On return no worker uses it and its frames are back in the UMEM. Its XDP program is detached with
    /// `detach`, and drops every frame without.
    fn close_port(&self, port: PortId, detach: bool) -> Result<(), PortError>;

    /// Attaches a program that drops every frame to an interface without a port, unless one of the switch is attached.
    fn block_interface(&self, interface: &str) -> Result<(), PortError>;

    /// Like [`DataplaneApi::block_interface`] for an interface that has just appeared, by its index.
    fn block_new_interface(&self, index: u32, interface: &str) -> Result<(), PortError>;

    /// Detaches the program of [`DataplaneApi::block_interface`].
    fn unblock_interface(&self, interface: &str) -> Result<(), PortError>;

    /// Publishes a desired state for the workers' next batches. Returns when the last worker uses it.
    ///
    /// Uplinks take the frames of a pod from the kernel before the workers know the pod, and until they have forgotten it.
    ///
    /// Fails if a worker does not take the state in time. It is published all the same, and holds for the other workers.
    ///
    /// Panics on tables that [`RuleTables::check`](crate::tables::RuleTables::check) rejects.
    fn publish(&self, desired: DesiredState) -> Result<Generation, PublishError>;

    /// Path of a new connection under the snapshot that the workers use. One to a Service gets this backend, if it may.
    fn path(&self, flow: &FlowKey, backend: Option<SocketAddr>) -> FlowPath;

    /// Decisions on a connection, whose destination is no Service's: cheaper than its path, which has them too.
    fn decisions(&self, flow: &FlowKey) -> FlowDecisions;

    /// Routes of the snapshot that the workers use, by prefix.
    fn routes(&self) -> Vec<RouteReport>;

    /// Route of an address, with the neighbour that gets its packets.
    fn route_of(&self, address: IpAddr) -> Option<RouteReport>;

    /// All counters since the start.
    fn counters(&self) -> Counters;

    /// Conditions that the operator should know, one sentence each.
    fn problems(&self) -> Vec<String>;
}
