//! Resolver of neighbours on uplinks: mirrors the kernel's neighbour table for the workers.
//!
//! The NIC belongs to the kernel, and so do ARP and neighbour discovery on it. This thread of the control
//! side reads each change of the kernel's neighbour table and records it in [`Neighbors`]. It has the kernel
//! resolve the neighbours that workers miss and the next hops of routes, and probe stale neighbours that are
//! in use.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::table::Neighbors;
use crate::dataplane::worker::Shared;
use crate::dataplane::{Mac, Route};
use crate::ids::PortId;
use crate::limits::NEIGHBOR_QUESTIONS_MAX;
use crate::net::address::{pack, unpack};
use crate::netlink::{Neighbor, NeighborEvent, NeighborEvents, NudState};
use crate::threads;

/// Interval between two checks for missing and stale neighbours. In one interval, the kernel is asked to
/// resolve a neighbour at most once, and at most [`NEIGHBOR_QUESTIONS_MAX`] neighbours that workers miss: a
/// pod that tries all addresses of a link must not fill the kernel's table (`gc_thresh3` of arp(7)).
const TICK: Duration = Duration::from_secs(1);

/// Running resolver thread. Dropping it stops the thread.
pub(in crate::dataplane) struct Resolver {
    shared: Arc<Shared>,
    table: Arc<Mutex<UplinkTable>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Location of an uplink's neighbours in the kernel's neighbour table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::dataplane) struct Link {
    /// Index of the interface that has the neighbours (`ndm_ifindex` of `struct ndmsg`): the port's own, or
    /// its VLAN device.
    pub(in crate::dataplane) interface: u32,
    /// Whether the kernel resolves neighbours there. If not, only entries in state `NUD_PERMANENT` count.
    pub(in crate::dataplane) resolves: bool,
}

impl Resolver {
    /// Starts the thread, on the neighbour table of the calling thread's network namespace.
    pub(in crate::dataplane) fn start(shared: &Arc<Shared>) -> io::Result<Resolver> {
        let kernel = NeighborEvents::open()?;
        let (table, stop) = (Arc::<Mutex<UplinkTable>>::default(), Arc::<AtomicBool>::default());
        let resolver =
            ResolverThread { kernel, shared: shared.clone(), table: table.clone(), stop: stop.clone() };
        let thread = threads::spawn("palisade-neigh", move || resolver.run())?;
        Ok(Resolver { shared: shared.clone(), table, stop, thread: Some(thread) })
    }

    /// Adds an uplink: mirrors its neighbours from here on.
    pub(in crate::dataplane) fn add_uplink(&self, port: PortId, link: Link) {
        let mut table = lock(&self.table);
        table.links.insert(port, link);
        table.needs_dump = true;
        self.shared.solicit_queue.wake();
    }

    /// Removes an uplink and its neighbours.
    pub(in crate::dataplane) fn remove_uplink(&self, port: PortId) {
        let mut table = lock(&self.table);
        if let Some(link) = table.links.remove(&port) {
            table.known.retain(|(interface, _), _| *interface != link.interface);
        }
        self.shared.neighbors.forget_uplink(port);
    }

    /// Keeps the next hops of these routes resolved, and of no others.
    pub(in crate::dataplane) fn keep_resolved(&self, routes: &[Route]) {
        let hops = routes.iter().filter_map(|route| Some((route.port, route.next_hop?)));
        lock(&self.table).routers = hops.collect();
        self.shared.solicit_queue.wake();
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.shared.solicit_queue.wake();
        // A panic of the thread has been reported already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn lock(table: &Mutex<UplinkTable>) -> MutexGuard<'_, UplinkTable> {
    // The kernel's next dump repairs a table that a panic left half changed.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State of the thread.
struct ResolverThread {
    kernel: NeighborEvents,
    shared: Arc<Shared>,
    table: Arc<Mutex<UplinkTable>>,
    stop: Arc<AtomicBool>,
}

impl ResolverThread {
    fn run(self) {
        let mut ticked = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            self.wait(TICK.saturating_sub(ticked.elapsed()));
            let mut table = lock(&self.table);
            for event in self.kernel.events() {
                table.apply_event(event, &self.shared.neighbors);
            }
            if std::mem::take(&mut table.needs_dump) {
                table.not_in_dump = table.known.keys().copied().collect();
                report(self.kernel.dump());
            }
            let mut wanted = Vec::new();
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                table.requested.clear();
                wanted = table.stale_in_use(&self.shared.neighbors);
            }
            wanted.extend(table.missing_routers());
            while let Some((port, address)) = self.shared.solicit_queue.pop() {
                wanted.extend(table.request(port, unpack(address)));
            }
            for neighbor in wanted {
                report(self.kernel.resolve(neighbor));
            }
        }
    }

    /// Waits for a kernel event, for a request of a worker, or for `longest`.
    fn wait(&self, longest: Duration) {
        let solicit_queue = &self.shared.solicit_queue;
        let mut fds =
            [self.kernel.fd(), solicit_queue.eventfd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let timeout =
            Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: i64::from(longest.subsec_nanos()) };
        // An interrupted poll only checks early.
        let _ = poll(&mut fds, Some(&timeout));
        solicit_queue.drain_wakeups();
    }
}

/// Logs a failed request. The next interval repeats it, or the next packet of the worker that misses the
/// neighbour.
fn report(sent: io::Result<()>) {
    if let Err(error) = sent {
        tracing::warn!("the kernel's neighbour table cannot be asked: {error}");
    }
}

/// Uplinks and their known neighbours. Only the holder of its lock writes to [`Neighbors`].
#[derive(Default)]
struct UplinkTable {
    links: BTreeMap<PortId, Link>,
    /// Next hops of routes, resolved before the first packet needs them.
    routers: BTreeSet<(PortId, IpAddr)>,
    /// Resolved neighbours, and whether their entry is stale and needs a probe once it is used.
    known: BTreeMap<Neighbor, bool>,
    /// Resolved neighbours that the dump in progress has not named yet.
    not_in_dump: BTreeSet<Neighbor>,
    /// Neighbours that the kernel was asked to resolve in this interval.
    requested: BTreeSet<Neighbor>,
    /// Whether the kernel must dump its table: an uplink was added, or events were lost (`ENOBUFS` of
    /// netlink(7)).
    needs_dump: bool,
}

impl UplinkTable {
    fn apply_event(&mut self, event: NeighborEvent, neighbors: &Neighbors) {
        match event {
            NeighborEvent::State(neighbor, nud_state) => {
                self.not_in_dump.remove(&neighbor);
                if nud_state == NudState::Removed && self.is_router(neighbor) {
                    self.requested.remove(&neighbor);
                }
                self.set_state(neighbor, nud_state, neighbors);
            }
            NeighborEvent::DumpDone => {
                for neighbor in std::mem::take(&mut self.not_in_dump) {
                    self.set_state(neighbor, NudState::Unresolved, neighbors);
                }
            }
            NeighborEvent::Overrun => self.needs_dump = true,
        }
    }

    fn set_state(&mut self, neighbor: Neighbor, nud_state: NudState, neighbors: &Neighbors) {
        let (interface, address) = neighbor;
        let on_it = self.links.iter().filter(|(_, link)| link.interface == interface);
        for (port, link) in on_it.map(|(port, link)| (*port, *link)).collect::<Vec<_>>() {
            let (mac, is_stale): (Option<Mac>, bool) = match nud_state {
                NudState::Permanent(mac) => (Some(mac), false),
                NudState::Reachable(mac) if link.resolves => (Some(mac), false),
                NudState::Stale(mac) if link.resolves => (Some(mac), true),
                _ => (None, false),
            };
            if !neighbors.set_uplink_mac(port, pack(address), mac) {
                tracing::warn!(
                    "there is no place for neighbour {address}: packets to it are dropped as unresolved"
                );
            }
            match mac {
                Some(_) => self.known.insert(neighbor, is_stale),
                None => self.known.remove(&neighbor),
            };
        }
    }

    /// Stale neighbours that workers use.
    fn stale_in_use(&mut self, neighbors: &Neighbors) -> Vec<Neighbor> {
        let ports: BTreeMap<u32, PortId> =
            self.links.iter().map(|(port, link)| (link.interface, *port)).collect();
        let in_use = |(interface, address): Neighbor| {
            ports.get(&interface).is_some_and(|port| neighbors.take_used(*port, pack(address)))
        };
        let stale = self.known.iter().filter(|(_, is_stale)| **is_stale).map(|(neighbor, _)| *neighbor);
        let wanted: Vec<Neighbor> = stale.filter(|neighbor| in_use(*neighbor)).collect();
        self.requested.extend(&wanted);
        wanted
    }

    /// Next hops of routes that are not resolved.
    fn missing_routers(&mut self) -> Vec<Neighbor> {
        let wanted: Vec<Neighbor> = self
            .routers
            .iter()
            .filter_map(|(port, address)| self.resolvable(*port, *address))
            .filter(|neighbor| !self.known.contains_key(neighbor) && !self.requested.contains(neighbor))
            .collect();
        self.requested.extend(&wanted);
        wanted
    }

    /// Request to the kernel for a neighbour that a worker misses; `None` if it is out of bounds or
    /// superfluous.
    fn request(&mut self, port: PortId, address: IpAddr) -> Option<Neighbor> {
        let neighbor = self.resolvable(port, address)?;
        let may = self.requested.len() < NEIGHBOR_QUESTIONS_MAX && !self.known.contains_key(&neighbor);
        (may && self.requested.insert(neighbor)).then_some(neighbor)
    }

    fn is_router(&self, (interface, address): Neighbor) -> bool {
        let is_it = |(port, link): (&PortId, &Link)| {
            link.interface == interface && self.routers.contains(&(*port, address))
        };
        self.links.iter().any(is_it)
    }

    fn resolvable(&self, port: PortId, address: IpAddr) -> Option<Neighbor> {
        let link = self.links.get(&port).filter(|link| link.resolves)?;
        Some((link.interface, address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: PortId = PortId(4);
    const LINK: Link = Link { interface: 7, resolves: true };

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn mac(last: u8) -> Mac {
        Mac([2, 0, 0, 0, 0, last])
    }

    fn fixture(link: Link) -> (UplinkTable, Neighbors) {
        (UplinkTable { links: [(PORT, link)].into(), ..UplinkTable::default() }, Neighbors::new())
    }

    #[test]
    fn workers_see_the_kernels_neighbours_of_uplinks_only() {
        let (mut table, neighbors) = fixture(LINK);
        let router = ip("fe80::1");
        let seen = |neighbors: &Neighbors| neighbors.uplink_mac(PORT, pack(router));
        table.apply_event(NeighborEvent::State((8, router), NudState::Reachable(mac(8))), &neighbors);
        assert_eq!(seen(&neighbors), None);
        for nud_state in [NudState::Reachable(mac(1)), NudState::Stale(mac(2)), NudState::Permanent(mac(3))] {
            table.apply_event(NeighborEvent::State((7, router), nud_state), &neighbors);
            let (NudState::Reachable(mac) | NudState::Stale(mac) | NudState::Permanent(mac)) = nud_state
            else {
                unreachable!("the list above has no other")
            };
            assert_eq!(seen(&neighbors), Some(mac));
        }
        table.apply_event(NeighborEvent::State((7, router), NudState::Unresolved), &neighbors);
        assert_eq!(seen(&neighbors), None);
    }

    #[test]
    fn a_neighbour_that_a_dump_does_not_name_is_removed() {
        let (mut table, neighbors) = fixture(LINK);
        for last in 1..=2 {
            let address = IpAddr::from([192, 0, 2, last]);
            table.apply_event(NeighborEvent::State((7, address), NudState::Reachable(mac(last))), &neighbors);
        }
        table.apply_event(NeighborEvent::Overrun, &neighbors);
        assert!(table.needs_dump);
        table.not_in_dump = table.known.keys().copied().collect();
        table
            .apply_event(NeighborEvent::State((7, ip("192.0.2.2")), NudState::Reachable(mac(2))), &neighbors);
        table.apply_event(NeighborEvent::DumpDone, &neighbors);
        assert_eq!(neighbors.uplink_mac(PORT, pack(ip("192.0.2.1"))), None);
        assert_eq!(neighbors.uplink_mac(PORT, pack(ip("192.0.2.2"))), Some(mac(2)));
    }

    #[test]
    fn a_missing_router_is_requested_without_a_packet_and_once_a_tick() {
        let (mut table, neighbors) = fixture(LINK);
        table.routers = [(PORT, ip("192.0.2.1")), (PortId(9), ip("192.0.2.9"))].into();
        assert_eq!(table.missing_routers(), [(7, ip("192.0.2.1"))]);
        assert_eq!(table.missing_routers(), []);
        table.requested.clear();
        assert_eq!(table.missing_routers(), [(7, ip("192.0.2.1"))]);
        table
            .apply_event(NeighborEvent::State((7, ip("192.0.2.1")), NudState::Reachable(mac(1))), &neighbors);
        table.requested.clear();
        assert_eq!(table.missing_routers(), []);
    }

    #[test]
    fn a_router_that_the_kernel_removes_is_requested_at_once() {
        let (mut table, neighbors) = fixture(LINK);
        let router = (7, ip("192.0.2.1"));
        table.routers = [(PORT, router.1)].into();
        table.apply_event(NeighborEvent::State(router, NudState::Reachable(mac(1))), &neighbors);
        // Resolution fails, and the kernel removes the entry while a request for it is under way: the request
        // is lost with the entry.
        table.apply_event(NeighborEvent::State(router, NudState::Unresolved), &neighbors);
        assert_eq!(table.missing_routers(), [router]);
        table.apply_event(NeighborEvent::State(router, NudState::Removed), &neighbors);
        assert_eq!(table.missing_routers(), [router]);
        assert_eq!(table.missing_routers(), []);
    }

    #[test]
    fn a_stale_neighbour_is_probed_when_it_is_used_and_not_before() {
        let (mut table, neighbors) = fixture(LINK);
        table.apply_event(NeighborEvent::State((7, ip("192.0.2.1")), NudState::Stale(mac(1))), &neighbors);
        assert_eq!(table.stale_in_use(&neighbors), []);
        neighbors.uplink_mac(PORT, pack(ip("192.0.2.1")));
        assert_eq!(table.stale_in_use(&neighbors), [(7, ip("192.0.2.1"))]);
        neighbors.uplink_mac(PORT, pack(ip("192.0.2.1")));
        table
            .apply_event(NeighborEvent::State((7, ip("192.0.2.1")), NudState::Reachable(mac(1))), &neighbors);
        assert_eq!(table.stale_in_use(&neighbors), []);
    }

    #[test]
    fn a_pod_that_tries_every_address_causes_a_bounded_number_of_requests() {
        let (mut table, _) = fixture(LINK);
        let requested =
            (0..10_000u32).filter_map(|i| table.request(PORT, IpAddr::from(i.to_be_bytes()))).count();
        assert_eq!(requested, NEIGHBOR_QUESTIONS_MAX);
        table.requested.clear();
        assert_eq!(table.request(PORT, ip("192.0.2.1")), Some((7, ip("192.0.2.1"))));
        assert_eq!(table.request(PORT, ip("192.0.2.1")), None, "it is requested already");
    }

    #[test]
    fn permanent_neighbours_alone_count_on_a_link_that_the_kernel_cannot_resolve() {
        let (mut table, neighbors) = fixture(Link { resolves: false, ..LINK });
        table.routers = [(PORT, ip("192.0.2.1"))].into();
        assert_eq!(table.missing_routers(), []);
        assert_eq!(table.request(PORT, ip("192.0.2.2")), None);
        table
            .apply_event(NeighborEvent::State((7, ip("192.0.2.1")), NudState::Reachable(mac(1))), &neighbors);
        assert_eq!(neighbors.uplink_mac(PORT, pack(ip("192.0.2.1"))), None);
        table
            .apply_event(NeighborEvent::State((7, ip("192.0.2.1")), NudState::Permanent(mac(1))), &neighbors);
        assert_eq!(neighbors.uplink_mac(PORT, pack(ip("192.0.2.1"))), Some(mac(1)));
    }
}
