//! Operations of the dataplane that the control side uses.

mod engine;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::capture::Capture;
use super::core::rehearsal::{Candidate, Disagreement};
use super::engine::WORKER_TIMEOUT;
use super::{
    Backend, Counters, DesiredState, DropSamples, FlowCounters, FlowDecisions, FlowEvents, FlowInfo,
    FlowPath, FlowTableReport, FlowsLeft, NotTaken, PortError, PortHealth, PortReport, PortSpec, RouteReport,
    ServiceFlows, StuckWorker, WorkerTimes,
};
use crate::ids::{Generation, PortId};
use crate::net::flow::FlowKey;
use crate::tables::{RuleOrigin, RuleTables, ServicePortName};

/// Operations of a dataplane that the control side uses. Each method may be called from any thread and may block.
///
/// Tests implement it to run the control side without privilege. A dataplane without kernel interfaces, such as a
/// simulated one, keeps the default methods.
pub trait DataplaneApi: Send + Sync {
    /// Opens a port. Each of the first workers gets one of its queues. If it has fewer queues than there are workers, the
    /// others hand frames off to these. Frames of a pod are dropped until a published state places the pod on the port.
    fn open_port(&self, spec: &PortSpec) -> Result<PortReport, PortError>;

    /// Closes a port. On return no worker uses it and its frames are back in the UMEM. Its XDP program is detached with
    /// `detach`, and drops every frame without.
    fn close_port(&self, port: PortId, detach: bool) -> Result<(), PortError>;

    /// Publishes a desired state for the workers' next batches. Returns when the last worker uses it.
    ///
    /// Uplinks take the frames of a pod from the kernel before the workers know the pod, and until they have forgotten it.
    ///
    /// Fails if a worker does not take the state in time. It is published all the same, and holds for the other workers.
    ///
    /// Panics on tables that [`RuleTables::check`](crate::tables::RuleTables::check) rejects.
    fn publish(&self, desired: DesiredState) -> Result<Generation, NotTaken>;

    /// Program that forwards the packets.
    fn backend(&self) -> Backend {
        Backend::AfXdp
    }

    /// Whether the kernel forwards established flows of pods on veth pairs.
    fn offloads(&self) -> bool {
        false
    }

    /// Conditions that the operator should know, one sentence each.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    /// Path of a new connection under the snapshot that the workers use. One to a Service gets this backend, if it may.
    fn path(&self, flow: &FlowKey, backend: Option<SocketAddr>) -> FlowPath;

    /// Decisions on a connection, whose destination is no Service's: cheaper than its path, which has them too.
    fn decisions(&self, flow: &FlowKey) -> FlowDecisions {
        let FlowPath { generation, egress, ingress, .. } = self.path(flow, None);
        FlowDecisions { generation, egress, ingress }
    }

    /// Opens a port again after a change of its interface, whose name may have changed too. The pod behind it keeps its
    /// connections. On failure the port is closed, and its program drops every frame.
    fn reopen_port(&self, port: PortId, _spec: &PortSpec) -> Result<PortReport, PortError> {
        Err(PortError::Unknown(port))
    }

    /// Compares an open port with the state of its interface in the kernel.
    fn check_port(&self, port: PortId) -> Result<PortHealth, PortError> {
        Err(PortError::Unknown(port))
    }

    /// Attaches a program that drops every frame to an interface without a port, unless one of the switch is attached.
    fn block_interface(&self, _interface: &str) -> Result<(), PortError> {
        Ok(())
    }

    /// Like [`DataplaneApi::block_interface`] for an interface that has just appeared, by its index.
    fn block_new_interface(&self, _index: u32, interface: &str) -> Result<(), PortError> {
        self.block_interface(interface)
    }

    /// Detaches the program of [`DataplaneApi::block_interface`].
    fn unblock_interface(&self, _interface: &str) -> Result<(), PortError> {
        Ok(())
    }

    /// Workers that have not come to the end of a batch for longer than `patience`, between this call and the one before.
    fn workers_stuck_for(&self, _patience: Duration) -> Vec<StuckWorker> {
        Vec::new()
    }

    /// Workers that have not come to the end of a batch for longer than any batch takes.
    fn stuck_workers(&self) -> Vec<StuckWorker> {
        self.workers_stuck_for(WORKER_TIMEOUT)
    }

    /// Routes of the snapshot that the workers use, by prefix.
    fn routes(&self) -> Vec<RouteReport> {
        Vec::new()
    }

    /// Route of an address, with the neighbour that gets its packets.
    fn route_of(&self, _address: IpAddr) -> Option<RouteReport> {
        None
    }

    /// Reason for which XDP programs are attached without BPF links, if they are.
    fn without_links(&self) -> Option<&str> {
        None
    }

    /// Reason for which only tap ports can be opened, if there is one.
    fn without_xdp(&self) -> Option<&str> {
        None
    }

    /// All counters since the start.
    fn counters(&self) -> Counters {
        Counters::default()
    }

    /// Work and times of each worker since the start.
    fn worker_times(&self) -> Vec<WorkerTimes> {
        Vec::new()
    }

    /// Runs these captures in place of all others, at most [`CAPTURES_MAX`](crate::limits::CAPTURES_MAX).
    fn run_captures(&self, _captures: Vec<Arc<Capture>>) {}

    /// Time since the start, the clock of captured packets.
    fn clock(&self) -> Duration {
        Duration::ZERO
    }

    /// Takes the samples of dropped frames that wait.
    fn take_drop_samples(&self) -> DropSamples {
        DropSamples::default()
    }

    /// Passes the flows to `see`, without the origins of decisions, until it returns false. Some may be missed.
    fn flows(&self, _see: &mut dyn FnMut(FlowInfo) -> bool) {}

    /// Origins of the egress and ingress decision on a flow under the tables in force.
    fn flow_origins(&self, _flow: &FlowKey) -> [Option<RuleOrigin>; 2] {
        [None, None]
    }

    /// Starts or ends the collection of events of flows.
    fn follow_flows(&self, _is_followed: bool) {}

    /// Takes the events of flows that wait.
    fn take_flow_events(&self) -> FlowEvents {
        FlowEvents::default()
    }

    /// Counters of flows, for their export. `None` for a dataplane without flows.
    fn flow_counters(&self) -> Option<&dyn FlowCounters> {
        None
    }

    /// Ends the flows for which `wanted` returns true. The next packet of each is one of no known flow. Returns the number
    /// of flows that have ended, and fails if a worker does not take its part in time.
    fn end_flows(&self, _wanted: &mut dyn FnMut(&FlowInfo) -> bool) -> Result<u64, FlowsLeft> {
        Ok(0)
    }

    /// Lays out candidate tables for the ports and pods of this moment. `None` for a dataplane without flows.
    ///
    /// Panics on tables that [`RuleTables::check`](crate::tables::RuleTables::check) rejects.
    fn candidate(&self, _tables: &Arc<RuleTables>) -> Option<Candidate> {
        None
    }

    /// Whether the ports, pods and routes are still those of the candidate.
    fn fits(&self, _candidate: &Candidate) -> bool {
        true
    }

    /// Judges a flow by the tables in force and by a candidate. Returns their difference, if there is one.
    fn judge(&self, _candidate: &Candidate, _key: &FlowKey) -> Option<Disagreement> {
        None
    }

    /// Judges all flows, and calls `differs` for those on which verdicts differ. Returns the number of flows.
    fn judge_flows(&self, _candidate: &Candidate, _differs: &mut dyn FnMut(Disagreement)) -> u64 {
        0
    }

    /// Flows that ports of Services have opened, by name of the port.
    fn service_flows(&self) -> BTreeMap<ServicePortName, ServiceFlows> {
        BTreeMap::new()
    }

    /// Number of destinations of Services that stay with the kernel because uplinks take no more.
    fn services_left_out(&self) -> usize {
        0
    }

    /// Location of the flow table, and the flows restored from the process before.
    fn flow_table(&self) -> FlowTableReport {
        FlowTableReport::default()
    }
}
