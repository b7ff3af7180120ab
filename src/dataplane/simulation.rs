//! Dataplane on in-memory ports that its caller drives, for tests, simulation and micro-benchmarks. The
//! pipeline, the workers and conntrack are those of [`Dataplane`](super::Dataplane); the caller supplies
//! threads, interfaces and the clock.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crossbeam::channel::bounded;

use super::core::Core;
use super::endpoints::Link;
use super::fib::port::PortView;
use super::worker::Worker;
use super::worker::handoff::{self, Access};
use super::worker::mailbox::Command;
use super::{
    Counters, DesiredState, FlowInfo, FlowPath, Mac, PortCounters, PortError, PortKind, RouteReport,
    ServiceFlows, Settings, StartError,
};
use crate::ids::{Generation, PortId, WorkerId};
use crate::net::address::{pack, unpack};
use crate::net::flow::FlowKey;
use crate::tables::ServicePortName;
use crate::xdp::{MemoryPeer, PortQueue, Umem};

/// Dataplane on in-memory ports.
pub struct Simulation {
    core: Core,
    workers: Vec<Worker>,
    start: Instant,
    /// Time since the start: the clock of the workers.
    pub now: Duration,
    ports: BTreeSet<PortId>,
}

/// In-memory port, seen from its peer.
pub struct SimulatedPort {
    /// Number of the port.
    pub id: PortId,
    /// Peers of the port's queues, one for each worker that has a queue.
    pub peers: Vec<MemoryPeer>,
}

/// Control side of a simulation, for a thread beside those of its workers.
pub struct Publisher<'a> {
    core: &'a Core,
}

impl Publisher<'_> {
    /// Publishes a desired state and waits until every worker has observed it. Returns `None` if that takes
    /// longer than `timeout`.
    pub fn publish(&self, desired: DesiredState, timeout: Duration) -> Option<Generation> {
        let in_time = Cell::new(true);
        let generation = self.core.publish(&mut self.core.state(), Some(desired), &|core, generation| {
            in_time.set(core.wait_for(generation, timeout, |_| ()));
        });
        in_time.get().then_some(generation)
    }

    /// Generation that a worker uses.
    pub fn observed_by(&self, worker: WorkerId) -> Generation {
        self.core.shared.snapshot.observed(worker)
    }
}

impl Simulation {
    /// Creates a dataplane with one worker for each of `settings.cores`, and without ports.
    pub fn new(settings: &Settings) -> Result<Simulation, StartError> {
        let start = Instant::now();
        let mut core = Core::new(settings, start)?;
        core.new_directory.keep();
        let worker = |number: usize| {
            let (umem, frames) = Umem::in_memory(settings.frames_per_worker);
            Worker::new(
                WorkerId(number as u16),
                &core.shared,
                settings.polling,
                settings.scheduling,
                umem,
                frames,
            )
            .map_err(|error| StartError::Setup(format!("no epoll instance for a worker: {error}")))
        };
        let workers = (0..core.workers()).map(worker).collect::<Result<_, _>>()?;
        Ok(Simulation { core, workers, start, now: Duration::ZERO, ports: BTreeSet::new() })
    }

    /// Opens an in-memory port with a queue for each worker.
    pub fn open_port(
        &mut self,
        kind: PortKind,
        vlan: Option<u16>,
        mtu: u16,
    ) -> Result<SimulatedPort, PortError> {
        self.open(PortView::new(kind, vlan, mtu, None), self.workers.len())
    }

    /// Opens an in-memory port with queues for the first `queues` workers only.
    ///
    /// Panics if `queues` is zero, or larger than the number of workers.
    pub fn open_port_with(
        &mut self,
        kind: PortKind,
        vlan: Option<u16>,
        mtu: u16,
        queues: usize,
    ) -> Result<SimulatedPort, PortError> {
        assert!(
            (1..=self.workers.len()).contains(&queues),
            "{queues} queues for {} workers",
            self.workers.len()
        );
        self.open(PortView::new(kind, vlan, mtu, None), queues)
    }

    /// Opens an in-memory uplink whose NIC has this Ethernet address.
    pub fn open_uplink(&mut self, mac: Mac, vlan: Option<u16>, mtu: u16) -> Result<SimulatedPort, PortError> {
        self.open(PortView::new(PortKind::Uplink, vlan, mtu, Some(mac)), self.workers.len())
    }

    fn open(&mut self, view: PortView, queues: usize) -> Result<SimulatedPort, PortError> {
        // Each port gets an interface of its own, which never changes its index.
        let number = self.ports.len() as u32;
        let mac = Mac([2, 0, 0, 0, 0, number as u8]);
        let link = Link { interface: format!("memory{number}"), index: number, mac, namespace: 0 };
        let (id, workers) = (self.core.free_port(Some(&link))?, self.workers.len());
        let is_host = view.kind == PortKind::Host;
        let view = view.with_marked_node_sockets(is_host);
        let (mtu, is_tap) = (view.mtu.into(), view.kind == PortKind::Tap);
        self.core.add_port(id, view, Some(link), &|_, _| {});
        let memory = |worker: &Worker| {
            let open = if is_tap { PortQueue::memory_tap } else { PortQueue::memory };
            open(&worker.umem().binder(), id)
        };
        let pairs: Result<Vec<_>, _> = self.workers[..queues].iter().map(memory).collect();
        let (queues, peers) = pairs?.into_iter().unzip();
        let accesses = handoff::accesses(workers, queues, mtu);
        for (worker, access) in self.workers.iter_mut().zip(accesses) {
            worker.open_port(id, access);
        }
        self.ports.insert(id);
        self.step();
        Ok(SimulatedPort { id, peers })
    }

    /// Closes a port. All of its frames are returned to the UMEM.
    pub fn close_port(&mut self, port: PortId) -> Result<(), PortError> {
        self.ports.take(&port).ok_or(PortError::Unknown(port))?;
        for (number, worker) in self.workers.iter_mut().enumerate().rev() {
            let mailbox = &self.core.shared.mailboxes[number];
            let (reply, access) = bounded(1);
            // The command queue has room: each call handles the commands that it sends.
            let _ = mailbox.send(Command::Close(port, reply));
            worker.handle_commands();
            let Access::Queue(queue, _) = access.try_recv().map_err(|_| PortError::Unknown(port))? else {
                continue;
            };
            let (reply, _done) = bounded(1);
            let _ = mailbox.send(Command::Reclaim(queue.close(), reply));
            worker.handle_commands();
        }
        self.core.remove_port(port, &|_, _| {});
        self.core.shared.neighbors.forget_uplink(port);
        self.step();
        Ok(())
    }

    /// Sets the Ethernet address of a neighbour on an uplink, or with `None` that it is unresolved, in place
    /// of the kernel.
    pub fn resolve(&mut self, port: PortId, neighbor: IpAddr, mac: Option<Mac>) {
        self.core.shared.neighbors.set_uplink_mac(port, pack(neighbor), mac);
    }

    /// Takes the neighbours on uplinks that workers have asked to resolve since the last call.
    pub fn solicitations(&mut self) -> Vec<(PortId, IpAddr)> {
        let solicitations = std::iter::from_fn(|| self.core.shared.solicit_queue.pop());
        solicitations.map(|asked| (asked.port, unpack(asked.address))).collect()
    }

    /// Publishes a desired state. Each worker observes it at its next step.
    ///
    /// Panics on tables that [`RuleTables::check`](crate::tables::RuleTables::check) rejects.
    pub fn publish(&mut self, desired: DesiredState) -> Generation {
        self.core.publish(&mut self.core.state(), Some(desired), &|_, _| {})
    }

    /// Runs one batch of every worker. Returns whether any of them had work.
    pub fn step(&mut self) -> bool {
        (0..self.workers.len()).fold(false, |busy, worker| self.step_worker(worker) | busy)
    }

    /// Runs one batch of one worker. Returns whether it had work.
    pub fn step_worker(&mut self, worker: usize) -> bool {
        self.step_worker_timed(worker, |_| ())
    }

    /// Runs [`Simulation::step_worker`] for a measurement: calls `done` with the name of each stage at its
    /// end.
    pub fn step_worker_timed(&mut self, worker: usize, done: impl FnMut(&'static str)) -> bool {
        self.workers[worker].run_batch(self.start + self.now, done)
    }

    /// Lends the workers, each as a function that runs one batch, to threads of the caller.
    pub fn workers(&mut self) -> impl Iterator<Item = impl FnMut() -> bool + Send + '_> + '_ {
        let now = self.start + self.now;
        self.workers.iter_mut().map(move |worker| move || worker.run_batch(now, |_| ()))
    }

    /// Lends the workers with the clock as an argument, and the control side to another thread.
    pub fn apart(
        &mut self,
    ) -> (Publisher<'_>, impl Iterator<Item = impl FnMut(Duration) -> bool + Send + '_> + '_) {
        let start = self.start;
        let step = move |worker: &mut Worker, now| worker.run_batch(start + now, |_| ());
        let workers = self.workers.iter_mut().map(move |worker| move |now| step(worker, now));
        (Publisher { core: &self.core }, workers)
    }

    /// Frames of a worker's UMEM: all of them, those lent to rings, and those that the worker holds.
    pub fn frames(&self, worker: usize) -> (usize, usize, usize) {
        let worker = &self.workers[worker];
        (worker.umem().frames_total(), worker.umem().frames_lent(), worker.frames_held())
    }

    /// Number of SYNs that wait for the end of the connection that has their ports.
    pub fn early_syns(&self) -> usize {
        self.workers.iter().map(Worker::early_syns).sum()
    }

    /// Reads all counters.
    pub fn counters(&self) -> Counters {
        self.core.counters()
    }

    /// Counters of the ports alone.
    pub fn port_counters(&self) -> BTreeMap<PortId, PortCounters> {
        self.core.port_counters(&self.core.state())
    }

    /// Number of flows in conntrack.
    pub fn flows_len(&self) -> usize {
        self.core.shared.conntrack.len()
    }

    /// Memory of the conntrack table, bytes.
    pub fn conntrack_bytes(&self) -> usize {
        self.core.shared.conntrack.bytes()
    }

    /// Flows that the ports of Services of the published snapshot have opened.
    pub fn service_flows(&self) -> BTreeMap<ServicePortName, ServiceFlows> {
        self.core.service_flows()
    }

    /// Path of a new connection under the published snapshot.
    pub fn path(&self, flow: &FlowKey) -> FlowPath {
        self.path_by(flow, None)
    }

    /// Path of a new connection to a Service by this backend.
    pub fn path_by(&self, flow: &FlowKey, backend: Option<SocketAddr>) -> FlowPath {
        self.core.path(flow, backend)
    }

    /// Routes of the published snapshot, by prefix.
    pub fn routes(&self) -> Vec<RouteReport> {
        self.core.routes()
    }

    /// Route of an address in the published snapshot.
    pub fn route_of(&self, address: IpAddr) -> Option<RouteReport> {
        self.core.route_of(address)
    }

    /// Ends the flows for which `wanted` returns true. Returns their number.
    pub fn end_flows(&mut self, wanted: &mut dyn FnMut(&FlowInfo) -> bool) -> u64 {
        let (core, workers) = (&self.core, &mut self.workers);
        let mut run = |worker: usize| {
            workers[worker].handle_commands();
            workers.iter_mut().for_each(|worker| _ = worker.run_batch(self.start + self.now, |_| ()));
        };
        let now_ms = self.now.as_millis() as u32;
        core.end_flows(now_ms, wanted, Duration::from_secs(5), &mut run).expect("the workers are these")
    }

    /// Lists up to `max` flows.
    pub fn flows(&self, max: usize) -> Vec<FlowInfo> {
        let mut flows = Vec::new();
        self.core.flows(self.now.as_millis() as u32, &mut |mut flow| {
            if flows.len() == max {
                return false;
            }
            [flow.egress, flow.ingress] = self.core.flow_origins(&flow.key);
            flows.push(flow);
            true
        });
        flows
    }
}
