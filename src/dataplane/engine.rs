//! The running dataplane: its threads and interfaces.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::bounded;

use super::core::{Core, NewFiles};
use super::endpoints::Link;
use super::neighbor::resolver::Resolver;
use super::offload::{Keeper, remove_abandoned_devices};
use super::port_attachment::OpenPort;
use super::worker::Worker;
use super::worker::handoff::Access;
use super::worker::mailbox::{Command, Mailbox};
use super::worker::reschedule::Rescheduler;
use super::{
    DesiredState, MasqueradeSettings, OffloadSettings, PortError, PublishError, Settings, StartError,
    StuckWorker, TunnelSettings,
};
use crate::ids::{Generation, PortId, WorkerId};
use crate::netlink::{Interface, NetlinkError};
use crate::tap::UnreadPackets;
use crate::xdp::{Binder, ClosedQueue, Frame, Guard, LossCounters, Pins, PortQueue, Umem, XdpError};

/// Longest wait for a worker to end a batch. A worker that takes longer is stuck, and so is the switch.
pub(crate) const WORKER_TIMEOUT: Duration = Duration::from_secs(5);

/// A running dataplane.
pub struct Dataplane {
    /// Files that the start has made, until it has succeeded. This field drops first: while `core` has the lock of the flow
    /// table's directory, no other start has taken the files over.
    new_files: Mutex<NewFiles>,
    pub(super) core: Core,
    pub(super) binders: Vec<Binder>,
    pub(super) prefer_busy_poll: bool,
    /// External ends of masqueraded flows, which uplinks take from the kernel.
    pub(super) masquerade: Option<MasqueradeSettings>,
    /// Tunnels, whose packets uplinks take from the kernel.
    pub(super) tunnel: Option<TunnelSettings>,
    threads: Vec<JoinHandle<Vec<PortQueue>>>,
    /// Reschedulers, one for each worker.
    reschedulers: Vec<Rescheduler>,
    pub(super) ports: Mutex<BTreeMap<PortId, OpenPort>>,
    /// Problems of the open ports. This lock is held for moments, unlike `ports`.
    port_problems: Mutex<BTreeMap<PortId, String>>,
    /// Kernel counters of the open ports. This lock is held for moments, unlike `ports`.
    losses: Mutex<BTreeMap<PortId, LossCounters>>,
    /// Thread that keeps the lease of the kernel, if flows are offloaded. It ends first.
    _keeper: Option<Keeper>,
    /// Resolver, which runs from the first uplink on.
    resolver: Mutex<Option<Resolver>>,
    /// Reason for which there is no AF_XDP, if the dataplane runs without.
    pub(super) without_xdp: Option<String>,
    /// Pinned links of XDP programs, or the reason why there are none.
    pub(super) pins: Result<Pins, String>,
    /// Program that closes interfaces without a port, loaded for the first of them.
    pub(super) guards: Mutex<Option<Guards>>,
    /// Whether the start has succeeded. After that, programs of earlier runs are not restored.
    pub(super) is_started: AtomicBool,
    /// Iterations of each worker's loop, and the time of the last change.
    pub(super) turns: Mutex<Vec<(u64, Instant)>>,
}

/// State of the interfaces after the dataplane has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownMode {
    /// The XDP programs stay and drop everything.
    Closed,
    /// The XDP programs are detached, and the kernel has the interfaces.
    Detached,
    /// The state before the start: interfaces that an earlier run has left closed stay closed, and the kernel
    /// has the others.
    AsFound,
}

/// Program that closes interfaces, and the indices of the interfaces that it is attached to.
pub(super) struct Guards {
    pub(super) guard: Arc<Guard>,
    pub(super) on: BTreeSet<u32>,
}

impl Dataplane {
    /// Sets the ports of Services that an uplink takes from the kernel to those of the published snapshot. Those of an earlier
    /// run stay while Services are awaited.
    pub(super) fn set_services(&self, port: &mut OpenPort) {
        let (services, keeps_others) = self.core.uplink_services();
        port.set_services(&services, keeps_others);
    }

    /// Returns the ports of Services of an earlier run to the kernel, if no Services have been loaded in time.
    pub(super) fn release_services(&self, port: &mut OpenPort) {
        if !self.core.desired().has_services() {
            self.set_services(port);
        }
    }

    /// Starts the workers. They forward no packet before the control side opens ports and publishes a state.
    pub fn start(settings: &Settings) -> Result<Dataplane, StartError> {
        let mut core = Core::new(settings, boot_instant())?;
        let pins = Pins::open(&settings.pin_directory);
        let new_files = Mutex::new(core.take_new_files(pins.as_ref().ok()));
        tracing::info!("{}", core.flow_table());
        let mut binders = Vec::new();
        let mut workers = Vec::new();
        let mut without_xdp = None;
        for worker in 0..core.workers() {
            let (umem, frames) = packet_memory(settings, &mut without_xdp)?;
            binders.push(umem.binder());
            let id = WorkerId(worker as u16);
            let worker = Worker::new(id, &core.shared, settings.polling, settings.scheduling, umem, frames);
            workers.push(worker.map_err(|error| {
                StartError::Setup(format!("the kernel gives no epoll instance to a worker: {error}"))
            })?);
        }
        let (ports, losses, resolver) = (Mutex::default(), Mutex::default(), Mutex::default());
        let reschedulers = reschedulers(&settings.cores)?;
        if let (Ok(pins), None) = (&pins, &settings.offload) {
            core.remove_offload_maps(pins);
        }
        if let Err(error) = remove_abandoned_devices() {
            tracing::warn!("an upcall device of an earlier run stays: {error}");
        }
        let keeper = match (&core.shared.offload, settings.offload) {
            (Some(offload), Some(OffloadSettings { lease })) => {
                let keeper = Keeper::start(offload, lease);
                Some(keeper.map_err(|error| {
                    StartError::Setup(format!("the kernel gives no thread for flow offload: {error}"))
                })?)
            }
            _ => None,
        };
        let mut dataplane = Dataplane {
            new_files,
            core,
            binders,
            prefer_busy_poll: settings.prefer_busy_poll,
            masquerade: settings.masquerade.clone(),
            tunnel: settings.tunnel.clone(),
            threads: Vec::new(),
            reschedulers,
            ports,
            port_problems: Mutex::default(),
            losses,
            _keeper: keeper,
            resolver,
            without_xdp,
            pins,
            guards: Mutex::default(),
            is_started: AtomicBool::new(false),
            turns: Mutex::new(vec![(0, Instant::now()); settings.cores.len()]),
        };
        for (worker, core) in workers.into_iter().zip(&settings.cores) {
            dataplane.threads.push(worker.start(*core, settings.scheduling)?);
        }
        Ok(dataplane)
    }

    /// Waits for the workers to observe a generation. After a timeout it gives up: a stuck worker has stopped
    /// the switch, and no longer wait repairs that.
    pub(super) fn wait_for_workers(&self) -> impl Fn(&Core, Generation) {
        |core, generation| {
            if !core.wait_for(generation, WORKER_TIMEOUT, |late| self.reschedulers[late.index()].nudge()) {
                tracing::error!(%generation, "a worker has not come to the end of a batch for {WORKER_TIMEOUT:?}");
            }
        }
    }

    pub(super) fn resolver(&self) -> MutexGuard<'_, Option<Resolver>> {
        self.resolver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn losses(&self) -> MutexGuard<'_, BTreeMap<PortId, LossCounters>> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the frames that the kernel loses on the new queues of a port, in addition to those lost on its
    /// earlier queues.
    pub(super) fn count_losses(
        &self,
        port: PortId,
        interface: &Interface,
        queues: &[PortQueue],
        tap: Option<UnreadPackets>,
    ) -> Result<(), XdpError> {
        let mut losses = self.losses();
        let earlier = losses.get(&port).map(LossCounters::sum).unwrap_or_default();
        losses.insert(port, LossCounters::of(interface, queues, tap, earlier)?);
        Ok(())
    }

    /// Releases the queues of a port before they are closed: the counters keep their sockets open.
    pub(super) fn release_losses(&self, port: PortId) {
        if let Some(losses) = self.losses().get_mut(&port) {
            losses.close();
        }
    }

    pub(super) fn port_problems(&self) -> MutexGuard<'_, BTreeMap<PortId, String>> {
        self.port_problems.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the problem of a port.
    pub(super) fn set_port_problem(&self, port: PortId, problem: Option<String>) {
        let mut problems = self.port_problems();
        match problem {
            Some(problem) => _ = problems.insert(port, problem),
            None => _ = problems.remove(&port),
        }
    }

    pub(super) fn ports(&self) -> MutexGuard<'_, BTreeMap<PortId, OpenPort>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes an interface that has no XDP program, or the one with the id `own`.
    pub(super) fn close_interface(&self, interface: &Interface, own: Option<u32>) -> Result<(), XdpError> {
        self.close_with(interface.index, |guard, pins| guard.close(interface, own, pins))
    }

    pub(super) fn close_with(
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
        // Without the lock: the kernel may be busy with other interfaces.
        if close(&guard, self.pins.as_ref().ok()).map_err(|error| self.with_pins(error))?
            && let Some(guards) = &mut *self.guards()
        {
            guards.on.insert(index);
        }
        Ok(())
    }

    /// Leaves the program that closes interfaces to whoever removes it from this one. Returns whether it was there.
    pub(super) fn forget_guard(&self, index: u32) -> bool {
        self.guards().as_mut().is_some_and(|guards| guards.on.remove(&index))
    }

    pub(super) fn guards(&self) -> MutexGuard<'_, Option<Guards>> {
        self.guards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the start as successful: [`ShutdownMode::AsFound`] undoes nothing from before this call.
    pub fn keep(&self) {
        self.is_started.store(true, Ordering::Relaxed);
        self.new_files.lock().unwrap_or_else(PoisonError::into_inner).keep();
        self.ports().values_mut().for_each(|port| port.attachment.keep());
    }

    /// Workers that have not come to the end of a batch for longer than `timeout`, between this call and the one before.
    pub(super) fn stuck_for(&self, timeout: Duration) -> Vec<StuckWorker> {
        let mut seen = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let workers = self.core.shared.mailboxes.iter().zip(&mut *seen).enumerate();
        let stuck = workers.filter_map(|(number, (mailbox, (turns, since)))| {
            let now = mailbox.stats.turns.get();
            if now != *turns {
                (*turns, *since) = (now, Instant::now());
                return None;
            }
            let (worker, core) = (WorkerId(number as u16), self.core.core_of(number));
            Some(StuckWorker { worker, core, since: since.elapsed() }).filter(|stuck| stuck.since > timeout)
        });
        stuck.collect()
    }

    /// Fails if a worker has not observed a generation.
    pub(super) fn check_observed(&self, generation: Generation) -> Result<Generation, PublishError> {
        let workers: Vec<WorkerId> = self.core.workers_before(generation).collect();
        let is_late = !workers.is_empty();
        if is_late { Err(PublishError { generation, workers, kernel: None }) } else { Ok(generation) }
    }

    pub(super) fn send_command(mailbox: &Mailbox, mut command: Command) -> Result<(), PortError> {
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

    pub(super) fn close_queues(&self, port: PortId) -> Result<(), PortError> {
        self.release_losses(port);
        // Workers that hand frames off come first, so that none hands a frame to a worker that has closed the
        // port.
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

    pub(super) fn forget_port(&self, port: PortId) {
        self.losses().remove(&port);
        self.set_port_problem(port, None);
        if let Some(offload) = &self.core.shared.offload {
            offload.close_port(port);
        }
        self.core.remove_port(port, &self.wait_for_workers());
        if let Some(resolver) = &*self.resolver() {
            resolver.remove_uplink(port);
        }
    }

    /// Desired state published last.
    pub fn desired(&self) -> Arc<DesiredState> {
        self.core.desired()
    }

    /// Stops the workers and closes all ports. Fails when a worker does not stop in `timeout`.
    pub fn stop(mut self, shutdown_mode: ShutdownMode, timeout: Duration) -> Result<(), StartError> {
        let deadline = Instant::now() + timeout;
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
            // The queues are not closed: the packet memory ends with the workers, and no worker takes frames
            // back.
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
        if let (Ok(pins), ShutdownMode::Detached) = (&self.pins, shutdown_mode) {
            self.core.remove_offload_maps(pins);
        }
        let ports = std::mem::take(&mut *self.ports());
        let part = |port: OpenPort| match shutdown_mode {
            ShutdownMode::Closed => Ok(()),
            ShutdownMode::Detached => port.detach(),
            ShutdownMode::AsFound => port.undo(),
        };
        let done = ports.into_values().try_for_each(part);
        if let (Ok(pins), ShutdownMode::Detached | ShutdownMode::AsFound) = (&self.pins, shutdown_mode) {
            pins.remove_empty();
        }
        done.map_err(|error| StartError::Setup(error.to_string()))
    }
}

/// Packet memory of a worker. It serves tap ports only if the kernel refuses AF_XDP and the settings do not need it;
/// then `without_xdp` becomes the reason.
fn packet_memory(
    settings: &Settings,
    without_xdp: &mut Option<String>,
) -> Result<(Umem, Vec<Frame>), StartError> {
    let registered = Umem::new(settings.frames_per_worker, settings.huge_pages);
    let reason = match registered {
        Ok(registered) => return Ok(registered),
        Err(error @ XdpError::NoAfXdp) => error,
        Err(error @ XdpError::Privilege { .. }) if !settings.needs_xdp => error,
        Err(error) => return Err(StartError::Setup(error.to_string())),
    };
    if without_xdp.is_none() {
        tracing::warn!("the switch starts without AF_XDP, and opens tap ports only: {reason}");
    }
    *without_xdp = Some(reason.to_string());
    Ok(Umem::in_memory(settings.frames_per_worker))
}

/// Time of the boot by the clock of `Instant`, which the next process reads the same.
fn boot_instant() -> Instant {
    let since = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let since = Duration::new(since.tv_sec as u64, since.tv_nsec as u32);
    let now = Instant::now();
    now.checked_sub(since).unwrap_or(now)
}

/// Identity of the interface, unlike that of any later one; `None` where it cannot be read. Then the pod of
/// the port inherits no flows.
pub(super) fn link_of(interface: &Interface) -> Option<Link> {
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

pub(super) fn worker_stuck() -> PortError {
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
            | XdpError::PinUnseen { .. }
            | XdpError::QueueTaken { .. }) => PortError::Foreign { reason: error.to_string() },
            other => PortError::Kernel(other.to_string()),
        }
    }
}
