//! Operations that only a dataplane with workers has.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::dataplane::capture::Capture;
use crate::dataplane::core::rehearsal::{Candidate, Disagreement};
use crate::dataplane::{
    DropSamples, FlowCounters, FlowEvents, FlowInfo, FlowTableReport, FlowsLeft, ServiceFlows, StuckWorker,
    WorkerTimes,
};
use crate::net::flow::FlowKey;
use crate::tables::{RuleOrigin, RuleTables, ServicePortName};

/// Threads that forward the packets of ports by AF_XDP and tap devices.
pub trait Workers: Send + Sync {
    /// Their flow table.
    fn flows(&self) -> &dyn Flows;

    /// Tables beside those in force.
    fn candidates(&self) -> &dyn CandidateTables;

    /// Captures of packets.
    fn captures(&self) -> &dyn PacketCaptures;

    /// Work and times of each worker since the start.
    fn times(&self) -> Vec<WorkerTimes>;

    /// Workers that have not come to the end of a batch for longer than `timeout`, between this call and the one before.
    fn stuck_for(&self, timeout: Duration) -> Vec<StuckWorker>;

    /// Takes the samples of dropped frames that wait.
    fn take_drop_samples(&self) -> DropSamples;

    /// Whether the kernel forwards established flows of pods on veth pairs.
    fn offloads(&self) -> bool;

    /// Reason for which XDP programs are attached without BPF links, if they are.
    fn without_links(&self) -> Option<&str>;

    /// Reason for which only tap ports can be opened, if there is one.
    fn without_xdp(&self) -> Option<&str>;

    /// Number of destinations of Services that stay with the kernel because uplinks take no more.
    fn services_left_out(&self) -> usize;
}

/// Flow table of the workers.
pub trait Flows: Send + Sync {
    /// Location of the table, and the flows restored from the process before.
    fn report(&self) -> FlowTableReport;

    /// Passes the flows to `see`, without the origins of decisions, until it returns false. Some may be missed.
    fn for_each(&self, see: &mut dyn FnMut(FlowInfo) -> bool);

    /// Origins of the egress and ingress decision on a flow under the tables in force.
    fn origins(&self, flow: &FlowKey) -> [Option<RuleOrigin>; 2];

    /// Ends the flows for which `wanted` returns true. The next packet of each is one of no known flow. Returns the number
    /// of flows that have ended, and fails if a worker does not take its part in time.
    fn end(&self, wanted: &mut dyn FnMut(&FlowInfo) -> bool) -> Result<u64, FlowsLeft>;

    /// Starts or ends the collection of events of flows.
    fn follow(&self, is_followed: bool);

    /// Takes the events of flows that wait.
    fn take_events(&self) -> FlowEvents;

    /// Counters of flows, for their export.
    fn counters(&self) -> &dyn FlowCounters;

    /// Flows that ports of Services have opened, by name of the port.
    fn of_services(&self) -> BTreeMap<ServicePortName, ServiceFlows>;
}

/// Tables that are not in force, by which the flows of the workers are judged.
pub trait CandidateTables: Send + Sync {
    /// Lays out candidate tables for the ports and pods of this moment. `None` if there is no layout, and nothing is judged.
    ///
    /// Panics on tables that [`RuleTables::check`](crate::tables::RuleTables::check) rejects.
    fn lay_out(&self, tables: &Arc<RuleTables>) -> Option<Candidate>;

    /// Whether the ports, pods and routes are still those of the candidate.
    fn fits(&self, candidate: &Candidate) -> bool;

    /// Judges a flow by the tables in force and by a candidate. Returns their difference, if there is one.
    fn judge(&self, candidate: &Candidate, key: &FlowKey) -> Option<Disagreement>;

    /// Judges all flows, and calls `differs` for those on which verdicts differ. Returns the number of flows.
    fn judge_flows(&self, candidate: &Candidate, differs: &mut dyn FnMut(Disagreement)) -> u64;

    /// Number of flows that have been evicted since the start, which nobody judges any more.
    fn flows_evicted(&self) -> u64;
}

/// Captures of packets that the workers take.
pub trait PacketCaptures: Send + Sync {
    /// Runs these captures in place of all others, at most [`CAPTURES_MAX`](crate::limits::CAPTURES_MAX).
    fn run(&self, captures: Vec<Arc<Capture>>);

    /// Time since the start, the clock of captured packets.
    fn clock(&self) -> Duration;
}
