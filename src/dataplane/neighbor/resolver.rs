//! Who is on the uplinks' links: what the kernel knows, kept where workers look.
//!
//! The NIC is the kernel's, and so are ARP and neighbour discovery on it. This thread of the control side hears of every
//! change of the kernel's neighbour table and notes it in [`Neighbors`]. It has the kernel resolve what workers miss and
//! what routes lead to, and confirm what workers use and nobody has confirmed for a while.

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

/// Time between two looks at what is missing or not confirmed. In this time the kernel is asked for a neighbour once,
/// and for [`NEIGHBOR_QUESTIONS_MAX`] of them that workers miss: a pod that tries all addresses of a link must not fill the
/// kernel's table.
const TICK: Duration = Duration::from_secs(1);

/// The thread, until dropped.
pub(in crate::dataplane) struct Resolver {
    shared: Arc<Shared>,
    table: Arc<Mutex<UplinkTable>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Where an uplink's neighbours are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::dataplane) struct Link {
    /// The kernel's number of the interface that has them: the port's own, or its VLAN device.
    pub(in crate::dataplane) interface: u32,
    /// Whether the kernel resolves them there. If not, only what the operator has entered for good counts.
    pub(in crate::dataplane) resolves: bool,
}

impl Resolver {
    /// Follows the neighbour table of the calling thread's network namespace.
    pub(in crate::dataplane) fn start(shared: &Arc<Shared>) -> io::Result<Resolver> {
        let kernel = NeighborEvents::open()?;
        let (table, stop) = (Arc::<Mutex<UplinkTable>>::default(), Arc::<AtomicBool>::default());
        let resolver =
            ResolverThread { kernel, shared: shared.clone(), table: table.clone(), stop: stop.clone() };
        let thread = threads::spawn("palisade-neigh", move || resolver.run())?;
        Ok(Resolver { shared: shared.clone(), table, stop, thread: Some(thread) })
    }

    /// Follows the neighbours of an uplink.
    pub(in crate::dataplane) fn add_uplink(&self, port: PortId, link: Link) {
        let mut table = lock(&self.table);
        table.links.insert(port, link);
        table.needs_dump = true;
        self.shared.solicit_queue.wake();
    }

    /// Forgets an uplink and its neighbours.
    pub(in crate::dataplane) fn remove_uplink(&self, port: PortId) {
        let mut table = lock(&self.table);
        if let Some(link) = table.links.remove(&port) {
            table.known.retain(|(interface, _), _| *interface != link.interface);
        }
        self.shared.neighbors.forget_uplink(port);
    }

    /// Keeps the next hops of these routes resolved.
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
        // A thread that has panicked has said so, and is gone.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn lock(table: &Mutex<UplinkTable>) -> MutexGuard<'_, UplinkTable> {
    // What a panic leaves behind in the table is mended when the kernel names its neighbours again.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the thread works with.
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
            for news in self.kernel.events() {
                table.apply_event(news, &self.shared.neighbors);
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

    /// Waits for news, for a question, or so long.
    fn wait(&self, longest: Duration) {
        let solicit_queue = &self.shared.solicit_queue;
        let mut fds =
            [self.kernel.fd(), solicit_queue.eventfd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let timeout =
            Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: i64::from(longest.subsec_nanos()) };
        // Interrupted, it looks early.
        let _ = poll(&mut fds, Some(&timeout));
        solicit_queue.drain_wakeups();
    }
}

/// A request that does not go out is made again: by the next tick, or by the worker that misses somebody.
fn report(sent: io::Result<()>) {
    if let Err(error) = sent {
        tracing::warn!("the kernel's neighbour table cannot be asked: {error}");
    }
}

/// What is followed, and what is known. Whoever has it locked is the one who writes to [`Neighbors`].
#[derive(Default)]
struct UplinkTable {
    links: BTreeMap<PortId, Link>,
    /// Next hops of routes, to be resolved before the first packet.
    routers: BTreeSet<(PortId, IpAddr)>,
    /// Neighbours with an address, and whether it is to be confirmed once it is used.
    known: BTreeMap<Neighbor, bool>,
    /// Known neighbours that the kernel has not named since it was asked for all.
    not_in_dump: BTreeSet<Neighbor>,
    /// Neighbours that the kernel was asked for since the last tick.
    requested: BTreeSet<Neighbor>,
    /// Whether the kernel is to name all neighbours: a link has come, or messages were lost.
    needs_dump: bool,
}

impl UplinkTable {
    fn apply_event(&mut self, news: NeighborEvent, neighbors: &Neighbors) {
        match news {
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

    /// Neighbours that workers use and nobody has confirmed for a while.
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

    /// Next hops of routes that the kernel has no address of.
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

    /// What to ask the kernel for, where a worker has missed this neighbour.
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

    fn bench(link: Link) -> (UplinkTable, Neighbors) {
        (UplinkTable { links: [(PORT, link)].into(), ..UplinkTable::default() }, Neighbors::new())
    }

    #[test]
    fn workers_see_what_the_kernel_says_and_only_of_uplinks() {
        let (mut table, neighbors) = bench(LINK);
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
    fn what_the_kernel_does_not_name_any_more_is_gone() {
        let (mut table, neighbors) = bench(LINK);
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
    fn a_missing_router_is_asked_for_without_a_packet_and_once_a_tick() {
        let (mut table, neighbors) = bench(LINK);
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
    fn a_router_that_the_kernel_forgets_is_asked_for_at_once() {
        let (mut table, neighbors) = bench(LINK);
        let router = (7, ip("192.0.2.1"));
        table.routers = [(PORT, router.1)].into();
        table.apply_event(NeighborEvent::State(router, NudState::Reachable(mac(1))), &neighbors);
        // It fails, and goes while it is being asked for: the question goes with it.
        table.apply_event(NeighborEvent::State(router, NudState::Unresolved), &neighbors);
        assert_eq!(table.missing_routers(), [router]);
        table.apply_event(NeighborEvent::State(router, NudState::Removed), &neighbors);
        assert_eq!(table.missing_routers(), [router]);
        assert_eq!(table.missing_routers(), []);
    }

    #[test]
    fn a_stale_neighbour_is_confirmed_when_it_is_used_and_not_before() {
        let (mut table, neighbors) = bench(LINK);
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
    fn a_pod_that_tries_every_address_asks_for_a_bounded_number() {
        let (mut table, _) = bench(LINK);
        let asked = (0..10_000u32).filter_map(|i| table.request(PORT, IpAddr::from(i.to_be_bytes()))).count();
        assert_eq!(asked, NEIGHBOR_QUESTIONS_MAX);
        table.requested.clear();
        assert_eq!(table.request(PORT, ip("192.0.2.1")), Some((7, ip("192.0.2.1"))));
        assert_eq!(table.request(PORT, ip("192.0.2.1")), None, "once is enough");
    }

    #[test]
    fn where_the_kernel_cannot_resolve_only_permanent_neighbours_count() {
        let (mut table, neighbors) = bench(Link { resolves: false, ..LINK });
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
