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
    book: Arc<Mutex<Book>>,
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
        let table = NeighborEvents::open()?;
        let (book, stop) = (Arc::<Mutex<Book>>::default(), Arc::<AtomicBool>::default());
        let follower = Follower { table, shared: shared.clone(), book: book.clone(), stop: stop.clone() };
        let thread = threads::spawn("palisade-neigh", move || follower.run())?;
        Ok(Resolver { shared: shared.clone(), book, stop, thread: Some(thread) })
    }

    /// Follows the neighbours of an uplink.
    pub(in crate::dataplane) fn follow(&self, port: PortId, link: Link) {
        let mut book = lock(&self.book);
        book.links.insert(port, link);
        book.wants_all = true;
        self.shared.questions.wake();
    }

    /// Forgets an uplink and its neighbours.
    pub(in crate::dataplane) fn forget(&self, port: PortId) {
        let mut book = lock(&self.book);
        if let Some(link) = book.links.remove(&port) {
            book.known.retain(|(interface, _), _| *interface != link.interface);
        }
        self.shared.neighbors.forget_link(port);
    }

    /// Keeps the next hops of these routes resolved.
    pub(in crate::dataplane) fn keep(&self, routes: &[Route]) {
        let hops = routes.iter().filter_map(|route| Some((route.port, route.next_hop?)));
        lock(&self.book).routers = hops.collect();
        self.shared.questions.wake();
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.shared.questions.wake();
        // A thread that has panicked has said so, and is gone.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    // What a panic leaves behind in the book is mended when the kernel names its neighbours again.
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the thread works with.
struct Follower {
    table: NeighborEvents,
    shared: Arc<Shared>,
    book: Arc<Mutex<Book>>,
    stop: Arc<AtomicBool>,
}

impl Follower {
    fn run(self) {
        let mut ticked = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            self.wait(TICK.saturating_sub(ticked.elapsed()));
            let mut book = lock(&self.book);
            for news in self.table.events() {
                book.hear(news, &self.shared.neighbors);
            }
            if std::mem::take(&mut book.wants_all) {
                book.unseen = book.known.keys().copied().collect();
                report(self.table.dump());
            }
            let mut wanted = Vec::new();
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                book.asked.clear();
                wanted = book.unconfirmed(&self.shared.neighbors);
            }
            wanted.extend(book.missing_routers());
            while let Some((port, address)) = self.shared.questions.take() {
                wanted.extend(book.missed(port, unpack(address)));
            }
            for neighbor in wanted {
                report(self.table.resolve(neighbor));
            }
        }
    }

    /// Waits for news, for a question, or so long.
    fn wait(&self, longest: Duration) {
        let questions = &self.shared.questions;
        let mut fds =
            [self.table.fd(), questions.bell()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let timeout =
            Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: i64::from(longest.subsec_nanos()) };
        // Interrupted, it looks early.
        let _ = poll(&mut fds, Some(&timeout));
        questions.rest();
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
struct Book {
    links: BTreeMap<PortId, Link>,
    /// Next hops of routes, to be resolved before the first packet.
    routers: BTreeSet<(PortId, IpAddr)>,
    /// Neighbours with an address, and whether it is to be confirmed once it is used.
    known: BTreeMap<Neighbor, bool>,
    /// Known neighbours that the kernel has not named since it was asked for all.
    unseen: BTreeSet<Neighbor>,
    /// Neighbours that the kernel was asked for since the last tick.
    asked: BTreeSet<Neighbor>,
    /// Whether the kernel is to name all neighbours: a link has come, or messages were lost.
    wants_all: bool,
}

impl Book {
    fn hear(&mut self, news: NeighborEvent, neighbors: &Neighbors) {
        match news {
            NeighborEvent::State(neighbor, standing) => {
                self.unseen.remove(&neighbor);
                if standing == NudState::Removed && self.is_router(neighbor) {
                    self.asked.remove(&neighbor);
                }
                self.note(neighbor, standing, neighbors);
            }
            NeighborEvent::DumpDone => {
                for neighbor in std::mem::take(&mut self.unseen) {
                    self.note(neighbor, NudState::Unresolved, neighbors);
                }
            }
            NeighborEvent::Overrun => self.wants_all = true,
        }
    }

    fn note(&mut self, neighbor: Neighbor, standing: NudState, neighbors: &Neighbors) {
        let (interface, address) = neighbor;
        let on_it = self.links.iter().filter(|(_, link)| link.interface == interface);
        for (port, link) in on_it.map(|(port, link)| (*port, *link)).collect::<Vec<_>>() {
            let (mac, is_stale): (Option<Mac>, bool) = match standing {
                NudState::Permanent(mac) => (Some(mac), false),
                NudState::Reachable(mac) if link.resolves => (Some(mac), false),
                NudState::Stale(mac) if link.resolves => (Some(mac), true),
                _ => (None, false),
            };
            if !neighbors.resolve(port, pack(address), mac) {
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
    fn unconfirmed(&mut self, neighbors: &Neighbors) -> Vec<Neighbor> {
        let ports: BTreeMap<u32, PortId> =
            self.links.iter().map(|(port, link)| (link.interface, *port)).collect();
        let in_use = |(interface, address): Neighbor| {
            ports.get(&interface).is_some_and(|port| neighbors.was_used(*port, pack(address)))
        };
        let stale = self.known.iter().filter(|(_, is_stale)| **is_stale).map(|(neighbor, _)| *neighbor);
        let wanted: Vec<Neighbor> = stale.filter(|neighbor| in_use(*neighbor)).collect();
        self.asked.extend(&wanted);
        wanted
    }

    /// Next hops of routes that the kernel has no address of.
    fn missing_routers(&mut self) -> Vec<Neighbor> {
        let wanted: Vec<Neighbor> = self
            .routers
            .iter()
            .filter_map(|(port, address)| self.resolvable(*port, *address))
            .filter(|neighbor| !self.known.contains_key(neighbor) && !self.asked.contains(neighbor))
            .collect();
        self.asked.extend(&wanted);
        wanted
    }

    /// What to ask the kernel for, where a worker has missed this neighbour.
    fn missed(&mut self, port: PortId, address: IpAddr) -> Option<Neighbor> {
        let neighbor = self.resolvable(port, address)?;
        let may = self.asked.len() < NEIGHBOR_QUESTIONS_MAX && !self.known.contains_key(&neighbor);
        (may && self.asked.insert(neighbor)).then_some(neighbor)
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

    fn bench(link: Link) -> (Book, Neighbors) {
        (Book { links: [(PORT, link)].into(), ..Book::default() }, Neighbors::new())
    }

    #[test]
    fn workers_see_what_the_kernel_says_and_only_of_uplinks() {
        let (mut book, neighbors) = bench(LINK);
        let router = ip("fe80::1");
        let seen = |neighbors: &Neighbors| neighbors.on_link(PORT, pack(router));
        book.hear(NeighborEvent::State((8, router), NudState::Reachable(mac(8))), &neighbors);
        assert_eq!(seen(&neighbors), None);
        for standing in [NudState::Reachable(mac(1)), NudState::Stale(mac(2)), NudState::Permanent(mac(3))] {
            book.hear(NeighborEvent::State((7, router), standing), &neighbors);
            let (NudState::Reachable(mac) | NudState::Stale(mac) | NudState::Permanent(mac)) = standing
            else {
                unreachable!("the list above has no other")
            };
            assert_eq!(seen(&neighbors), Some(mac));
        }
        book.hear(NeighborEvent::State((7, router), NudState::Unresolved), &neighbors);
        assert_eq!(seen(&neighbors), None);
    }

    #[test]
    fn what_the_kernel_does_not_name_any_more_is_gone() {
        let (mut book, neighbors) = bench(LINK);
        for last in 1..=2 {
            let address = IpAddr::from([192, 0, 2, last]);
            book.hear(NeighborEvent::State((7, address), NudState::Reachable(mac(last))), &neighbors);
        }
        book.hear(NeighborEvent::Overrun, &neighbors);
        assert!(book.wants_all);
        book.unseen = book.known.keys().copied().collect();
        book.hear(NeighborEvent::State((7, ip("192.0.2.2")), NudState::Reachable(mac(2))), &neighbors);
        book.hear(NeighborEvent::DumpDone, &neighbors);
        assert_eq!(neighbors.on_link(PORT, pack(ip("192.0.2.1"))), None);
        assert_eq!(neighbors.on_link(PORT, pack(ip("192.0.2.2"))), Some(mac(2)));
    }

    #[test]
    fn a_missing_router_is_asked_for_without_a_packet_and_once_a_tick() {
        let (mut book, neighbors) = bench(LINK);
        book.routers = [(PORT, ip("192.0.2.1")), (PortId(9), ip("192.0.2.9"))].into();
        assert_eq!(book.missing_routers(), [(7, ip("192.0.2.1"))]);
        assert_eq!(book.missing_routers(), []);
        book.asked.clear();
        assert_eq!(book.missing_routers(), [(7, ip("192.0.2.1"))]);
        book.hear(NeighborEvent::State((7, ip("192.0.2.1")), NudState::Reachable(mac(1))), &neighbors);
        book.asked.clear();
        assert_eq!(book.missing_routers(), []);
    }

    #[test]
    fn a_router_that_the_kernel_forgets_is_asked_for_at_once() {
        let (mut book, neighbors) = bench(LINK);
        let router = (7, ip("192.0.2.1"));
        book.routers = [(PORT, router.1)].into();
        book.hear(NeighborEvent::State(router, NudState::Reachable(mac(1))), &neighbors);
        // It fails, and goes while it is being asked for: the question goes with it.
        book.hear(NeighborEvent::State(router, NudState::Unresolved), &neighbors);
        assert_eq!(book.missing_routers(), [router]);
        book.hear(NeighborEvent::State(router, NudState::Removed), &neighbors);
        assert_eq!(book.missing_routers(), [router]);
        assert_eq!(book.missing_routers(), []);
    }

    #[test]
    fn a_stale_neighbour_is_confirmed_when_it_is_used_and_not_before() {
        let (mut book, neighbors) = bench(LINK);
        book.hear(NeighborEvent::State((7, ip("192.0.2.1")), NudState::Stale(mac(1))), &neighbors);
        assert_eq!(book.unconfirmed(&neighbors), []);
        neighbors.on_link(PORT, pack(ip("192.0.2.1")));
        assert_eq!(book.unconfirmed(&neighbors), [(7, ip("192.0.2.1"))]);
        neighbors.on_link(PORT, pack(ip("192.0.2.1")));
        book.hear(NeighborEvent::State((7, ip("192.0.2.1")), NudState::Reachable(mac(1))), &neighbors);
        assert_eq!(book.unconfirmed(&neighbors), []);
    }

    #[test]
    fn a_pod_that_tries_every_address_asks_for_a_bounded_number() {
        let (mut book, _) = bench(LINK);
        let asked = (0..10_000u32).filter_map(|i| book.missed(PORT, IpAddr::from(i.to_be_bytes()))).count();
        assert_eq!(asked, NEIGHBOR_QUESTIONS_MAX);
        book.asked.clear();
        assert_eq!(book.missed(PORT, ip("192.0.2.1")), Some((7, ip("192.0.2.1"))));
        assert_eq!(book.missed(PORT, ip("192.0.2.1")), None, "once is enough");
    }

    #[test]
    fn where_the_kernel_cannot_resolve_only_permanent_neighbours_count() {
        let (mut book, neighbors) = bench(Link { resolves: false, ..LINK });
        book.routers = [(PORT, ip("192.0.2.1"))].into();
        assert_eq!(book.missing_routers(), []);
        assert_eq!(book.missed(PORT, ip("192.0.2.2")), None);
        book.hear(NeighborEvent::State((7, ip("192.0.2.1")), NudState::Reachable(mac(1))), &neighbors);
        assert_eq!(neighbors.on_link(PORT, pack(ip("192.0.2.1"))), None);
        book.hear(NeighborEvent::State((7, ip("192.0.2.1")), NudState::Permanent(mac(1))), &neighbors);
        assert_eq!(neighbors.on_link(PORT, pack(ip("192.0.2.1"))), Some(mac(1)));
    }
}
