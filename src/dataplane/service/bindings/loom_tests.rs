//! [`loom`] models of a slot of the table of bindings: the production code on loom's atomics, in the orders that make a
//! difference. The reading side is the spawned thread, as in `conntrack/loom_tests.rs`.

#![allow(dead_code)] // A model calls a part of the production code only.
#![allow(clippy::duplicate_mod)] // The slot is compiled a second time, with loom's atomics.

#[path = "cached_hop.rs"]
mod cached_hop;
#[path = "../../../mem/sequence_lock.rs"]
mod sequence_lock;
#[path = "slot.rs"]
mod slot;

use std::sync::atomic::Ordering::Relaxed;

use loom::sync::Arc;
use loom::thread;

use self::parts::AtomicU16;
use self::slot::{Addresses, Binding, BindingEnd, BindingKey, BindingKind, Content, Slot};
use crate::dataplane::conntrack::Key;
use crate::ids::Generation;

/// Loom's versions of `super::parts`.
mod parts {
    pub(super) use loom::sync::atomic::{AtomicU16, AtomicU64, fence};

    pub(super) use super::sequence_lock::SequenceLock;
}

/// A slot with its tag.
#[derive(Default)]
struct Place {
    slot: Slot,
    addresses: Addresses,
    tag: AtomicU16,
}

fn key(number: u64) -> BindingKey {
    let host = u128::from(number);
    let key = Key::new(host << 64 | host, (host + 10) << 64 | host, number << 16 | 0x50 | 6 << 32);
    BindingKey { kind: BindingKind::Forward, key, from_low: true, hash: 0 }
}

impl Place {
    /// Slot with the binding of a key to `to`.
    fn with(number: u64, to: u16) -> Place {
        let place = Place::default();
        assert!(place.write(number, to, 0));
        place
    }

    /// Writes the binding of a key to an address of which each half is `to`, and to the port `to`.
    fn write(&self, number: u64, to: u16, revision: u16) -> bool {
        let half = u64::from(to);
        let address = u128::from(half) << 64 | u128::from(half);
        let content = Content { key: key(number), to: BindingEnd::new(address, to) };
        self.slot.write(&self.addresses, &content, 0, revision, half, &self.tag)
    }

    /// Removes the binding of a key, if it is found.
    fn remove(&self, number: u64) -> bool {
        self.read(number).is_some_and(|found| self.slot.remove(&found, &self.tag))
    }

    fn read(&self, number: u64) -> Option<Binding> {
        self.slot.read_if(&self.addresses, 0, &key(number))
    }

    /// End that the binding of a key leads to. It is a whole one.
    fn find(&self, number: u64) -> Option<u16> {
        self.read(number).map(|found| {
            let half = u128::from(found.to.port);
            assert_eq!(found.to.address, half << 64 | half);
            found.to.port
        })
    }

    fn tag_agrees(&self) -> bool {
        self.tag.load(Relaxed) == self.slot.tag()
    }
}

/// Runs a model in all its orders in which a thread is interrupted at most twice. A slot has so many words that all orders
/// would take minutes.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    builder.preemption_bound = Some(2);
    builder.check(model);
}

#[test]
fn a_reader_sees_the_binding_before_or_the_one_after_or_none() {
    explore(|| {
        let place = Arc::new(Place::with(1, 1));
        let reader = thread::spawn({
            let place = place.clone();
            move || place.find(1)
        });
        assert!(place.write(1, 2, 0));
        let found = reader.join().unwrap();
        assert!(matches!(found, None | Some(1 | 2)), "{found:?}");
        assert_eq!(place.find(1), Some(2));
    });
}

#[test]
fn a_reader_sees_no_binding_of_another_key() {
    explore(|| {
        let place = Arc::new(Place::with(1, 1));
        let reader = thread::spawn({
            let place = place.clone();
            move || (place.find(2), place.find(1))
        });
        assert!(place.write(2, 2, 0));
        let (new, old) = reader.join().unwrap();
        assert!(matches!(new, None | Some(2)) && matches!(old, None | Some(1)), "{new:?} {old:?}");
        // A reader of the later binding does not see the earlier one afterwards.
        assert!(new.is_none() || old.is_none());
    });
}

#[test]
fn of_two_writers_one_skips_or_follows_and_the_tag_is_that_of_the_last() {
    explore(|| {
        let place = Arc::new(Place::with(1, 1));
        let other = thread::spawn({
            let place = place.clone();
            move || place.write(3, 3, 0)
        });
        let one = place.write(2, 2, 0);
        let other = other.join().unwrap();
        let found = (place.find(1), place.find(2), place.find(3));
        assert!(one || other);
        assert!(
            one && found == (None, Some(2), None) || other && found == (None, None, Some(3)),
            "{one} {other} {found:?}"
        );
        assert!(place.tag_agrees());
    });
}

#[test]
fn a_removal_leaves_the_binding_that_has_replaced_the_removed_one() {
    explore(|| {
        let place = Arc::new(Place::with(1, 1));
        let remover = thread::spawn({
            let place = place.clone();
            move || place.remove(1)
        });
        let written = place.write(2, 2, 0);
        let removed = remover.join().unwrap();
        assert!(place.find(1).is_none() && (removed || written));
        assert_eq!(place.find(2), written.then_some(2), "{removed}");
        assert!(place.tag_agrees());
    });
}

#[test]
fn a_refresh_is_of_the_binding_that_was_read() {
    explore(|| {
        const CHECKED: u16 = 9;
        const WRITTEN: u16 = 5;
        let place = Arc::new(Place::with(1, 1));
        let reader = thread::spawn({
            let place = place.clone();
            move || {
                if let Some(found) = place.read(1) {
                    place.slot.refresh(found.place().version, 0, CHECKED);
                }
            }
        });
        // Another backend of the same key, checked against another revision.
        let written = place.write(1, 2, WRITTEN);
        reader.join().unwrap();
        let found = place.read(1).unwrap();
        let is_whole = found.to.address == u128::from(found.to.port) << 64 | u128::from(found.to.port);
        assert!(is_whole && found.to.port == if written { 2 } else { 1 });
        // A writer that a refresh has kept from the slot writes nothing. A refresh of the binding before has no effect on
        // the one after, though one that has read the later one may be of it.
        assert!(written || found.is_of(CHECKED, 0));
        assert!(!written || found.is_of(WRITTEN, 0) || found.is_of(CHECKED, 0));
    });
}

#[test]
fn a_refresh_of_the_binding_before_leaves_the_one_after_alone() {
    explore(|| {
        let place = Arc::new(Place::with(1, 1));
        let before = place.read(1).unwrap();
        let reader = thread::spawn({
            let place = place.clone();
            move || place.slot.refresh(before.place().version, 0, 9)
        });
        let written = place.write(1, 2, 5);
        reader.join().unwrap();
        let found = place.read(1).unwrap();
        assert!(found.is_of(if written { 5 } else { 9 }, 0), "{written}");
        assert_eq!(found.to.port, if written { 2 } else { 1 });
    });
}

#[test]
fn a_hop_cached_for_the_binding_before_is_not_taken_by_the_one_after() {
    explore(|| {
        const HOP: (Generation, u16) = (Generation(7), 3);
        let place = Arc::new(Place::with(1, 1));
        let worker = thread::spawn({
            let place = place.clone();
            move || {
                if let Some(found) = place.read(1) {
                    place.slot.cached_hop.set(found.place().version, HOP, 5);
                }
            }
        });
        assert!(place.write(2, 2, 0));
        let taken = place.read(2).map(|found| place.slot.cached_hop.get(found.place().version));
        worker.join().unwrap();
        let later = place.read(2).map(|found| place.slot.cached_hop.get(found.place().version));
        assert_eq!((taken, later), (Some(None), Some(None)));
    });
}
