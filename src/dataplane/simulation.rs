//! A dataplane on memory ports that its caller drives: for tests, simulation and micro-benchmarks. The stages, the worker
//! and conntrack are those of the real one; threads, interfaces and the clock are the caller's.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crossbeam::channel::bounded;

use super::core::Core;
use super::endpoints::Link;
use super::fib::port::PortProperties;
use super::worker::Worker;
use super::worker::handoff::{self, Access};
use super::worker::mailbox::Command;
use super::{Counters, DesiredState, FlowInfo, FlowPath, Mac, PortError, PortKind, Settings, StartError};
use crate::ids::{Generation, PortId, WorkerId};
use crate::net::address::{pack, unpack};
use crate::net::flow::FlowKey;
use crate::xdp::{MemoryPeer, PortQueue, Umem};

/// The dataplane.
pub struct Simulation {
    core: Core,
    workers: Vec<Worker>,
    start: Instant,
    /// Time since the start, as the workers see it.
    pub now: Duration,
    ports: BTreeSet<PortId>,
}

/// A memory port, seen from outside.
pub struct SimulatedPort {
    /// Its number.
    pub id: PortId,
    /// The other side of each worker's queue, of those that have one.
    pub peers: Vec<MemoryPeer>,
}

/// The control side of a simulation, for a thread beside those of its workers.
pub struct Publisher<'a> {
    core: &'a Core,
}

impl Publisher<'_> {
    /// Publishes a world, and waits until every worker judges by it; `None` where that takes longer than `patience`.
    pub fn publish(&self, desired: DesiredState, patience: Duration) -> Option<Generation> {
        let in_time = Cell::new(true);
        let generation = self.core.publish(&mut self.core.state(), Some(desired), &|core, generation| {
            in_time.set(core.wait_for(generation, patience, |_| ()));
        });
        in_time.get().then_some(generation)
    }

    /// The generation that a worker judges by.
    pub fn judged_by(&self, worker: WorkerId) -> Generation {
        self.core.shared.snapshot.observed(worker)
    }
}

impl Simulation {
    /// A dataplane with as many workers as `settings` has cores, and no port.
    pub fn new(settings: &Settings) -> Result<Simulation, StartError> {
        let start = Instant::now();
        let core = Core::new(settings, start)?;
        let worker = |number: usize| {
            let (umem, frames) = Umem::in_memory(settings.frames_per_worker);
            Worker::new(WorkerId(number as u16), &core.shared, settings.polling, umem, frames)
                .map_err(|error| StartError::Setup(format!("no epoll instance for a worker: {error}")))
        };
        let workers = (0..core.workers()).map(worker).collect::<Result<_, _>>()?;
        Ok(Simulation { core, workers, start, now: Duration::ZERO, ports: BTreeSet::new() })
    }

    /// Opens a port in memory.
    pub fn open_port(
        &mut self,
        kind: PortKind,
        vlan: Option<u16>,
        mtu: u16,
    ) -> Result<SimulatedPort, PortError> {
        self.open(PortProperties { kind, vlan: vlan.unwrap_or(0), mtu, mac: None }, self.workers.len())
    }

    /// Opens a port in memory that only the first `queues` workers have a queue of. Panics where they are none, or more than
    /// there are workers.
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
        self.open(PortProperties { kind, vlan: vlan.unwrap_or(0), mtu, mac: None }, queues)
    }

    /// Opens an uplink in memory whose NIC has this Ethernet address.
    pub fn open_uplink(&mut self, mac: Mac, vlan: Option<u16>, mtu: u16) -> Result<SimulatedPort, PortError> {
        let properties =
            PortProperties { kind: PortKind::Uplink, vlan: vlan.unwrap_or(0), mtu, mac: Some(mac) };
        self.open(properties, self.workers.len())
    }

    fn open(&mut self, properties: PortProperties, queues: usize) -> Result<SimulatedPort, PortError> {
        // As if each port's interface were there for good.
        let number = self.ports.len() as u32;
        let mac = Mac([2, 0, 0, 0, 0, number as u8]);
        let link = Link { interface: format!("memory{number}"), index: number, mac, namespace: 0 };
        let (id, workers) = (self.core.free_port(Some(&link))?, self.workers.len());
        self.core.add_port(id, properties, Some(link), &|_, _| {});
        let memory = |worker: &Worker| PortQueue::memory(&worker.umem().binder(), id);
        let pairs: Result<Vec<_>, _> = self.workers[..queues].iter().map(memory).collect();
        let (queues, peers) = pairs?.into_iter().unzip();
        let accesses = handoff::accesses(workers, queues, properties.mtu.into());
        for (worker, access) in self.workers.iter_mut().zip(accesses) {
            worker.open_port(id, access);
        }
        self.ports.insert(id);
        self.step();
        Ok(SimulatedPort { id, peers })
    }

    /// Closes a port; its frames are back when this returns.
    pub fn close_port(&mut self, port: PortId) -> Result<(), PortError> {
        self.ports.take(&port).ok_or(PortError::Unknown(port))?;
        for (number, worker) in self.workers.iter_mut().enumerate().rev() {
            let mailbox = &self.core.shared.mailboxes[number];
            let (reply, access) = bounded(1);
            // The mailbox is empty between two calls: every call obeys what it has sent.
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

    /// Says what the kernel of a real dataplane would: the Ethernet address of a neighbour on an uplink, or that it has none.
    pub fn resolve(&mut self, port: PortId, neighbor: IpAddr, mac: Option<Mac>) {
        self.core.shared.neighbors.set_uplink_mac(port, pack(neighbor), mac);
    }

    /// Neighbours on uplinks that workers want resolved, since this was asked last.
    pub fn questions(&mut self) -> Vec<(PortId, IpAddr)> {
        let questions = std::iter::from_fn(|| self.core.shared.solicit_queue.pop());
        questions.map(|(port, address)| (port, unpack(address))).collect()
    }

    /// Publishes a world; each worker sees it from its next step on.
    ///
    /// Panics on tables that [`RuleTables::check`](crate::tables::RuleTables::check) refuses.
    pub fn publish(&mut self, desired: DesiredState) -> Generation {
        self.core.publish(&mut self.core.state(), Some(desired), &|_, _| {})
    }

    /// One batch of every worker. Whether any had something to do.
    pub fn step(&mut self) -> bool {
        (0..self.workers.len()).fold(false, |busy, worker| self.step_worker(worker) | busy)
    }

    /// One batch of one worker. Whether it had something to do.
    pub fn step_worker(&mut self, worker: usize) -> bool {
        self.step_worker_timed(worker, |_| ())
    }

    /// [`Simulation::step_worker`], for who measures: `done` is called at the end of each part, with its name.
    pub fn step_worker_timed(&mut self, worker: usize, done: impl FnMut(&'static str)) -> bool {
        self.workers[worker].run_batch(self.start + self.now, done)
    }

    /// Hands the workers out, to be stepped by threads of the caller's.
    pub fn workers(&mut self) -> impl Iterator<Item = impl FnMut() -> bool + Send + '_> + '_ {
        let now = self.start + self.now;
        self.workers.iter_mut().map(move |worker| move || worker.run_batch(now, |_| ()))
    }

    /// Hands the workers out to one thread, with the clock as an argument, and the control side to another.
    pub fn apart(
        &mut self,
    ) -> (Publisher<'_>, impl Iterator<Item = impl FnMut(Duration) -> bool + Send + '_> + '_) {
        let start = self.start;
        let step = move |worker: &mut Worker, now| worker.run_batch(start + now, |_| ());
        let workers = self.workers.iter_mut().map(move |worker| move |now| step(worker, now));
        (Publisher { core: &self.core }, workers)
    }

    /// Frames that a worker's UMEM has, and where they are: lent to rings, held outside of them.
    pub fn frames(&self, worker: usize) -> (usize, usize, usize) {
        let worker = &self.workers[worker];
        (worker.umem().frames_total(), worker.umem().frames_lent(), worker.frames_held())
    }

    /// All counters.
    pub fn counters(&self) -> Counters {
        self.core.counters()
    }

    /// Number of flows in conntrack.
    pub fn flows_len(&self) -> usize {
        self.core.shared.conntrack.len()
    }

    /// Bytes of memory of the conntrack table.
    pub fn conntrack_bytes(&self) -> usize {
        self.core.shared.conntrack.bytes()
    }

    /// Path of a new connection under the published snapshot.
    pub fn path(&self, flow: &FlowKey) -> FlowPath {
        self.core.path(flow)
    }

    /// Up to `max` flows.
    pub fn flows(&self, max: usize) -> Vec<FlowInfo> {
        self.core.flows(self.now.as_millis() as u32, max, &mut |_| true)
    }
}
