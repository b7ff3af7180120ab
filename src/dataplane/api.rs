//! Operations of the dataplane that the control side uses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use super::capture::Capture;
use super::core::rehearsal::{Candidate, Disagreement};
use super::engine::{Dataplane, Guards, WORKER_TIMEOUT, link_of};
use super::port_attachment::{PortAttachment, check_tap};
use super::{
    Backend, Counters, DesiredState, DropSamples, FlowCounters, FlowEvents, FlowInfo, FlowPath,
    FlowTableReport, FlowsLeft, NotTaken, PortError, PortHealth, PortKind, PortReport, PortSpec, RouteReport,
    ServiceFlows, StuckWorker, WorkerTimes,
};
use crate::ids::{Generation, PortId};
use crate::net::flow::FlowKey;
use crate::netlink::{Interface, NetlinkError};
use crate::tables::{RuleOrigin, RuleTables, ServicePortName};
use crate::xdp::{Guard, Pins, Program};

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

    /// Conditions that the operator should know, one sentence each.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    /// Path of a new connection under the snapshot that the workers use.
    fn path(&self, flow: &FlowKey) -> FlowPath;

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

    /// Location of the flow table, and the flows restored from the process before.
    fn flow_table(&self) -> FlowTableReport {
        FlowTableReport::default()
    }
}

impl DataplaneApi for Dataplane {
    fn open_port(&self, spec: &PortSpec) -> Result<PortReport, PortError> {
        let mut ports = self.ports();
        if spec.kind == PortKind::Tap {
            return self.open_tap(&mut ports, spec);
        }
        if let Some(reason) = &self.without_xdp {
            let interface = &spec.interface;
            return Err(PortError::Kernel(format!(
                "interface {interface} needs AF_XDP, and the switch has started without it: {reason}"
            )));
        }
        let link = link_of(&Interface::find(&spec.interface)?);
        let id = self.core.free_port(link.as_ref())?;
        self.open_with_id(&mut ports, id, spec, |view, interface| {
            self.core.add_port(id, view, link_of(interface), &self.wait_for_workers());
        })
    }

    fn reopen_port(&self, port: PortId, spec: &PortSpec) -> Result<PortReport, PortError> {
        let mut ports = self.ports();
        let open = ports.remove(&port).ok_or(PortError::Unknown(port))?;
        let reopened = self.close_queues(port).and_then(|()| {
            let interface = Interface::with_index(open.interface.index)?.name;
            let spec = PortSpec { interface, ..spec.clone() };
            self.open_with_id(&mut ports, port, &spec, |view, _| {
                self.core.change_port(port, view, &self.wait_for_workers());
            })
        });
        if reopened.is_err() {
            self.forget_port(port);
            // The interface is blocked like any without a port. If that fails its own program stays, which
            // drops every frame too.
            if let Ok(interface) = Interface::with_index(open.interface.index) {
                let _ = self.close_interface(&interface, open.attachment.program().and_then(Program::id));
            }
        }
        reopened
    }

    fn check_port(&self, port: PortId) -> Result<PortHealth, PortError> {
        let mut ports = self.ports();
        let open = ports.get_mut(&port).ok_or(PortError::Unknown(port))?;
        self.release_services(open);
        let was = &open.interface;
        let program = match &open.attachment {
            PortAttachment::Program(program) => program,
            PortAttachment::Tap(device, namespace) => return check_tap(device, namespace),
        };
        let is = match Interface::with_index(was.index) {
            Ok(is) => is,
            Err(NetlinkError::NoInterface { .. }) => return Ok(PortHealth::Gone),
            Err(error) => return Err(error.into()),
        };
        if !program.holds() {
            // The interface is blocked first, because opening the port again takes time. An uplink stays
            // open, because the kernel uses it too.
            if !program.has_prefixes()
                && let Err(error) = self.close_interface(&is, None)
            {
                tracing::error!(interface = is.name, "the interface has lost its XDP program: {error}");
            }
            return Ok(PortHealth::Unguarded);
        }
        let changed = |what: &str, was: &dyn std::fmt::Display, is: &dyn std::fmt::Display| {
            Ok(PortHealth::Changed(format!("{what} {is}, and was {was}")))
        };
        if is.mtu != was.mtu {
            return changed("its MTU is", &was.mtu, &is.mtu);
        }
        if is.queues() != was.queues() || is.rx_queues != was.rx_queues {
            let count =
                |of: &Interface| format!("{} receive and {} transmit queues", of.rx_queues, of.tx_queues);
            return changed("it has", &count(was), &count(&is));
        }
        if is.mac != was.mac && program.has_prefixes() {
            return changed("its Ethernet address is", &was.mac, &is.mac);
        }
        let obstacle = match (is.is_up, is.has_carrier) {
            (false, _) => Some(format!("interface {0} is set down: `ip link set {0} up`", is.name)),
            (true, false) => Some(format!(
                "interface {} has no carrier: its other end is down, or no cable is in it",
                is.name
            )),
            (true, true) => None,
        };
        Ok(PortHealth::Good { interface: is.name, obstacle })
    }

    fn block_interface(&self, interface: &str) -> Result<(), PortError> {
        Ok(self.close_interface(&Interface::find(interface)?, None)?)
    }

    fn block_new_interface(&self, index: u32, name: &str) -> Result<(), PortError> {
        let close = |guard: &Guard, pins: Option<&Pins>| guard.close_new(index, name, pins);
        Ok(self.close_with(index, close)?)
    }

    fn unblock_interface(&self, interface: &str) -> Result<(), PortError> {
        let mut guards = self.guards();
        let (Ok(interface), Some(Guards { guard, on })) = (Interface::find(interface), &mut *guards) else {
            return Ok(());
        };
        if on.remove(&interface.index) {
            guard.open(&interface, self.pins.as_ref().ok())?;
        }
        Ok(())
    }

    fn without_links(&self) -> Option<&str> {
        self.pins.as_ref().err().map(String::as_str)
    }

    fn without_xdp(&self) -> Option<&str> {
        self.without_xdp.as_deref()
    }

    fn workers_stuck_for(&self, patience: Duration) -> Vec<StuckWorker> {
        self.stuck_for(patience)
    }

    fn close_port(&self, port: PortId, detach: bool) -> Result<(), PortError> {
        let mut ports = self.ports();
        let open = ports.remove(&port).ok_or(PortError::Unknown(port))?;
        self.close_queues(port)?;
        self.forget_port(port);
        if detach {
            open.attachment.detach()?;
        }
        Ok(())
    }

    fn publish(&self, desired: DesiredState) -> Result<Generation, NotTaken> {
        let mut ports = self.ports();
        let before = self.core.desired();
        let wait = self.wait_for_workers();
        let publish =
            |desired| self.check_observed(self.core.publish(&mut self.core.state(), Some(desired), &wait));
        let uplinks = ports.values_mut().filter(|port| port.attachment.has_prefixes());
        let mut uplinks: Vec<_> = uplinks.collect();
        if uplinks.is_empty() {
            return publish(desired);
        }
        let wanted = desired.uplink_prefixes();
        let both: BTreeSet<IpNet> = wanted.union(&before.uplink_prefixes()).copied().collect();
        if let Some(resolver) = &*self.resolver() {
            resolver.keep_resolved(&desired.routes);
        }
        uplinks.iter_mut().for_each(|port| port.set_prefixes(&both));
        let generation = publish(desired)?;
        for port in uplinks {
            port.set_prefixes(&wanted);
            self.set_services(port);
        }
        Ok(generation)
    }

    fn counters(&self) -> Counters {
        let mut counters = self.core.counters();
        for (id, losses) in &mut *self.losses() {
            if let Some(port) = counters.ports.get_mut(id) {
                port.lost = losses.read().by_name();
            }
        }
        counters
    }

    fn worker_times(&self) -> Vec<WorkerTimes> {
        self.core.worker_times()
    }

    fn run_captures(&self, captures: Vec<Arc<Capture>>) {
        self.core.shared.captures.run(captures);
    }

    fn clock(&self) -> Duration {
        self.core.shared.start.elapsed()
    }

    fn take_drop_samples(&self) -> DropSamples {
        self.core.take_drop_samples()
    }

    fn candidate(&self, tables: &Arc<RuleTables>) -> Option<Candidate> {
        Some(self.core.candidate(tables.clone()))
    }

    fn fits(&self, candidate: &Candidate) -> bool {
        self.core.fits(candidate)
    }

    fn judge(&self, candidate: &Candidate, key: &FlowKey) -> Option<Disagreement> {
        self.core.judge(candidate, key)
    }

    fn judge_flows(&self, candidate: &Candidate, differs: &mut dyn FnMut(Disagreement)) -> u64 {
        self.core.judge_flows(candidate, differs)
    }

    fn flow_table(&self) -> FlowTableReport {
        self.core.flow_table().clone()
    }

    fn path(&self, flow: &FlowKey) -> FlowPath {
        self.core.path(flow)
    }

    fn routes(&self) -> Vec<RouteReport> {
        self.core.routes()
    }

    fn route_of(&self, address: IpAddr) -> Option<RouteReport> {
        self.core.route_of(address)
    }

    fn flows(&self, see: &mut dyn FnMut(FlowInfo) -> bool) {
        self.core.flows(self.core.clock_ms(), see);
    }

    fn flow_origins(&self, flow: &FlowKey) -> [Option<RuleOrigin>; 2] {
        self.core.flow_origins(flow)
    }

    fn follow_flows(&self, is_followed: bool) {
        self.core.shared.flow_events.follow(is_followed);
    }

    fn take_flow_events(&self) -> FlowEvents {
        self.core.take_flow_events()
    }

    fn flow_counters(&self) -> Option<&dyn FlowCounters> {
        Some(&self.core)
    }

    fn service_flows(&self) -> BTreeMap<ServicePortName, ServiceFlows> {
        self.core.service_flows()
    }

    fn end_flows(&self, wanted: &mut dyn FnMut(&FlowInfo) -> bool) -> Result<u64, FlowsLeft> {
        self.core.end_flows(self.core.clock_ms(), wanted, WORKER_TIMEOUT, &mut |_| ())
    }
}
