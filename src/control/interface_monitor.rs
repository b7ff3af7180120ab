//! Monitor of the ports' interfaces. It closes a port whose interface goes, and opens it again when the
//! interface comes back.
//!
//! Two threads share the work. The first reads link events of the kernel. It attaches a program that drops
//! every frame to an interface that appears under the name of a port, at once. The second reconciles each
//! port with the state of the kernel: it closes and opens ports, which takes tens of milliseconds each. It
//! runs at least once a second, so that nothing depends on an event that was lost.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, mem};

use rustix::event::{PollFd, PollFlags, poll};

use super::protocol::PortState;
use super::server::avoid_worker_cores;
use super::state::{PortRecord, State};
use super::switch::Writer;
use super::{ApiError, Switch};
use crate::dataplane::{PortError, PortHealth, PortKind};
use crate::netlink::{Interface, LinkEvent, LinkEvents};
use crate::threads;

/// Interval of reconciliation without link events. The kernel sends none when a program is detached by force,
/// or when the number of queues changes.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between two attempts to open a port on an interface without new link events.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Running monitor threads. Dropping the monitor stops them.
pub(crate) struct InterfaceMonitor {
    /// Stops the threads when it is closed.
    stop: Option<UnixStream>,
    threads: Vec<JoinHandle<()>>,
}

impl InterfaceMonitor {
    /// Monitors the interfaces of the calling thread's network namespace.
    pub(crate) fn start(switch: &Arc<Switch>) -> io::Result<InterfaceMonitor> {
        let table = LinkEvents::open()?;
        let (stop, stopped) = UnixStream::pair()?;
        let (wake, woken) = sync_channel(1);
        let mut monitor = InterfaceMonitor { stop: Some(stop), threads: Vec::new() };
        let listener = switch.clone();
        let listen = move || read_link_events(&table, &listener, &stopped, &wake);
        monitor.threads.push(threads::spawn("palisade-links", listen)?);
        let switch = switch.clone();
        monitor
            .threads
            .push(threads::spawn("palisade-ports", move || reconcile_until_stopped(&switch, &woken))?);
        Ok(monitor)
    }
}

impl Drop for InterfaceMonitor {
    fn drop(&mut self) {
        drop(self.stop.take());
        for thread in mem::take(&mut self.threads) {
            // A panic of the thread has ended the process.
            let _ = thread.join();
        }
    }
}

/// Reads link events until the other end of `stopped` is closed.
fn read_link_events(table: &LinkEvents, switch: &Switch, stopped: &UnixStream, wake: &SyncSender<()>) {
    avoid_worker_cores(&switch.status().cores);
    // Frames of a pod enter the node's stack until its interface is blocked, so this thread gets the highest
    // priority. Without CAP_SYS_NICE it keeps the default one.
    let _ = rustix::process::setpriority_process(None, -20);
    let mut closed = BTreeSet::new();
    let mut fds = [table.fd(), stopped.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    loop {
        // An interrupted poll only reads early.
        let _ = poll(&mut fds, None);
        if !fds[1].revents().is_empty() {
            return;
        }
        table.read(|news| {
            if switch.handle_link_event(&news, &mut closed) {
                // One pending wake-up is enough.
                let _ = wake.try_send(());
            }
        });
    }
}

/// Reconciles all ports after each wake-up, and every second, until the sender is gone.
fn reconcile_until_stopped(switch: &Switch, woken: &Receiver<()>) {
    avoid_worker_cores(&switch.status().cores);
    let mut stuck = Vec::new();
    let (mut looked, mut retried) = (Instant::now(), Instant::now());
    loop {
        let is_due = match woken.recv_timeout(RECONCILE_INTERVAL.saturating_sub(looked.elapsed())) {
            Ok(()) => false,
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if is_due {
            looked = Instant::now();
            let now: Vec<_> = switch.stuck_workers().iter().map(|stuck| stuck.worker).collect();
            for worker in now.iter().filter(|worker| !stuck.contains(*worker)) {
                tracing::error!(%worker, "a worker does not come to the end of a batch: changes do not reach it");
            }
            for worker in stuck.iter().filter(|worker| !now.contains(*worker)) {
                tracing::info!(%worker, "the worker goes on");
            }
            stuck = now;
        }
        let retries = !is_due || retried.elapsed() >= RETRY_INTERVAL;
        if retries {
            retried = Instant::now();
        }
        switch.reconcile_ports(retries);
    }
}

impl Switch {
    /// Handles a link event. Blocks an interface that appears under the name of a port, and adds its index to
    /// `closed`. Returns whether the event concerns a port.
    fn handle_link_event(&self, news: &LinkEvent, closed: &mut BTreeSet<u32>) -> bool {
        let state = self.state.load();
        let (index, name, has_program) = match news {
            LinkEvent::Overrun => {
                closed.clear();
                return true;
            }
            LinkEvent::Removed { index } => {
                closed.remove(index);
                return is_port_index(&state, *index);
            }
            LinkEvent::Present { index, name, has_program } => (*index, name, *has_program),
        };
        let named = state.ports.values().find(|port| port.spec.is_node_interface(name));
        // Events that the kernel queued before the interface was blocked still say that it has no program.
        if let Some(port) = named.filter(|_| !has_program && !closed.contains(&index)) {
            let done = self.block_interface(port, || self.dataplane.block_new_interface(index, name));
            if done {
                closed.insert(index);
            }
        }
        named.is_some() || is_port_index(&state, index)
    }

    /// Blocks the interface of a port by `close`. An uplink stays open, because the kernel uses it too.
    /// Returns whether the interface is blocked.
    fn block_interface(&self, port: &PortRecord, close: impl FnOnce() -> Result<(), PortError>) -> bool {
        let interface = &port.spec.interface;
        if !blocks(port) {
            return false;
        }
        match close() {
            // The port may have been removed meanwhile, and with it the reason to block the interface.
            Ok(()) if !self.is_port_interface(interface) => {
                let _ = self.dataplane.unblock_interface(interface);
                false
            }
            Ok(()) => true,
            Err(PortError::NoInterface { .. }) => false,
            Err(error) => {
                // Reconciliation reports the error again, with the remedy.
                tracing::debug!(interface, "the interface has come and is not closed: {error}");
                false
            }
        }
    }

    fn is_port_interface(&self, interface: &str) -> bool {
        self.state.load().ports.values().any(|port| port.spec.is_node_interface(interface))
    }

    /// Reconciles all ports with the state of the kernel. `retries` includes those that could not be opened.
    fn reconcile_ports(&self, retries: bool) {
        let names: Vec<String> = self.state.load().ports.keys().cloned().collect();
        for name in names {
            if let Err(error) = self.reconcile_port(&name, retries) {
                tracing::error!(port = name, "the port does not follow its interface: {error}");
            }
        }
    }

    fn reconcile_port(&self, name: &str, retries: bool) -> Result<(), ApiError> {
        let state = self.state.load_full();
        let Some(port) = state.ports.get(name) else { return Ok(()) };
        if !port.is_open && !retries {
            return Ok(());
        }
        let mut writer = self.lock_writer();
        // Looked up again under the lock: a request may have changed the state.
        let state = self.state.load_full();
        let Some(port) = state.ports.get(name) else { return Ok(()) };
        if !port.is_open {
            return self.reopen_port(name, port, &mut writer);
        }
        match self.dataplane.check_port(port.report.id)? {
            PortHealth::Good { interface, obstacle } => self.record_health(name, port, &interface, obstacle),
            PortHealth::Gone => {
                let reason = format!("interface {} is gone", port.spec.interface);
                self.close_port(name, port, true, reason)?;
                self.reopen_named(name, &mut writer)
            }
            PortHealth::Unguarded => {
                let reason = "its XDP program was taken off the interface".to_owned();
                self.close_port(name, port, false, reason)?;
                self.reopen_named(name, &mut writer)
            }
            PortHealth::Changed(what) => {
                tracing::info!(port = name, "the port is opened anew: {what}");
                match self.dataplane.reopen_port(port.report.id, &port.spec) {
                    // The interface is the same one, so the pod behind it keeps its connections.
                    Ok(report) => {
                        self.update_port(name, port, PortState::Up, None, |port| port.report = report)
                    }
                    Err(failed) => self.record_open_failure(name, port, &failed),
                }
            }
        }
    }

    /// Records the name of an open port's interface, and the obstacle that keeps frames from passing.
    fn record_health(
        &self,
        name: &str,
        port: &PortRecord,
        interface: &str,
        obstacle: Option<String>,
    ) -> Result<(), ApiError> {
        let state = if obstacle.is_some() { PortState::Down } else { PortState::Up };
        let configured = &port.spec.interface;
        let reason = obstacle.or_else(|| {
            (interface != configured).then(|| {
                let other = match Interface::find(configured) {
                    Ok(_) => "; another interface has that name now, which is closed until this port is removed",
                    Err(_) => "",
                };
                format!(
                    "its interface is called {interface} now, and was {configured}: the port stays on it{other}; rename it back, or \
                     remove the port and add it again"
                )
            })
        });
        self.update_port(name, port, state, reason, |_| ())
    }

    /// Closes a port and removes its pod from the desired state. The pod stays attached to the port.
    fn close_port(
        &self,
        name: &str,
        port: &PortRecord,
        is_gone: bool,
        reason: String,
    ) -> Result<(), ApiError> {
        self.update_port(name, port, PortState::Down, Some(reason), |port| port.is_open = false)?;
        Ok(self.dataplane.close_port(port.report.id, is_gone)?)
    }

    fn reopen_named(&self, name: &str, writer: &mut Writer) -> Result<(), ApiError> {
        let state = self.state.load_full();
        state.ports.get(name).map_or(Ok(()), |port| self.reopen_port(name, port, writer))
    }

    /// Opens a port whose interface exists. On failure the interface stays blocked and the port is down. If
    /// blocking fails too, the port is unguarded.
    fn reopen_port(&self, name: &str, port: &PortRecord, writer: &mut Writer) -> Result<(), ApiError> {
        let interface = &port.spec.interface;
        self.block_interface(port, || self.dataplane.block_interface(interface));
        let failed = match self.dataplane.open_port(&port.spec) {
            Ok(report) => {
                let attachment = writer.next_attachment()?;
                for warning in &report.warnings {
                    tracing::warn!(port = name, "{warning}");
                }
                let mut next = self.draft();
                if let Some(port) = next.ports.get_mut(name) {
                    (port.report, port.is_open) = (report, true);
                    (port.state, port.reason) = (PortState::Up, None);
                }
                for pod in next.pods.values_mut().filter(|pod| pod.request.port == name) {
                    pod.attachment = attachment;
                }
                self.publish(next)?;
                tracing::info!(port = name, interface, "the port is attached to its interface again");
                return Ok(());
            }
            Err(PortError::NoNamespace { namespace }) => {
                let reason = format!("network namespace {namespace} is gone");
                return self.update_port(name, port, PortState::Down, Some(reason), |_| ());
            }
            Err(PortError::NoInterface { .. }) => {
                let reason = format!("interface {interface} is gone");
                return self.update_port(name, port, PortState::Down, Some(reason), |_| ());
            }
            Err(failed) => failed,
        };
        self.record_open_failure(name, port, &failed)
    }

    /// Records that a port cannot be opened on its interface. Blocks the interface if possible.
    fn record_open_failure(&self, name: &str, port: &PortRecord, failed: &PortError) -> Result<(), ApiError> {
        let interface = &port.spec.interface;
        let is_guarded = match port.spec.kind {
            PortKind::Uplink => false,
            PortKind::Tap => true,
            PortKind::Pod | PortKind::Host => self.dataplane.block_interface(interface).is_ok(),
        };
        let (state, fate) = if is_guarded {
            (PortState::Down, "what it receives is dropped")
        } else {
            (PortState::Unguarded, "what it receives enters the node's own stack")
        };
        let reason = format!("interface {interface} is there, and cannot be attached to ({fate}): {failed}");
        self.update_port(name, port, state, Some(reason), |port| port.is_open = false)
    }

    /// Stores and logs the state of a port if it has changed. Publishes it if the dataplane has closed the
    /// port.
    fn update_port(
        &self,
        name: &str,
        port: &PortRecord,
        state: PortState,
        reason: Option<String>,
        change: impl FnOnce(&mut PortRecord),
    ) -> Result<(), ApiError> {
        let mut changed = PortRecord { state, reason, ..port.clone() };
        change(&mut changed);
        let closes = port.is_open && !changed.is_open;
        let is_news = (changed.state, &changed.reason) != (port.state, &port.reason);
        if !is_news && !closes && changed.report == port.report {
            return Ok(());
        }
        let reason = changed.reason.as_deref().unwrap_or("its interface is as it should be");
        match changed.state {
            _ if !is_news => {}
            PortState::Up => tracing::info!(port = name, "the port is up: {reason}"),
            PortState::Down => tracing::warn!(port = name, "the port is down: {reason}"),
            PortState::Unguarded => tracing::error!(port = name, "the port is UNGUARDED: {reason}"),
        }
        let mut next = self.draft();
        next.ports.insert(name.to_owned(), changed);
        if closes {
            self.publish(next)?;
        } else {
            self.state.store(Arc::new(next));
        }
        Ok(())
    }
}

/// Whether the interface of a port without its program is blocked: the kernel uses an uplink too, and a tap device
/// has no carrier without the switch.
fn blocks(port: &PortRecord) -> bool {
    !matches!(port.spec.kind, PortKind::Uplink | PortKind::Tap)
}

/// Returns whether an open port has the interface with this index.
fn is_port_index(state: &State, index: u32) -> bool {
    let is_in_node = |port: &PortRecord| port.is_open && port.spec.namespace.is_none();
    state.ports.values().any(|port| is_in_node(port) && port.report.interface_index == index)
}
