//! Resolution of neighbours on uplinks, by the kernel.
//!
//! The kernel owns the NIC of an uplink, and ARP (RFC 826) and neighbour discovery (RFC 4861) on it. A thread of
//! the control side follows the kernel's neighbour table, and copies it to [`Neighbors`] for the workers. It
//! requests resolution of the neighbours that workers miss and of the next hops of routes, and confirmation of
//! stale neighbours in use.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::solicit::Solicitation;
use super::table::{Neighbors, SolicitQueue};
use super::uplink_table::{UplinkDevice, UplinkTable};
use crate::ids::PortId;
use crate::net::address::unpack;
use crate::netlink::NeighborEvents;
use crate::threads;

/// Time between two checks for missing and stale neighbours.
const TICK: Duration = Duration::from_secs(1);

/// The resolver thread. It ends when this is dropped.
pub(in crate::dataplane) struct Resolver {
    neighbors: Arc<Neighbors>,
    solicit_queue: Arc<SolicitQueue>,
    table: Arc<Mutex<UplinkTable>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Resolver {
    /// Starts the thread, for the network namespace of the calling thread. Fails where the kernel gives no
    /// netlink socket or no thread.
    pub(in crate::dataplane) fn start(
        neighbors: &Arc<Neighbors>,
        solicit_queue: &Arc<SolicitQueue>,
    ) -> io::Result<Resolver> {
        let (neighbors, solicit_queue) = (neighbors.clone(), solicit_queue.clone());
        let (table, stop) = (Arc::<Mutex<UplinkTable>>::default(), Arc::<AtomicBool>::default());
        let thread = ResolverThread {
            events: NeighborEvents::open()?,
            neighbors: neighbors.clone(),
            solicit_queue: solicit_queue.clone(),
            table: table.clone(),
            stop: stop.clone(),
        };
        let thread = Some(threads::spawn("palisade-neigh", move || thread.run())?);
        Ok(Resolver { neighbors, solicit_queue, table, stop, thread })
    }

    /// Adds an uplink, and requests the kernel's neighbours on it.
    pub(in crate::dataplane) fn add_uplink(&self, port: PortId, device: UplinkDevice) {
        lock(&self.table).add_uplink(port, device);
        self.solicit_queue.wake();
    }

    /// Removes an uplink and its neighbours.
    pub(in crate::dataplane) fn remove_uplink(&self, port: PortId) {
        let mut table = lock(&self.table);
        table.remove_uplink(port);
        self.neighbors.forget_uplink(port);
    }

    /// Keeps the next hops of these routes resolved, and of no others.
    pub(in crate::dataplane) fn keep_resolved(&self, next_hops: BTreeSet<(PortId, IpAddr)>) {
        lock(&self.table).set_next_hops(next_hops.into_iter().collect());
        self.solicit_queue.wake();
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.solicit_queue.wake();
        // A panic of the thread has been reported already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn lock(table: &Mutex<UplinkTable>) -> MutexGuard<'_, UplinkTable> {
    // The next dump of the kernel's neighbours repairs a table that a panic has left incomplete.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

struct ResolverThread {
    events: NeighborEvents,
    neighbors: Arc<Neighbors>,
    solicit_queue: Arc<SolicitQueue>,
    table: Arc<Mutex<UplinkTable>>,
    stop: Arc<AtomicBool>,
}

impl ResolverThread {
    fn run(self) {
        let mut ticked = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            self.wait(TICK.saturating_sub(ticked.elapsed()));
            let mut table = lock(&self.table);
            for event in self.events.events() {
                table.apply_event(event, &self.neighbors);
            }
            if table.start_dump() {
                report(self.events.dump());
            }
            let mut wanted = Vec::new();
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                table.start_tick();
                wanted = table.stale_in_use(&self.neighbors);
            }
            wanted.extend(table.missing_next_hops());
            for neighbor in table.take_given_up() {
                report(self.events.remove(neighbor));
            }
            for neighbor in wanted {
                report(self.events.resolve(neighbor));
            }
            while let Some(Solicitation { by, port, address }) = self.solicit_queue.pop() {
                let Some(request) = table.request(by, port, unpack(address)) else { continue };
                // The place in the kernel's table comes first.
                if let Some(replaced) = request.replaced {
                    report(self.events.remove(replaced));
                }
                report(self.events.resolve(request.wanted));
            }
        }
    }

    /// Waits for an event or a solicitation, at most `longest`.
    fn wait(&self, longest: Duration) {
        let mut fds = [self.events.fd(), self.solicit_queue.eventfd()]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let timeout =
            Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: i64::from(longest.subsec_nanos()) };
        // A signal handler ends the wait early, which does no harm.
        let _ = poll(&mut fds, Some(&timeout));
        self.solicit_queue.drain_wakeups();
    }
}

/// Reports a request that the kernel has not taken. The next tick, or the worker that misses the neighbour, makes
/// it again.
fn report(sent: io::Result<()>) {
    if let Err(error) = sent {
        tracing::warn!("the kernel's neighbour table cannot be asked: {error}");
    }
}
