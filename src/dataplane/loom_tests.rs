//! [`loom`] models of snapshot publication and of the doorbell: the production code on loom's atomics, locks
//! and reference counts, in all interleavings that make a difference. A flag with a condition variable
//! replaces the kernel's eventfd. `conntrack/loom_tests.rs` does the same for the conntrack table.

#![allow(dead_code)] // A model calls a part of the production code only.
#![allow(clippy::duplicate_mod)] // The modules are included a second time, on loom's atomics.

#[path = "worker/doorbell.rs"]
mod doorbell;
#[path = "fib/publish.rs"]
mod publish;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread;

use self::doorbell::Doorbell;
use self::parts::EventFd;
use self::publish::{Numbered, Publication};
use crate::ids::{Generation, PortId, WorkerId};

/// Loom's counterparts of `super::parts`.
mod parts {
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub(super) use loom::sync::{Arc, RwLock};

    pub(super) const PORTS_MAX: usize = 3;

    /// Eventfd model. Only a signal ends a sleep, so that a lost wake-up becomes a deadlock, which loom
    /// reports.
    pub(super) struct EventFd {
        rings: loom::sync::Mutex<bool>,
        waiting: loom::sync::Condvar,
    }

    impl EventFd {
        pub(super) fn new() -> EventFd {
            EventFd { rings: loom::sync::Mutex::new(false), waiting: loom::sync::Condvar::new() }
        }

        pub(super) fn signal(&self) {
            *self.rings.lock().unwrap() = true;
            self.waiting.notify_one();
        }

        pub(super) fn drain(&self) -> bool {
            std::mem::replace(&mut *self.rings.lock().unwrap(), false)
        }

        /// Sleeps until it is signalled, as a worker does in `epoll_wait`.
        pub(super) fn sleep(&self) {
            let mut rings = self.rings.lock().unwrap();
            while !*rings {
                rings = self.waiting.wait(rings).unwrap();
            }
        }
    }
}

const LAST: Generation = Generation(3);
/// Generations by index: zero, which none uses, to the last one.
const GENERATIONS: usize = LAST.0 as usize + 1;

/// Snapshot model, which records its use and its release.
struct Snapshot {
    generation: Generation,
    /// Packets evaluated under this snapshot: a model of the rule counters.
    evaluated: AtomicU32,
    records: Arc<Records>,
}

/// Records that outlive every snapshot.
#[derive(Default)]
struct Records {
    /// Releases of each generation: 1 for each by the control side, 100 for each by a worker.
    freed: [AtomicU32; GENERATIONS],
    /// Last generation whose publication has ended.
    published: AtomicU32,
}

loom::thread_local! {
    static IS_WORKER: std::cell::Cell<bool> = std::cell::Cell::new(false);
}

impl Snapshot {
    fn new(generation: u32, records: &Arc<Records>) -> Snapshot {
        Snapshot {
            generation: Generation(generation),
            evaluated: AtomicU32::new(0),
            records: records.clone(),
        }
    }
}

impl Numbered for Snapshot {
    fn generation(&self) -> Generation {
        self.generation
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let by = if IS_WORKER.with(std::cell::Cell::get) { 100 } else { 1 };
        self.records.freed[self.generation.0 as usize].fetch_add(by, Relaxed);
    }
}

/// Switch model.
struct Switch {
    publication: Publication<Snapshot>,
    doorbell: Doorbell,
    records: Arc<Records>,
}

impl Switch {
    fn new(workers: usize) -> Arc<Switch> {
        let records = Arc::new(Records::default());
        let publication = Publication::new(Snapshot::new(1, &records), workers);
        Arc::new(Switch { publication, doorbell: Doorbell::new(EventFd::new()), records })
    }

    /// Publishes a snapshot and waits for the workers. Returns the number of packets that were evaluated
    /// under the one before.
    fn publish(&self, generation: u32) -> u32 {
        let before = self.publication.publish(Snapshot::new(generation, &self.records));
        self.doorbell.eventfd().signal();
        self.publication.wait(Generation(generation), || {
            thread::yield_now();
            true
        });
        self.records.published.store(generation, Release);
        before.evaluated.load(Relaxed)
    }

    /// Runs batches of a worker until it uses the generation `last`. Returns the number of packets evaluated
    /// under each generation.
    fn work(&self, worker: WorkerId, last: u32, mut idle: impl FnMut()) -> [u32; GENERATIONS] {
        IS_WORKER.with(|is_worker| is_worker.set(true));
        let mut own = self.publication.register(worker);
        let mut evaluated = [0; GENERATIONS];
        while own.generation.0 < last {
            let before = own.generation;
            let is_other = self.publication.observe(worker, &mut own);
            assert!(
                own.generation > before || !is_other && own.generation == before,
                "the generation decreased"
            );
            // One batch. It must use the snapshot of the last publication that has ended, or a later one.
            let published = self.records.published.load(Acquire);
            assert!(own.generation.0 >= published, "{published} is published, and not in use yet");
            assert_eq!(self.records.freed[own.generation.0 as usize].load(Relaxed), 0, "it is freed");
            own.evaluated.fetch_add(1, Relaxed);
            evaluated[own.generation.0 as usize] += 1;
            if own.generation.0 < last {
                idle();
            }
        }
        evaluated
    }

    /// Releases of each generation, encoded as in [`Records::freed`].
    fn freed(&self) -> [u32; GENERATIONS] {
        [0, 1, 2, 3].map(|generation: usize| self.records.freed[generation].load(Relaxed))
    }
}

fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    builder.preemption_bound = preemptions;
    builder.check(model);
}

#[test]
fn when_a_publication_ends_the_worker_uses_it_and_has_counted_every_packet_under_the_one_before() {
    explore(None, || {
        let switch = Switch::new(1);
        let theirs = switch.clone();
        let worker = thread::spawn(move || theirs.work(WorkerId(0), 2, thread::yield_now));
        let counted = switch.publish(2);
        assert_eq!(switch.freed(), [0, 1, 0, 0], "the control side frees it, and no worker does");
        assert_eq!(worker.join().unwrap()[1], counted);
    });
}

#[test]
fn a_publication_ends_when_the_last_of_two_workers_has_observed_it() {
    explore(Some(1), || {
        let switch = Switch::new(2);
        let workers = [0, 1].map(|number| {
            let theirs = switch.clone();
            thread::spawn(move || theirs.work(WorkerId(number), 2, thread::yield_now))
        });
        let counted = switch.publish(2);
        assert_eq!(switch.freed(), [0, 1, 0, 0]);
        assert_eq!(workers.map(|worker| worker.join().unwrap()[1]).iter().sum::<u32>(), counted);
    });
}

#[test]
fn of_two_publications_in_a_row_the_worker_observes_both_in_order() {
    explore(Some(3), || {
        let switch = Switch::new(1);
        let theirs = switch.clone();
        let worker = thread::spawn(move || theirs.work(WorkerId(0), 3, thread::yield_now));
        let counted = [2, 3].map(|generation| switch.publish(generation));
        assert_eq!(switch.freed(), [0, 1, 1, 0]);
        assert_eq!(worker.join().unwrap()[1..3], counted);
    });
}

#[test]
fn of_two_publications_without_a_wait_the_worker_observes_the_later_and_each_snapshot_is_freed_once() {
    static SKIPPED: AtomicBool = AtomicBool::new(false);
    explore(Some(3), || {
        let switch = Switch::new(1);
        let theirs = switch.clone();
        let worker = thread::spawn(move || theirs.work(WorkerId(0), 3, thread::yield_now));
        for generation in [2, 3] {
            drop(switch.publication.publish(Snapshot::new(generation, &switch.records)));
        }
        assert!(!switch.publication.wait(Generation(4), || false), "that generation is not published");
        worker.join().unwrap();
        assert_eq!(switch.publication.observed(WorkerId(0)), LAST);
        let freed = switch.freed();
        assert!(freed[1..3].iter().all(|freed| [1, 100].contains(freed)), "{freed:?}");
        assert_eq!(freed[3], 0, "it is the current one");
        SKIPPED.fetch_or(freed[2] == 1, Relaxed);
    });
    assert!(SKIPPED.load(Relaxed), "no interleaving skips a generation");
}

#[test]
fn a_worker_that_goes_to_sleep_is_woken_by_a_publication_and_by_the_next() {
    explore(Some(3), || {
        let switch = Switch::new(1);
        let theirs = switch.clone();
        let worker = thread::spawn(move || theirs.work(WorkerId(0), 3, || sleep(&theirs.doorbell)));
        switch.publish(2);
        switch.publish(3);
        worker.join().unwrap();
        assert_eq!(switch.freed()[1..3], [1, 1]);
    });
}

/// Sleeps as a worker does after an empty batch.
fn sleep(doorbell: &Doorbell) {
    if doorbell.prepare_sleep() {
        doorbell.eventfd().sleep();
    }
    doorbell.finish_sleep();
}

#[test]
fn a_worker_that_goes_to_sleep_takes_every_port_that_others_ring_for() {
    explore(Some(3), || {
        let doorbell = Arc::new(Doorbell::new(EventFd::new()));
        // Handoff queues, which the callers fill before they ring.
        let queues = Arc::new([0, 1].map(|_| AtomicU32::new(0)));
        let (theirs, filled) = (doorbell.clone(), queues.clone());
        let worker = thread::spawn(move || {
            let mut taken = [0; 2];
            loop {
                theirs.take_rung(|port| {
                    assert_eq!(filled[port.index()].load(Relaxed), 1, "rung before the queue was filled");
                    taken[port.index()] += 1;
                });
                if !taken.contains(&0) {
                    break taken;
                }
                sleep(&theirs);
            }
        });
        let (others, fills) = (doorbell.clone(), queues.clone());
        let other = thread::spawn(move || fill_and_ring(&others, &fills, 1));
        fill_and_ring(&doorbell, &queues, 0);
        other.join().unwrap();
        assert_eq!(worker.join().unwrap(), [1, 1]);
    });
}

fn fill_and_ring(doorbell: &Doorbell, queues: &[AtomicU32; 2], port: u16) {
    queues[usize::from(port)].store(1, Relaxed);
    doorbell.ring(PortId(port));
}
