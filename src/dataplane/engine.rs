//! The handle of a running dataplane: its threads, its interfaces.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::bounded;
use ipnet::IpNet;

use super::core::Core;
use super::endpoints::Link;
use super::handover::{self, Access};
use super::knock::Knocker;
use super::mailbox::{Command, Mailbox};
use super::resolver::Resolver;
use super::uplink::{self, Place};
use super::view::PortFacts;
use super::worker::Worker;
use super::{
    Counters, FlowInfo, FlowTableReport, PortError, PortKind, PortReport, PortSpec, Settings, StartError,
    World,
};
use crate::ids::{Generation, PortId, WorkerId};
use crate::limits::MTU_MAX;
use crate::net::mac::Mac;
use crate::xdp::{
    Binder, ClosedQueue, Interface, LossCounters, PortQueue, Program, Umem, XdpError, one_frame,
};

/// Longest wait for a worker to come to the end of a batch. A worker that takes longer is stuck, and everything with it.
const PATIENCE: Duration = Duration::from_secs(5);

/// A running dataplane: its workers, and the way to talk to them.
pub struct Dataplane {
    core: Core,
    binders: Vec<Binder>,
    prefer_busy_poll: bool,
    threads: Vec<JoinHandle<Vec<PortQueue>>>,
    /// One for each worker.
    knockers: Vec<Knocker>,
    ports: Mutex<BTreeMap<PortId, OpenPort>>,
    /// What the kernel counts of the open ports. Locked for moments only, unlike `ports`.
    losses: Mutex<BTreeMap<PortId, LossCounters>>,
    /// Runs from the first uplink on.
    resolver: Mutex<Option<Resolver>>,
}

/// What becomes of the ports' interfaces when the dataplane stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parting {
    /// The XDP programs stay and drop everything.
    Closed,
    /// The XDP programs go, and the kernel has the interfaces.
    Detached,
    /// As before the start: interfaces that an earlier run had left closed stay closed, the others are the kernel's.
    AsFound,
}

struct OpenPort {
    interface: String,
    program: Program,
}

impl OpenPort {
    /// Takes these prefixes, and no others, from the kernel.
    fn take(&mut self, prefixes: &BTreeSet<IpNet>) {
        if let Err(error) = self.program.set_prefixes(prefixes) {
            tracing::error!(
                interface = self.interface,
                "an uplink does not take all that is for its pods: {error}"
            );
        }
    }
}

impl Dataplane {
    /// Starts the workers. They forward nothing until ports are opened and a world is published.
    pub fn start(settings: &Settings) -> Result<Dataplane, StartError> {
        let core = Core::new(settings, boot())?;
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
        let knockers = knockers(&settings.cores)?;
        let mut dataplane = Dataplane {
            core,
            binders,
            prefer_busy_poll,
            threads: Vec::new(),
            knockers,
            ports,
            losses,
            resolver,
        };
        for (worker, core) in workers.into_iter().zip(&settings.cores) {
            dataplane.threads.push(spawn(worker, *core)?);
        }
        Ok(dataplane)
    }

    /// Waits for the workers; one that is stuck has stopped the switch already, and waiting longer mends nothing.
    fn settle(&self) -> impl Fn(&Core, Generation) {
        |core, generation| {
            if !core.wait_for(generation, PATIENCE, |late| self.knockers[late.index()].knock()) {
                tracing::error!(%generation, "a worker has not come to the end of a batch for {PATIENCE:?}");
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

    /// Opens a port. The first workers get a queue of it each; where it has fewer, the others hand over to these. Frames of pods that the published world does not place there are dropped.
    pub fn open_port(&self, spec: &PortSpec) -> Result<PortReport, PortError> {
        let mut ports = self.ports();
        if ports.values().any(|port| port.interface == spec.interface) {
            return Err(PortError::Taken { interface: spec.interface.clone() });
        }
        let interface = Interface::find(&spec.interface)?;
        let count = interface.queues().min(self.core.workers() as u16);
        if count == 0 {
            return Err(PortError::NoQueue {
                interface: spec.interface.clone(),
                rx: interface.rx_queues,
                tx: interface.tx_queues,
            });
        }
        for binder in &self.binders {
            interface.check_mtu(binder.mtu_max())?;
        }
        let link = link_of(&interface);
        let id = self.core.free_port(link.as_ref())?;
        let place = match spec.kind {
            PortKind::Uplink => Some(self.prepare_uplink(&interface, spec.vlan)?),
            PortKind::Pod | PortKind::Host => None,
        };
        let (program, mode) = self.attach(spec, &interface, count)?;
        let opened: Result<Vec<PortQueue>, XdpError> = (0..count)
            .zip(&self.binders)
            .map(|(queue, binder)| PortQueue::open(binder, id, &interface, queue, &program))
            .collect();
        let opened = opened.and_then(|queues| {
            self.count_losses(id, &interface, &queues)?;
            Ok(queues)
        });
        let mut queues = match opened {
            Ok(queues) => queues,
            Err(error) => {
                // The first error is what the operator can mend; this one would follow from it.
                let _ = program.undo();
                return Err(error.into());
            }
        };
        let busy_poll = if self.prefer_busy_poll { poll_busily(&interface, &mut queues) } else { None };
        let zero_copy = queues.iter().all(PortQueue::zero_copy);
        let facts = PortFacts {
            kind: spec.kind,
            vlan: spec.vlan.unwrap_or(0),
            mtu: interface.mtu.min(65_535) as u16,
            mac: place.as_ref().map(|place| place.mac),
        };
        self.core.add_port(id, facts, link, &self.settle());
        // Those that have a queue come first: what others hand over finds who sends it.
        let accesses = handover::accesses(self.core.workers(), queues, facts.mtu.into());
        for (mailbox, access) in self.core.shared.mailboxes.iter().zip(accesses) {
            Self::deliver(mailbox, Command::Open(id, access))?;
        }
        ports.insert(id, OpenPort { interface: spec.interface.clone(), program });
        let mut warnings = warnings(&interface, count, self.core.workers() as u16, &mode);
        warnings.extend(busy_poll);
        warnings.extend(self.binders.first().and_then(|binder| lacks(&spec.interface, binder)));
        if let Some(Place { link, warning, .. }) = place {
            if let Some(resolver) = &*self.resolver() {
                resolver.follow(id, link);
                resolver.keep(&self.core.world().routes);
            }
            warnings.extend((!zero_copy).then(|| uplink::why_copied(&spec.interface)));
            warnings.extend(warning);
        }
        Ok(PortReport { id, mtu: interface.mtu, queues: count, native: mode.native, zero_copy, warnings })
    }

    /// What a port on a NIC needs before it can be opened.
    fn prepare_uplink(&self, interface: &Interface, vlan: Option<u16>) -> Result<Place, PortError> {
        let place = uplink::place(interface, vlan)?;
        let mut resolver = self.resolver();
        if resolver.is_none() {
            let started = Resolver::start(&self.core.shared).map_err(|error| {
                PortError::Kernel(format!("the kernel's neighbour table cannot be followed: {error}"))
            })?;
            *resolver = Some(started);
        }
        Ok(place)
    }

    /// Attaches the XDP program. That of an uplink knows its prefixes before the first frame comes.
    fn attach(
        &self,
        spec: &PortSpec,
        interface: &Interface,
        queues: u16,
    ) -> Result<(Program, crate::xdp::Mode), PortError> {
        if spec.kind != PortKind::Uplink {
            return Ok(Program::attach(interface, queues)?);
        }
        let prefixes = self.core.world().uplink_prefixes();
        uplink::check_prefixes(&spec.interface, &prefixes)?;
        Ok(Program::attach_uplink(interface, queues, spec.vlan.unwrap_or(0), &prefixes)?)
    }

    fn deliver(mailbox: &Mailbox, mut command: Command) -> Result<(), PortError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match mailbox.send(command) {
                Ok(()) => return Ok(()),
                Err(back) if Instant::now() < deadline => command = back,
                Err(_) => return Err(stuck()),
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Closes a port: when this returns no worker touches it, its XDP program is detached (`detach`) or
    /// stays and drops everything (not `detach`), and its frames are back in the UMEM.
    pub fn close_port(&self, port: PortId, detach: bool) -> Result<(), PortError> {
        let mut ports = self.ports();
        let open = ports.remove(&port).ok_or(PortError::Unknown(port))?;
        self.release_losses(port);
        // Those that hand over come first, so that none does to a worker that has closed the port.
        for mailbox in self.core.shared.mailboxes.iter().rev() {
            let (reply, access) = bounded(1);
            Self::deliver(mailbox, Command::Close(port, reply))?;
            let Access::Queue(queue, _) = access.recv_timeout(PATIENCE).map_err(|_| stuck())? else {
                continue;
            };
            let closed: ClosedQueue = queue.close();
            let (reply, done) = bounded(1);
            Self::deliver(mailbox, Command::Reclaim(closed, reply))?;
            done.recv_timeout(PATIENCE).map_err(|_| stuck())?;
        }
        self.losses().remove(&port);
        self.core.remove_port(port, &self.settle());
        if let Some(resolver) = &*self.resolver() {
            resolver.forget(port);
        }
        if detach {
            open.program.detach()?;
        }
        Ok(())
    }

    /// Makes `world` what every worker sees from its next batch on; returns when the last one has passed to it.
    ///
    /// Panics on tables that [`RuleTables::check`](crate::tables::RuleTables::check) refuses.
    ///
    /// Uplinks take what is for a pod from the kernel before the workers know the pod, and until they have forgotten it.
    pub fn publish(&self, world: World) -> Generation {
        let mut ports = self.ports();
        let before = self.core.world();
        let uplinks = ports.values_mut().filter(|port| port.program.has_prefixes());
        let mut uplinks: Vec<&mut OpenPort> = uplinks.collect();
        if uplinks.is_empty() {
            return self.core.publish(world, &self.settle());
        }
        let wanted = world.uplink_prefixes();
        let both: BTreeSet<IpNet> = wanted.union(&before.uplink_prefixes()).copied().collect();
        if let Some(resolver) = &*self.resolver() {
            resolver.keep(&world.routes);
        }
        uplinks.iter_mut().for_each(|port| port.take(&both));
        let generation = self.core.publish(world, &self.settle());
        uplinks.iter_mut().for_each(|port| port.take(&wanted));
        generation
    }

    /// The world published last.
    pub fn world(&self) -> Arc<World> {
        self.core.world()
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

    /// Where the flow table lies, and what of it is from the process before.
    pub fn flow_table(&self) -> FlowTableReport {
        self.core.flow_table().clone()
    }

    /// Up to `max` flows for which `wanted` is true, in no order.
    pub fn flows(&self, max: usize, wanted: &mut dyn FnMut(&FlowInfo) -> bool) -> Vec<FlowInfo> {
        let now_ms = self.core.shared.start.elapsed().as_millis() as u32;
        self.core.flows(now_ms, max, wanted)
    }

    /// Stops the workers and closes all ports. Fails when a worker does not stop in `patience`.
    pub fn stop(mut self, parting: Parting, patience: Duration) -> Result<(), StartError> {
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
        let ports = std::mem::take(&mut *self.ports());
        let part = |program: Program| match parting {
            Parting::Closed => Ok(()),
            Parting::Detached => program.detach(),
            Parting::AsFound => program.undo(),
        };
        ports
            .into_values()
            .try_for_each(|port| part(port.program))
            .map_err(|error| StartError::Setup(error.to_string()))
    }
}

/// The moment of the boot by the clock that `Instant` reads: that is the same for the next process.
fn boot() -> Instant {
    let since = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let since = Duration::new(since.tv_sec as u64, since.tv_nsec as u32);
    let now = Instant::now();
    now.checked_sub(since).unwrap_or(now)
}

/// What tells the interface from one that is made later; `None` where that cannot be told: then its pod is nobody's heir.
fn link_of(interface: &Interface) -> Option<Link> {
    let namespace = std::fs::metadata("/proc/thread-self/ns/net").ok()?.ino();
    let Interface { name, index, mac, .. } = interface;
    Some(Link { interface: name.clone(), index: *index, mac: Mac(*mac), namespace })
}

fn knockers(cores: &[usize]) -> Result<Vec<Knocker>, StartError> {
    let knockers: std::io::Result<_> =
        cores.iter().enumerate().map(|(worker, core)| Knocker::new(worker, *core)).collect();
    knockers
        .map_err(|error| StartError::Setup(format!("the kernel gives no thread beside a worker: {error}")))
}

fn spawn(worker: Worker, core: usize) -> Result<JoinHandle<Vec<PortQueue>>, StartError> {
    let name = format!("palisade-w{}", worker.id().index());
    let run = move || {
        core_affinity::set_for_current(core_affinity::CoreId { id: core });
        worker.run()
    };
    std::thread::Builder::new()
        .name(name)
        .spawn(run)
        .map_err(|error| StartError::Setup(format!("the kernel gives no thread for a worker: {error}")))
}

/// Lets workers poll the driver; or why they do not. Of veth the kernel names no NAPI instance that they could poll
/// (`SO_INCOMING_NAPI_ID` of its sockets is 0, Linux 6.18): there each call would be for nothing.
fn poll_busily(interface: &Interface, queues: &mut [PortQueue]) -> Option<String> {
    if interface.driver.as_deref() == Some("veth") {
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
fn lacks(name: &str, binder: &Binder) -> Option<String> {
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

fn stuck() -> PortError {
    PortError::Kernel("a worker does not answer: the switch has to be restarted".to_owned())
}

impl From<XdpError> for PortError {
    fn from(error: XdpError) -> PortError {
        match error {
            XdpError::NoInterface { interface } => PortError::NoInterface { interface },
            XdpError::Mtu { interface, mtu, max } => PortError::Mtu { interface, mtu, max: max as u32 },
            other => PortError::Kernel(other.to_string()),
        }
    }
}
