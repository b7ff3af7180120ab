//! Publication and calls under [`loom`], as `conntrack/model.rs` has the conntrack table: the same code once more, of loom's atomics, locks
//! and reference counts, in all orders that make a difference. The kernel's event counter is a flag that can be waited for.

#![allow(dead_code)] // A model does not ask everything that workers do.
#![allow(clippy::duplicate_mod)] // That is the point: the same code, of other atomics.

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

/// As `super::parts`.
mod parts {
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub(super) use loom::sync::{Arc, RwLock};

    pub(super) const PORTS_MAX: usize = 3;

    /// As the kernel's event counter, but that a sleep ends by a ring alone: a ring that is missed is a model that never ends.
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

        /// Sleeps until it rings, as a worker does in `epoll_wait`.
        pub(super) fn sleep(&self) {
            let mut rings = self.rings.lock().unwrap();
            while !*rings {
                rings = self.waiting.wait(rings).unwrap();
            }
        }
    }
}

const LAST: Generation = Generation(3);
/// Zero, which nobody has, and those up to the last.
const GENERATIONS: usize = LAST.0 as usize + 1;

/// A view, and what is said of it.
struct Snapshot {
    generation: Generation,
    /// Packets that were judged by it: what hit counters are.
    judged: AtomicU32,
    books: Arc<Books>,
}

/// What outlives every view.
#[derive(Default)]
struct Books {
    /// By generation, how often it was freed, and by whom: one for the control side, a hundred for a worker.
    freed: [AtomicU32; GENERATIONS],
    /// The last generation whose publication is over.
    published: AtomicU32,
}

loom::thread_local! {
    static IS_WORKER: std::cell::Cell<bool> = std::cell::Cell::new(false);
}

impl Snapshot {
    fn new(generation: u32, books: &Arc<Books>) -> Snapshot {
        Snapshot { generation: Generation(generation), judged: AtomicU32::new(0), books: books.clone() }
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
        self.books.freed[self.generation.0 as usize].fetch_add(by, Relaxed);
    }
}

/// A switch of these workers.
struct Switch {
    views: Publication<Snapshot>,
    doorbell: Doorbell,
    books: Arc<Books>,
}

impl Switch {
    fn new(workers: usize) -> Arc<Switch> {
        let books = Arc::new(Books::default());
        let views = Publication::new(Snapshot::new(1, &books), workers);
        Arc::new(Switch { views, doorbell: Doorbell::new(EventFd::new()), books })
    }

    /// Publishes a view and waits for the workers; says how many packets were judged by the one before.
    fn publish(&self, generation: u32) -> u32 {
        let before = self.views.publish(Snapshot::new(generation, &self.books));
        self.doorbell.eventfd().signal();
        self.views.wait(Generation(generation), || {
            thread::yield_now();
            true
        });
        self.books.published.store(generation, Release);
        before.judged.load(Relaxed)
    }

    /// A worker's batches until it judges by the generation `last`; how many packets it has judged by each.
    fn work(&self, worker: WorkerId, last: u32, mut rest: impl FnMut()) -> [u32; GENERATIONS] {
        IS_WORKER.with(|is_worker| is_worker.set(true));
        let mut own = self.views.register(worker);
        let mut judged = [0; GENERATIONS];
        while own.generation.0 < last {
            let before = own.generation;
            let is_other = self.views.observe(worker, &mut own);
            assert!(own.generation > before || !is_other && own.generation == before, "it went back");
            // The batch. What was published before it began holds, and so does all that is said to be over by now.
            let published = self.books.published.load(Acquire);
            assert!(own.generation.0 >= published, "{published} is published, and not yet judged by");
            assert_eq!(self.books.freed[own.generation.0 as usize].load(Relaxed), 0, "it is freed");
            own.judged.fetch_add(1, Relaxed);
            judged[own.generation.0 as usize] += 1;
            if own.generation.0 < last {
                rest();
            }
        }
        judged
    }

    /// How often each generation has been freed, and by whom ([`Books::freed`]).
    fn freed(&self) -> [u32; GENERATIONS] {
        [0, 1, 2, 3].map(|generation: usize| self.books.freed[generation].load(Relaxed))
    }
}

fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    builder.preemption_bound = preemptions;
    builder.check(model);
}

#[test]
fn when_a_publication_is_over_a_worker_judges_by_it_and_has_counted_all_by_the_one_before() {
    explore(None, || {
        let switch = Switch::new(1);
        let theirs = switch.clone();
        let worker = thread::spawn(move || theirs.work(WorkerId(0), 2, thread::yield_now));
        let counted = switch.publish(2);
        assert_eq!(switch.freed(), [0, 1, 0, 0], "the control side has freed it, and a worker none");
        assert_eq!(worker.join().unwrap()[1], counted);
    });
}

#[test]
fn a_publication_is_over_when_the_last_of_two_workers_has_passed() {
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
fn of_two_publications_in_a_row_a_worker_sees_both_in_their_order() {
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
fn of_two_publications_that_wait_for_nobody_a_worker_sees_the_later_and_each_view_is_freed_once() {
    static SKIPPED: AtomicBool = AtomicBool::new(false);
    explore(Some(3), || {
        let switch = Switch::new(1);
        let theirs = switch.clone();
        let worker = thread::spawn(move || theirs.work(WorkerId(0), 3, thread::yield_now));
        for generation in [2, 3] {
            drop(switch.views.publish(Snapshot::new(generation, &switch.books)));
        }
        assert!(!switch.views.wait(Generation(4), || false), "nobody can have come so far");
        worker.join().unwrap();
        assert_eq!(switch.views.observed(WorkerId(0)), LAST);
        let freed = switch.freed();
        assert!(freed[1..3].iter().all(|freed| [1, 100].contains(freed)), "{freed:?}");
        assert_eq!(freed[3], 0, "it is the current one");
        SKIPPED.fetch_or(freed[2] == 1, Relaxed);
    });
    assert!(SKIPPED.load(Relaxed), "the control side came first nowhere");
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

/// As a worker that has had an empty batch.
fn sleep(calls: &Doorbell) {
    if calls.prepare_sleep() {
        calls.eventfd().sleep();
    }
    calls.finish_sleep();
}

#[test]
fn a_worker_that_goes_to_sleep_hears_of_every_port_that_others_call_it_for() {
    explore(Some(3), || {
        let calls = Arc::new(Doorbell::new(EventFd::new()));
        // What the callers have put into their queues before.
        let queues = Arc::new([0, 1].map(|_| AtomicU32::new(0)));
        let (theirs, filled) = (calls.clone(), queues.clone());
        let worker = thread::spawn(move || {
            let mut heard = [0; 2];
            loop {
                theirs.take_rung(|port| {
                    assert_eq!(filled[port.index()].load(Relaxed), 1, "called before there was anything");
                    heard[port.index()] += 1;
                });
                if !heard.contains(&0) {
                    break heard;
                }
                sleep(&theirs);
            }
        });
        let (others, fills) = (calls.clone(), queues.clone());
        let other = thread::spawn(move || call(&others, &fills, 1));
        call(&calls, &queues, 0);
        other.join().unwrap();
        assert_eq!(worker.join().unwrap(), [1, 1]);
    });
}

fn call(calls: &Doorbell, queues: &[AtomicU32; 2], port: u16) {
    queues[usize::from(port)].store(1, Relaxed);
    calls.ring(PortId(port));
}
