//! The handle of a running dataplane: its threads, its interfaces.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::bounded;
use ipnet::IpNet;

use super::core::Core;
use super::endpoints::Link;
use super::fib::port::PortProperties;
use super::neighbor::resolver::Resolver;
use super::uplink::{self, Uplink};
use super::worker::Worker;
use super::worker::handoff::{self, Access};
use super::worker::mailbox::{Command, Mailbox};
use super::worker::reschedule::Rescheduler;
use super::{
    Counters, DesiredState, FlowInfo, FlowPath, FlowTableReport, NotTaken, PortError, PortHealth, PortKind,
    PortReport, PortSpec, Settings, StartError, StuckWorker,
};
use crate::ids::{Generation, PortId, WorkerId};
use crate::limits::MTU_MAX;
use crate::net::flow::FlowKey;
use crate::netlink::{Interface, NetlinkError};
use crate::threads;
use crate::xdp::{
    Binder, ClosedQueue, Guard, LossCounters, Pins, PortQueue, Program, Umem, XdpError, check_mtu, one_frame,
};

/// Longest wait for a worker to come to the end of a batch. A worker that takes longer is stuck, and everything with it.
const WORKER_TIMEOUT: Duration = Duration::from_secs(5);

/// A running dataplane: its workers, and the way to talk to them.
pub struct Dataplane {
    core: Core,
    binders: Vec<Binder>,
    prefer_busy_poll: bool,
    threads: Vec<JoinHandle<Vec<PortQueue>>>,
    /// One for each worker.
    reschedulers: Vec<Rescheduler>,
    ports: Mutex<BTreeMap<PortId, OpenPort>>,
    /// Kernel counters of the open ports. Locked for moments only, unlike `ports`.
    losses: Mutex<BTreeMap<PortId, LossCounters>>,
    /// Runs from the first uplink on.
    resolver: Mutex<Option<Resolver>>,
    /// The files that keep the links of XDP programs; or why there are none.
    pins: Result<Pins, String>,
    /// Closes interfaces that no port has yet; loaded when the first one comes.
    guards: Mutex<Option<Guards>>,
    /// Whether the start has succeeded: from then on programs of earlier runs are not brought back.
    is_started: AtomicBool,
    /// Turns of each worker's loop, and since when they have been so many.
    turns: Mutex<Vec<(u64, Instant)>>,
}

/// What becomes of the ports' interfaces when the dataplane stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownMode {
    /// The XDP programs stay and drop everything.
    Closed,
    /// The XDP programs go, and the kernel has the interfaces.
    Detached,
    /// As before the start: interfaces that an earlier run had left closed stay closed, the others are the kernel's.
    AsFound,
}

/// The program that closes interfaces, and the kernel's numbers of those that it was put on.
struct Guards {
    guard: Arc<Guard>,
    on: BTreeSet<u32>,
}

struct OpenPort {
    /// As it was when the port was opened.
    interface: Interface,
    program: Program,
}

impl OpenPort {
    /// Takes these prefixes, and no others, from the kernel.
    fn set_prefixes(&mut self, prefixes: &BTreeSet<IpNet>) {
        if let Err(error) = self.program.set_prefixes(prefixes) {
            tracing::error!(
                interface = self.interface.name,
                "an uplink does not take all that is for its pods: {error}"
            );
        }
    }
}

impl Dataplane {
    /// Starts the workers. They forward nothing until ports are opened and a world is published.
    pub fn start(settings: &Settings) -> Result<Dataplane, StartError> {
        let core = Core::new(settings, boot_instant())?;
        tracing::info!("{}", core.flow_table());
        let mut binders = Vec::new();
        let mut workers = Vec::new();
        for worker in 0..core.workers() {
            let (umem, frames) = Umem::new(settings.frames_per_worker, settings.huge_pages)
                .map_err(|error| StartError::Setup(error.to_string()))?;
            binders.push(umem.binder());
            let id = WorkerId(worker as u16);
            let worker = Worker::new(id, &core.shared, settings.polling, umem, frames);
            workers.push(worker.map_err(|error| {
                StartError::Setup(format!("the kernel gives no epoll instance to a worker: {error}"))
            })?);
        }
        let (ports, losses, resolver) = (Mutex::default(), Mutex::default(), Mutex::default());
        let prefer_busy_poll = settings.prefer_busy_poll;
        let reschedulers = reschedulers(&settings.cores)?;
        let pins = Pins::open(&settings.pin_directory);
        let turns = Mutex::new(vec![(0, Instant::now()); core.workers()]);
        let mut dataplane = Dataplane {
            core,
            binders,
            prefer_busy_poll,
            threads: Vec::new(),
            reschedulers,
            ports,
            losses,
            resolver,
            pins,
            guards: Mutex::default(),
            is_started: AtomicBool::new(false),
            turns,
        };
        for (worker, core) in workers.into_iter().zip(&settings.cores) {
            dataplane.threads.push(spawn(worker, *core)?);
        }
        Ok(dataplane)
    }

    /// Waits for the workers; one that is stuck has stopped the switch already, and waiting longer mends nothing.
    fn wait_for_workers(&self) -> impl Fn(&Core, Generation) {
        |core, generation| {
            if !core.wait_for(generation, WORKER_TIMEOUT, |late| self.reschedulers[late.index()].nudge()) {
                tracing::error!(%generation, "a worker has not come to the end of a batch for {WORKER_TIMEOUT:?}");
            }
        }
    }

    fn resolver(&self) -> MutexGuard<'_, Option<Resolver>> {
        self.resolver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn losses(&self) -> MutexGuard<'_, BTreeMap<PortId, LossCounters>> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what the kernel loses of a port by its new queues, besides what it lost by those before.
    fn count_losses(
        &self,
        port: PortId,
        interface: &Interface,
        queues: &[PortQueue],
    ) -> Result<(), XdpError> {
        let mut losses = self.losses();
        let earlier = losses.get(&port).map(LossCounters::sum).unwrap_or_default();
        losses.insert(port, LossCounters::of(interface, queues, earlier)?);
        Ok(())
    }

    /// Lets go of the queues of a port, which are going to be closed: the counters hold their sockets open.
    fn release_losses(&self, port: PortId) {
        if let Some(losses) = self.losses().get_mut(&port) {
            losses.close();
        }
    }

    fn ports(&self) -> MutexGuard<'_, BTreeMap<PortId, OpenPort>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a port. The first workers get a queue of it each; where it has fewer, the others hand over to these. Frames of pods that the published state does not place there are dropped.
    pub fn open_port(&self, spec: &PortSpec) -> Result<PortReport, PortError> {
        let mut ports = self.ports();
        let link = link_of(&Interface::find(&spec.interface)?);
        let id = self.core.free_port(link.as_ref())?;
        self.open_with_id(&mut ports, id, spec, |properties, interface| {
            self.core.add_port(id, properties, link_of(interface), &self.wait_for_workers());
        })
    }

    /// Opens a port anew whose interface has changed, by whatever name it has now. Whoever is behind it stays there, and keeps
    /// connections. Where it fails the port is closed, and its program drops everything.
    pub fn reopen_port(&self, port: PortId, spec: &PortSpec) -> Result<PortReport, PortError> {
        let mut ports = self.ports();
        let open = ports.remove(&port).ok_or(PortError::Unknown(port))?;
        let reopened = self.close_queues(port).and_then(|()| {
            let interface = Interface::with_index(open.interface.index)?.name;
            let spec = PortSpec { interface, ..spec.clone() };
            self.open_with_id(&mut ports, port, &spec, |properties, _| {
                self.core.change_port(port, properties, &self.wait_for_workers());
            })
        });
        if reopened.is_err() {
            self.forget_port(port);
            // From here on as any interface that no port has; where that fails its own program stays, which drops as well.
            if let Ok(interface) = Interface::with_index(open.interface.index) {
                let _ = self.close_interface(&interface, open.program.id());
            }
        }
        reopened
    }

    fn open_with_id(
        &self,
        ports: &mut BTreeMap<PortId, OpenPort>,
        id: PortId,
        spec: &PortSpec,
        announce: impl FnOnce(PortProperties, &Interface),
    ) -> Result<PortReport, PortError> {
        let interface = Interface::find(&spec.interface)?;
        if ports.values().any(|port| port.interface.index == interface.index) {
            return Err(PortError::Taken { interface: spec.interface.clone() });
        }
        if !self.stuck_workers().is_empty() {
            return Err(worker_stuck());
        }
        let count = interface.queues().min(self.core.workers() as u16);
        if count == 0 {
            return Err(PortError::NoQueue {
                interface: spec.interface.clone(),
                rx: interface.rx_queues,
                tx: interface.tx_queues,
            });
        }
        for binder in &self.binders {
            check_mtu(&interface, binder.mtu_max())?;
        }
        let uplink_port = match spec.kind {
            PortKind::Uplink => Some(self.prepare_uplink(&interface, spec.vlan)?),
            PortKind::Pod | PortKind::Host => None,
        };
        let mut program = self.load(spec, &interface, count)?;
        // The queues come before the program: those of a switch that runs are taken, and its program stays.
        let opened: Result<Vec<PortQueue>, XdpError> = (0..count)
            .zip(&self.binders)
            .map(|(queue, binder)| PortQueue::open(binder, id, &interface, queue, &program))
            .collect();
        let mut queues = opened?;
        // The queues were opened by name, the program goes by number.
        if Interface::find(&spec.interface)?.index != interface.index {
            return Err(XdpError::Changed { interface: spec.interface.clone() }.into());
        }
        let mode = program.take(self.pins.as_ref().ok())?;
        self.count_losses(id, &interface, &queues)?;
        if self.is_started.load(Ordering::Relaxed) {
            program.keep();
        }
        let busy_poll = if self.prefer_busy_poll { enable_busy_poll(&interface, &mut queues) } else { None };
        let zero_copy = queues.iter().all(PortQueue::zero_copy);
        let properties = PortProperties {
            kind: spec.kind,
            vlan: spec.vlan.unwrap_or(0),
            mtu: interface.mtu.min(65_535) as u16,
            mac: uplink_port.as_ref().map(|uplink_port| uplink_port.mac),
        };
        announce(properties, &interface);
        // Those that have a queue come first: what others hand over finds who sends it.
        let accesses = handoff::accesses(self.core.workers(), queues, properties.mtu.into());
        for (mailbox, access) in self.core.shared.mailboxes.iter().zip(accesses) {
            Self::send_command(mailbox, Command::Open(id, access))?;
        }
        let is_linked = program.is_linked();
        let (interface_index, attached) = (interface.index, program.id().unwrap_or(0));
        ports.insert(id, OpenPort { interface: interface.clone(), program });
        let mut warnings = warnings(&interface, count, self.core.workers() as u16, &mode);
        warnings.extend(busy_poll);
        if self.pins.is_ok() && !is_linked {
            warnings.push(format!(
                "interface {0}: an earlier start has attached its XDP program without a BPF link, and it is not moved while pods are \
                 closed by it: `ip link set dev {0} xdp off` takes it off; to have a link, stop the switch, run that, and start again",
                interface.name
            ));
        }
        warnings.extend(self.binders.first().and_then(|binder| missing_features(&spec.interface, binder)));
        if let Some(Uplink { link, warning, .. }) = uplink_port {
            if let Some(resolver) = &*self.resolver() {
                resolver.add_uplink(id, link);
                resolver.keep_resolved(&self.core.desired().routes);
            }
            warnings.extend((!zero_copy).then(|| uplink::copy_mode_warning(&spec.interface)));
            warnings.extend(warning);
        }
        let (mtu, native) = (interface.mtu, mode.native);
        let program = attached;
        Ok(PortReport { id, interface_index, program, mtu, queues: count, native, zero_copy, warnings })
    }

    /// Compares an open port with what the kernel has of it.
    pub fn check_port(&self, port: PortId) -> Result<PortHealth, PortError> {
        let ports = self.ports();
        let open = ports.get(&port).ok_or(PortError::Unknown(port))?;
        let was = &open.interface;
        let is = match Interface::with_index(was.index) {
            Ok(is) => is,
            Err(NetlinkError::NoInterface { .. }) => return Ok(PortHealth::Gone),
            Err(error) => return Err(error.into()),
        };
        if !open.program.holds() {
            // Closed first: opening the port again takes its time. Of an uplink the rest is the kernel's.
            if !open.program.has_prefixes()
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
        if is.mac != was.mac && open.program.has_prefixes() {
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

    /// Closes an interface that no port has yet, by a program that drops all that it receives. Does nothing where a program of ours
    /// is on it already.
    pub fn guard(&self, interface: &str) -> Result<(), PortError> {
        Ok(self.close_interface(&Interface::find(interface)?, None)?)
    }

    /// The same for an interface that has only just come, by the kernel's number of it.
    pub fn guard_new(&self, index: u32, name: &str) -> Result<(), PortError> {
        let close = |guard: &Guard, pins: Option<&Pins>| guard.close_new(index, name, pins);
        Ok(self.close_with(index, close)?)
    }

    /// Closes an interface that has no program, or the one with the id `own`.
    fn close_interface(&self, interface: &Interface, own: Option<u32>) -> Result<(), XdpError> {
        self.close_with(interface.index, |guard, pins| guard.close(interface, own, pins))
    }

    fn close_with(
        &self,
        index: u32,
        close: impl FnOnce(&Guard, Option<&Pins>) -> Result<bool, XdpError>,
    ) -> Result<(), XdpError> {
        let guard = {
            let mut guards = self.guards();
            if let Some(guards) = &*guards {
                guards.guard.clone()
            } else {
                let guard = Arc::new(Guard::load()?);
                guards.insert(Guards { guard, on: BTreeSet::new() }).guard.clone()
            }
        };
        // Not while others wait: the kernel may be busy with other interfaces.
        if close(&guard, self.pins.as_ref().ok())?
            && let Some(guards) = &mut *self.guards()
        {
            guards.on.insert(index);
        }
        Ok(())
    }

    /// Takes what [`Dataplane::guard`] has put on an interface off again.
    pub fn release(&self, interface: &str) -> Result<(), PortError> {
        let mut guards = self.guards();
        let (Ok(interface), Some(Guards { guard, on })) = (Interface::find(interface), &mut *guards) else {
            return Ok(());
        };
        if on.remove(&interface.index) {
            guard.open(&interface, self.pins.as_ref().ok())?;
        }
        Ok(())
    }

    fn guards(&self) -> MutexGuard<'_, Option<Guards>> {
        self.guards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why XDP programs are not held by links, where they are not.
    pub fn without_links(&self) -> Option<&str> {
        self.pins.as_ref().err().map(String::as_str)
    }

    /// Workers that have not come to the end of a batch for longer than any batch takes. Each call compares with the one before: call
    /// it now and then.
    pub fn stuck_workers(&self) -> Vec<StuckWorker> {
        let mut seen = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let workers = self.core.shared.mailboxes.iter().zip(&mut *seen).enumerate();
        let stuck = workers.filter_map(|(number, (mailbox, (turns, since)))| {
            let now = mailbox.stats.turns.get();
            if now != *turns {
                (*turns, *since) = (now, Instant::now());
                return None;
            }
            let (worker, core) = (WorkerId(number as u16), self.core.core_of(number));
            Some(StuckWorker { worker, core, since: since.elapsed() })
                .filter(|stuck| stuck.since > WORKER_TIMEOUT)
        });
        stuck.collect()
    }

    /// Keeps what [`ShutdownMode::AsFound`] would undo: the start has succeeded.
    pub fn keep(&self) {
        self.is_started.store(true, Ordering::Relaxed);
        self.ports().values_mut().for_each(|port| port.program.keep());
    }

    /// What a port on a NIC needs before it can be opened.
    fn prepare_uplink(&self, interface: &Interface, vlan: Option<u16>) -> Result<Uplink, PortError> {
        let uplink_port = uplink::probe(interface, vlan)?;
        let mut resolver = self.resolver();
        if resolver.is_none() {
            let started = Resolver::start(&self.core.shared).map_err(|error| {
                PortError::Kernel(format!("the kernel's neighbour table cannot be followed: {error}"))
            })?;
            *resolver = Some(started);
        }
        Ok(uplink_port)
    }

    /// Loads the XDP program. That of an uplink knows its prefixes before the first frame comes.
    fn load(&self, spec: &PortSpec, interface: &Interface, queues: u16) -> Result<Program, PortError> {
        if spec.kind != PortKind::Uplink {
            return Ok(Program::load(interface, queues)?);
        }
        let prefixes = self.core.desired().uplink_prefixes();
        uplink::check_prefixes(&spec.interface, &prefixes)?;
        Ok(Program::load_uplink(interface, queues, spec.vlan.unwrap_or(0), &prefixes)?)
    }

    fn send_command(mailbox: &Mailbox, mut command: Command) -> Result<(), PortError> {
        let deadline = Instant::now() + WORKER_TIMEOUT;
        loop {
            match mailbox.send(command) {
                Ok(()) => return Ok(()),
                Err(back) if Instant::now() < deadline => command = back,
                Err(_) => return Err(worker_stuck()),
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Closes a port: when this returns no worker touches it, its XDP program is detached (`detach`) or
    /// stays and drops everything (not `detach`), and its frames are back in the UMEM.
    pub fn close_port(&self, port: PortId, detach: bool) -> Result<(), PortError> {
        let mut ports = self.ports();
        let open = ports.remove(&port).ok_or(PortError::Unknown(port))?;
        self.close_queues(port)?;
        self.forget_port(port);
        if detach {
            open.program.detach()?;
        }
        Ok(())
    }

    fn close_queues(&self, port: PortId) -> Result<(), PortError> {
        self.release_losses(port);
        // Those that hand over come first, so that none does to a worker that has closed the port.
        for mailbox in self.core.shared.mailboxes.iter().rev() {
            let (reply, access) = bounded(1);
            Self::send_command(mailbox, Command::Close(port, reply))?;
            let Access::Queue(queue, _) = access.recv_timeout(WORKER_TIMEOUT).map_err(|_| worker_stuck())?
            else {
                continue;
            };
            let closed: ClosedQueue = queue.close();
            let (reply, done) = bounded(1);
            Self::send_command(mailbox, Command::Reclaim(closed, reply))?;
            done.recv_timeout(WORKER_TIMEOUT).map_err(|_| worker_stuck())?;
        }
        Ok(())
    }

    fn forget_port(&self, port: PortId) {
        self.losses().remove(&port);
        self.core.remove_port(port, &self.wait_for_workers());
        if let Some(resolver) = &*self.resolver() {
            resolver.remove_uplink(port);
        }
    }

    /// Makes `desired` what every worker sees from its next batch on; returns when the last one has passed to it.
    ///
    /// Panics on tables that [`RuleTables::check`](crate::tables::RuleTables::check) refuses.
    ///
    /// Uplinks take what is for a pod from the kernel before the workers know the pod, and until they have forgotten it.
    ///
    /// Fails where a worker does not take it in time. It is published all the same, and holds for the others.
    pub fn publish(&self, desired: DesiredState) -> Result<Generation, NotTaken> {
        let mut ports = self.ports();
        let before = self.core.desired();
        let uplinks = ports.values_mut().filter(|port| port.program.has_prefixes());
        let mut uplinks: Vec<&mut OpenPort> = uplinks.collect();
        if uplinks.is_empty() {
            return self.check_observed(self.core.publish(desired, &self.wait_for_workers()));
        }
        let wanted = desired.uplink_prefixes();
        let both: BTreeSet<IpNet> = wanted.union(&before.uplink_prefixes()).copied().collect();
        if let Some(resolver) = &*self.resolver() {
            resolver.keep_resolved(&desired.routes);
        }
        uplinks.iter_mut().for_each(|port| port.set_prefixes(&both));
        let generation = self.check_observed(self.core.publish(desired, &self.wait_for_workers()))?;
        uplinks.iter_mut().for_each(|port| port.set_prefixes(&wanted));
        Ok(generation)
    }

    fn check_observed(&self, generation: Generation) -> Result<Generation, NotTaken> {
        let workers: Vec<WorkerId> = self.core.workers_before(generation).collect();
        if workers.is_empty() { Ok(generation) } else { Err(NotTaken { generation, workers }) }
    }

    /// The world published last.
    pub fn desired(&self) -> Arc<DesiredState> {
        self.core.desired()
    }

    /// All counters, since the start.
    pub fn counters(&self) -> Counters {
        let mut counters = self.core.counters();
        for (id, losses) in &mut *self.losses() {
            if let Some(port) = counters.ports.get_mut(id) {
                port.lost = losses.read().by_name();
            }
        }
        counters
    }

    /// Location of the flow table, and the flows restored from the process before.
    pub fn flow_table(&self) -> FlowTableReport {
        self.core.flow_table().clone()
    }

    /// Path of a new connection under the snapshot that the workers see.
    pub fn path(&self, flow: &FlowKey) -> FlowPath {
        self.core.path(flow)
    }

    /// Up to `max` flows for which `wanted` is true, in no order.
    pub fn flows(&self, max: usize, wanted: &mut dyn FnMut(&FlowInfo) -> bool) -> Vec<FlowInfo> {
        let now_ms = self.core.shared.start.elapsed().as_millis() as u32;
        self.core.flows(now_ms, max, wanted)
    }

    /// Stops the workers and closes all ports. Fails when a worker does not stop in `patience`.
    pub fn stop(mut self, shutdown_mode: ShutdownMode, patience: Duration) -> Result<(), StartError> {
        let deadline = Instant::now() + patience;
        self.core.shared.stopping.store(true, Ordering::Relaxed);
        for mailbox in &self.core.shared.mailboxes {
            mailbox.wake();
        }
        self.losses().clear();
        for (number, thread) in self.threads.drain(..).enumerate() {
            while !thread.is_finished() {
                if Instant::now() > deadline {
                    return Err(StartError::Setup(format!("worker {number} does not stop")));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            let queues = thread.join().map_err(|_| {
                StartError::Setup(format!("worker {number} has panicked: see its message above"))
            })?;
            // Not closed: the workers' memory goes with them, and nobody is left to take the frames back.
            drop(queues);
        }
        if let Some(Guards { guard, on }) =
            self.guards().take().filter(|_| shutdown_mode != ShutdownMode::Closed)
        {
            for interface in on.into_iter().filter_map(|index| Interface::with_index(index).ok()) {
                guard
                    .open(&interface, self.pins.as_ref().ok())
                    .map_err(|error| StartError::Setup(error.to_string()))?;
            }
        }
        let ports = std::mem::take(&mut *self.ports());
        let part = |program: Program| match shutdown_mode {
            ShutdownMode::Closed => Ok(()),
            ShutdownMode::Detached => program.detach(),
            ShutdownMode::AsFound => program.undo(),
        };
        ports
            .into_values()
            .try_for_each(|port| part(port.program))
            .map_err(|error| StartError::Setup(error.to_string()))
    }
}

/// The moment of the boot by the clock that `Instant` reads: that is the same for the next process.
fn boot_instant() -> Instant {
    let since = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let since = Duration::new(since.tv_sec as u64, since.tv_nsec as u32);
    let now = Instant::now();
    now.checked_sub(since).unwrap_or(now)
}

/// Identity of the interface, which no later one shares; `None` where it cannot be read: then its pod inherits no flows.
fn link_of(interface: &Interface) -> Option<Link> {
    let namespace = std::fs::metadata("/proc/thread-self/ns/net").ok()?.ino();
    let Interface { name, index, mac, .. } = interface;
    Some(Link { interface: name.clone(), index: *index, mac: *mac, namespace })
}

fn reschedulers(cores: &[usize]) -> Result<Vec<Rescheduler>, StartError> {
    let reschedulers: std::io::Result<_> =
        cores.iter().enumerate().map(|(worker, core)| Rescheduler::new(worker, *core)).collect();
    reschedulers
        .map_err(|error| StartError::Setup(format!("the kernel gives no thread beside a worker: {error}")))
}

fn spawn(worker: Worker, core: usize) -> Result<JoinHandle<Vec<PortQueue>>, StartError> {
    let name = format!("palisade-w{}", worker.id().index());
    let run = move || {
        core_affinity::set_for_current(core_affinity::CoreId { id: core });
        worker.run()
    };
    threads::spawn(name, run)
        .map_err(|error| StartError::Setup(format!("the kernel gives no thread for a worker: {error}")))
}

/// Lets workers poll the driver; or why they do not. Of veth the kernel names no NAPI instance that they could poll
/// (`SO_INCOMING_NAPI_ID` of its sockets is 0, Linux 6.18): there each call would be for nothing.
fn enable_busy_poll(interface: &Interface, queues: &mut [PortQueue]) -> Option<String> {
    if interface.kind.as_deref() == Some("veth") {
        return None;
    }
    let refused = queues.iter_mut().find_map(|queue| queue.prefer_busy_poll().err())?;
    Some(format!(
        "interface {}: workers do not poll its driver, though `prefer_busy_poll` is set: the kernel refuses it: {refused} \
         (it takes Linux 5.11 and CAP_NET_ADMIN)",
        interface.name
    ))
}

fn warnings(interface: &Interface, queues: u16, workers: u16, mode: &crate::xdp::Mode) -> Vec<String> {
    let Interface { name, rx_queues, tx_queues, .. } = interface;
    let mut warnings = Vec::new();
    if let Some(reason) = &mode.fallback {
        warnings.push(format!("interface {name}: XDP runs in the generic hook, which is slower: {reason}"));
    }
    if queues < workers {
        warnings.push(format!(
            "interface {name} has {rx_queues} receive and {tx_queues} transmit queues for {workers} workers: what it receives is \
             the work of the first {queues} alone, and the others hand what leaves by it over to these, at the price of a \
             copy; create a veth with `numrxqueues {workers} numtxqueues {workers}` at both ends, set a NIC's with \
             `ethtool -L {name} combined {workers}`, or run fewer workers"
        ));
    }
    if *rx_queues > queues {
        warnings.push(format!(
            "interface {name} has {rx_queues} receive queues, of which the switch serves {queues}: frames of the others are \
             dropped; give the interface as many receive as transmit queues, and the switch as many workers"
        ));
    }
    warnings
}

/// What the kernel's AF_XDP cannot do for a port, in a sentence.
fn missing_features(name: &str, binder: &Binder) -> Option<String> {
    let max = binder.mtu_max();
    if max < MTU_MAX {
        return Some(format!("interface {name} can have an MTU of {max} at most{}", one_frame(max)));
    }
    (!binder.leaves_checksums()).then(|| {
        format!(
            "interface {name}: transport checksums are computed by the switch, which is slower: \
             this kernel's AF_XDP takes no transmit metadata (Linux 6.8 does)"
        )
    })
}

fn worker_stuck() -> PortError {
    PortError::Kernel(
        "a worker does not answer: `palisade show status` names it; restart the switch".to_owned(),
    )
}

impl From<NetlinkError> for PortError {
    fn from(error: NetlinkError) -> PortError {
        XdpError::from(error).into()
    }
}

impl From<XdpError> for PortError {
    fn from(error: XdpError) -> PortError {
        match error {
            XdpError::NoInterface { interface } => PortError::NoInterface { interface },
            XdpError::Mtu { interface, mtu, max } => PortError::Mtu { interface, mtu, max: max as u32 },
            error @ (XdpError::ForeignProgram { .. }
            | XdpError::HeldElsewhere { .. }
            | XdpError::QueueTaken { .. }) => PortError::Foreign { reason: error.to_string() },
            other => PortError::Kernel(other.to_string()),
        }
    }
}
