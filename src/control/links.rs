//! The ports' interfaces, followed: a port whose interface goes is closed, and one whose interface comes back is opened again.
//!
//! Two threads share the work. The first reads what the kernel says, and closes an interface that has just got a port's name at
//! once, by a program that drops everything. The second compares each port with what the kernel has, closes and opens ports,
//! which takes tens of milliseconds each, and looks every second in any case: so nothing depends on a message that was lost.

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
use super::server::leave_cores;
use super::state::{Port, State};
use super::switch::Change;
use super::{Refusal, Switch};
use crate::dataplane::{PortError, PortHealth, PortKind};
use crate::netlink::{Interface, LinkEvent, LinkEvents};
use crate::threads;

/// Time between two looks where the kernel says nothing: it does not say that a link was detached by force, nor how many queues
/// an interface has.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Time between two tries to open a port on an interface of which the kernel says nothing new.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// The threads, until dropped.
pub(super) struct LinkMonitor {
    /// Closed to stop them.
    stop: Option<UnixStream>,
    threads: Vec<JoinHandle<()>>,
}

impl LinkMonitor {
    /// Follows the interfaces of the calling thread's network namespace.
    pub(super) fn start(switch: &Arc<Switch>) -> io::Result<LinkMonitor> {
        let table = LinkEvents::open()?;
        let (stop, stopped) = UnixStream::pair()?;
        let (wake, woken) = sync_channel(1);
        let mut monitor = LinkMonitor { stop: Some(stop), threads: Vec::new() };
        let listener = switch.clone();
        let listen = move || listen(&table, &listener, &stopped, &wake);
        monitor.threads.push(threads::spawn("palisade-links", listen)?);
        let switch = switch.clone();
        monitor.threads.push(threads::spawn("palisade-ports", move || follow(&switch, &woken))?);
        Ok(monitor)
    }
}

impl Drop for LinkMonitor {
    fn drop(&mut self) {
        drop(self.stop.take());
        for thread in mem::take(&mut self.threads) {
            // A panic there has ended the process.
            let _ = thread.join();
        }
    }
}

/// Reads what the kernel says until the other end of `stopped` is closed.
fn listen(table: &LinkEvents, switch: &Switch, stopped: &UnixStream, wake: &SyncSender<()>) {
    leave_cores(&switch.status().cores);
    // Until an interface is closed its pod's frames enter the node's stack: this thread comes before others. Without the capability it
    // waits for its turn.
    let _ = rustix::process::setpriority_process(None, -20);
    let mut closed = BTreeSet::new();
    let mut fds = [table.fd(), stopped.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    loop {
        // Interrupted, it looks early.
        let _ = poll(&mut fds, None);
        if !fds[1].revents().is_empty() {
            return;
        }
        table.read(|news| {
            if switch.hear(&news, &mut closed) {
                // One that waits to be taken is enough.
                let _ = wake.try_send(());
            }
        });
    }
}

/// Looks at all ports when woken, and every second, until the sender is gone.
fn follow(switch: &Switch, woken: &Receiver<()>) {
    leave_cores(&switch.status().cores);
    let mut stuck = Vec::new();
    let (mut looked, mut retried) = (Instant::now(), Instant::now());
    loop {
        let is_due = match woken.recv_timeout(LOOK_AGAIN.saturating_sub(looked.elapsed())) {
            Ok(()) => false,
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if is_due {
            looked = Instant::now();
            let now: Vec<_> = switch.engine.stuck_workers().iter().map(|stuck| stuck.worker).collect();
            for worker in now.iter().filter(|worker| !stuck.contains(*worker)) {
                tracing::error!(%worker, "a worker does not come to the end of a batch: changes do not reach it");
            }
            for worker in stuck.iter().filter(|worker| !now.contains(*worker)) {
                tracing::info!(%worker, "the worker goes on");
            }
            stuck = now;
        }
        let retries = !is_due || retried.elapsed() >= TRY_AGAIN;
        if retries {
            retried = Instant::now();
        }
        switch.follow_ports(retries);
    }
}

impl Switch {
    /// Takes note of what the kernel says of an interface: closes one that has come under the name of a port, and adds its number to
    /// those that were `closed`. Whether a port is concerned.
    fn hear(&self, news: &LinkEvent, closed: &mut BTreeSet<u32>) -> bool {
        let state = self.state.load();
        let (index, name, has_program) = match news {
            LinkEvent::Overrun => {
                closed.clear();
                return true;
            }
            LinkEvent::Removed { index } => {
                closed.remove(index);
                return is_of_port(&state, *index);
            }
            LinkEvent::Present { index, name, has_program } => (*index, name, *has_program),
        };
        let named = state.ports.values().find(|port| port.spec.interface == *name);
        // Messages that were written before it was closed still say that it has no program.
        if let Some(port) = named.filter(|_| !has_program && !closed.contains(&index)) {
            let done = self.guard(port, || self.engine.guard_new(index, name));
            if done {
                closed.insert(index);
            }
        }
        named.is_some() || is_of_port(&state, index)
    }

    /// Closes an interface of this port's name by `close`. Of an uplink the rest is the kernel's: it is left open. Whether it is closed.
    fn guard(&self, port: &Port, close: impl FnOnce() -> Result<(), PortError>) -> bool {
        let interface = &port.spec.interface;
        if port.spec.kind == PortKind::Uplink {
            return false;
        }
        match close() {
            // The port may have been removed meanwhile, and with it the promise.
            Ok(()) if !self.names(interface) => {
                let _ = self.engine.release(interface);
                false
            }
            Ok(()) => true,
            Err(PortError::NoInterface { .. }) => false,
            Err(error) => {
                // Said again, with what to do, when the port is looked at.
                tracing::debug!(interface, "the interface has come and is not closed: {error}");
                false
            }
        }
    }

    fn names(&self, interface: &str) -> bool {
        self.state.load().ports.values().any(|port| port.spec.interface == interface)
    }

    /// Compares all ports with what the kernel has, and closes and opens them accordingly; those that could not be opened only where
    /// it `retries`.
    fn follow_ports(&self, retries: bool) {
        let names: Vec<String> = self.state.load().ports.keys().cloned().collect();
        for name in names {
            if let Err(refusal) = self.follow_port(&name, retries) {
                tracing::error!(port = name, "the port does not follow its interface: {refusal}");
            }
        }
    }

    fn follow_port(&self, name: &str, retries: bool) -> Result<(), Refusal> {
        let state = self.state.load_full();
        let Some(port) = state.ports.get(name) else { return Ok(()) };
        if !port.is_open && !retries {
            return Ok(());
        }
        let mut change = self.change();
        // Looked up again: a request may have come between.
        let state = self.state.load_full();
        let Some(port) = state.ports.get(name) else { return Ok(()) };
        if !port.is_open {
            return self.open_again(name, port, &mut change);
        }
        match self.engine.check_port(port.report.id)? {
            PortHealth::Good { interface, obstacle } => self.note(name, port, &interface, obstacle),
            PortHealth::Gone => {
                let reason = format!("interface {} is gone", port.spec.interface);
                self.close(name, port, true, reason)?;
                self.open_after(name, &mut change)
            }
            PortHealth::Unguarded => {
                let reason = "its XDP program was taken off the interface".to_owned();
                self.close(name, port, false, reason)?;
                self.open_after(name, &mut change)
            }
            PortHealth::Changed(what) => {
                tracing::info!(port = name, "the port is opened anew: {what}");
                match self.engine.reopen_port(port.report.id, &port.spec) {
                    // The interface is the same one: whoever is behind it keeps its connections.
                    Ok(report) => self.set(name, port, PortState::Up, None, |port| port.report = report),
                    Err(failed) => self.fail(name, port, &failed),
                }
            }
        }
    }

    /// Takes note of how an open port's interface is called, and of what keeps frames from passing.
    fn note(
        &self,
        name: &str,
        port: &Port,
        interface: &str,
        obstacle: Option<String>,
    ) -> Result<(), Refusal> {
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
        self.set(name, port, state, reason, |_| ())
    }

    /// Closes a port and takes its pod out of the world; the pod stays attached to the port.
    fn close(&self, name: &str, port: &Port, is_gone: bool, reason: String) -> Result<(), Refusal> {
        self.set(name, port, PortState::Down, Some(reason), |port| port.is_open = false)?;
        Ok(self.engine.close_port(port.report.id, is_gone)?)
    }

    fn open_after(&self, name: &str, change: &mut Change) -> Result<(), Refusal> {
        let state = self.state.load_full();
        state.ports.get(name).map_or(Ok(()), |port| self.open_again(name, port, change))
    }

    /// Opens a port whose interface is there. Where that fails the interface stays closed, and the port is down; where even that
    /// fails, it is unguarded.
    fn open_again(&self, name: &str, port: &Port, change: &mut Change) -> Result<(), Refusal> {
        let interface = &port.spec.interface;
        self.guard(port, || self.engine.guard(interface));
        let failed = match self.engine.open_port(&port.spec) {
            Ok(report) => {
                let attachment = change.next_attachment()?;
                for warning in &report.warnings {
                    tracing::warn!(port = name, "{warning}");
                }
                let mut next = self.next();
                if let Some(port) = next.ports.get_mut(name) {
                    (port.report, port.is_open) = (report, true);
                    (port.state, port.reason) = (PortState::Up, None);
                }
                for pod in next.pods.values_mut().filter(|pod| pod.port == name) {
                    pod.attachment = attachment;
                }
                self.publish(next)?;
                tracing::info!(port = name, interface, "the port is attached to its interface again");
                return Ok(());
            }
            Err(PortError::NoInterface { .. }) => {
                let reason = format!("interface {interface} is gone");
                return self.set(name, port, PortState::Down, Some(reason), |_| ());
            }
            Err(failed) => failed,
        };
        self.fail(name, port, &failed)
    }

    /// Takes note that a port cannot be opened on its interface, which is closed all the same, if that can be done.
    fn fail(&self, name: &str, port: &Port, failed: &PortError) -> Result<(), Refusal> {
        let interface = &port.spec.interface;
        let is_guarded = port.spec.kind != PortKind::Uplink && self.engine.guard(interface).is_ok();
        let (state, fate) = if is_guarded {
            (PortState::Down, "what it receives is dropped")
        } else {
            (PortState::Unguarded, "what it receives enters the node's own stack")
        };
        let reason = format!("interface {interface} is there, and cannot be attached to ({fate}): {failed}");
        self.set(name, port, state, Some(reason), |port| port.is_open = false)
    }

    /// Stores and tells what has become of a port, where that is news. Publishes it, where the dataplane has it no longer.
    fn set(
        &self,
        name: &str,
        port: &Port,
        state: PortState,
        reason: Option<String>,
        change: impl FnOnce(&mut Port),
    ) -> Result<(), Refusal> {
        let mut changed = Port { state, reason, ..port.clone() };
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
        let mut next = self.next();
        next.ports.insert(name.to_owned(), changed);
        if closes {
            self.publish(next)?;
        } else {
            self.state.store(Arc::new(next));
        }
        Ok(())
    }
}

/// Whether an open port has the interface with this number.
fn is_of_port(state: &State, index: u32) -> bool {
    state.ports.values().any(|port| port.is_open && port.report.interface_index == index)
}
