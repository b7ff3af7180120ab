//! [`loom`] models of the ring of a memory port: the production code on loom's atomics, in the orders that make a
//! difference.

#![allow(dead_code)] // A model calls a part of the production code only.
#![allow(clippy::duplicate_mod)] // The ring is compiled a second time, with loom's atomics.

#[path = "ring.rs"]
mod ring;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use self::parts::RING_SLOTS;
use self::ring::Ring;

/// Loom's versions of `super::parts`.
mod parts {
    use std::sync::atomic::Ordering;

    use loom::cell::UnsafeCell;
    pub(super) use loom::sync::atomic::AtomicU32;

    pub(super) const RING_SLOTS: usize = 1;

    /// Slot of a ring. Loom fails where accesses of the two sides overlap; of a mere atomic it does not load values that are
    /// stored later, as a processor may.
    pub(super) struct AtomicU64 {
        descriptor: loom::sync::atomic::AtomicU64,
        access: UnsafeCell<()>,
    }

    impl AtomicU64 {
        pub(super) fn new(descriptor: u64) -> AtomicU64 {
            AtomicU64 { descriptor: descriptor.into(), access: UnsafeCell::new(()) }
        }

        pub(super) fn load(&self, ordering: Ordering) -> u64 {
            self.access.with(|_| self.descriptor.load(ordering))
        }

        pub(super) fn store(&self, descriptor: u64, ordering: Ordering) {
            self.access.with_mut(|_| self.descriptor.store(descriptor, ordering));
        }
    }
}

/// Two rings between two sides, and the bytes of the frame that goes round in them. Loom fails where accesses of the two
/// sides to the frame overlap.
struct Port {
    there: Ring,
    back: Ring,
    frame: UnsafeCell<()>,
}

const FRAME: u64 = 7;

/// Waits for the frame, and writes it.
fn take(port: &Port, ring: &Ring) {
    while ring.take(1, |frame| assert_eq!(frame, FRAME)) == 0 {
        thread::yield_now();
    }
    port.frame.with_mut(|_| ());
}

/// Runs a model in all its orders in which a thread is interrupted at most three times: two threads that wait for each other
/// have many.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn a_frame_belongs_to_the_side_that_has_dequeued_it() {
    explore(|| {
        let port = Arc::new(Port { there: Ring::new(), back: Ring::new(), frame: UnsafeCell::new(()) });
        let peer = thread::spawn({
            let port = port.clone();
            move || {
                take(&port, &port.there);
                port.back.put([FRAME].into_iter());
            }
        });
        port.frame.with_mut(|_| ());
        port.there.put([FRAME].into_iter());
        take(&port, &port.back);
        peer.join().unwrap();
        assert_eq!((port.there.len(), port.back.len()), (0, 0));
    });
}

#[test]
fn a_slot_of_a_ring_is_reused_after_its_descriptor_was_dequeued() {
    explore(|| {
        let ring = Arc::new(Ring::new());
        ring.put([1].into_iter());
        let consumer = thread::spawn({
            let ring = ring.clone();
            move || {
                let mut seen = Vec::new();
                while seen.len() < 2 {
                    if ring.take(1, |frame| seen.push(frame)) == 0 {
                        thread::yield_now();
                    }
                }
                seen
            }
        });
        // The producer of a port knows by the frames that it has whether a slot is free; this one looks.
        while ring.len() == RING_SLOTS {
            thread::yield_now();
        }
        ring.put([2].into_iter());
        assert_eq!(consumer.join().unwrap(), [1, 2]);
    });
}
