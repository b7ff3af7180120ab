//! [`loom`] models of a slot of the table of neighbours: the production code on loom's atomics, in the orders that make a
//! difference. The reading side is the spawned thread, as in `conntrack/loom_tests.rs`.

#![allow(dead_code)] // A model calls a part of the production code only.
#![allow(clippy::duplicate_mod)] // The slot is compiled a second time, with loom's atomics.

#[path = "../../mem/sequence_lock.rs"]
mod sequence_lock;
#[path = "slot.rs"]
mod slot;

use loom::sync::Arc;
use loom::thread;

use self::slot::Slot;
use crate::ids::PortId;
use crate::net::mac::Mac;

/// Loom's versions of `super::parts`.
mod parts {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, fence};

    pub(super) use super::sequence_lock::SequenceLock;
}

/// Stores a neighbour of which each part is `number`, with the Ethernet address `mac`.
fn write(slot: &Slot, number: u16, mac: u8) {
    let half = u128::from(number);
    slot.write(PortId(number), half << 64 | half, Mac([2, 0, 0, 0, 0, mac]));
}

/// Last byte of the neighbour's Ethernet address.
fn read(slot: &Slot, number: u16) -> Option<u8> {
    let half = u128::from(number);
    slot.read(PortId(number), half << 64 | half).map(|mac| mac.0[5])
}

fn slot(number: u16, mac: u8) -> Arc<Slot> {
    let slot = Arc::new(Slot::default());
    write(&slot, number, mac);
    slot
}

/// Runs a model in all its orders in which a thread is interrupted at most three times.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn a_worker_reads_no_address_of_another_neighbour() {
    explore(|| {
        let slot = slot(1, 1);
        let reader = thread::spawn({
            let slot = slot.clone();
            move || (read(&slot, 2), read(&slot, 1))
        });
        write(&slot, 2, 2);
        let (new, old) = reader.join().unwrap();
        assert!(matches!((new, old), (None | Some(2), None) | (None, Some(1))), "{new:?} {old:?}");
    });
}

#[test]
fn a_worker_reads_no_address_of_the_neighbour_that_takes_a_freed_slot() {
    explore(|| {
        let slot = slot(1, 1);
        let reader = thread::spawn({
            let slot = slot.clone();
            move || (read(&slot, 2), read(&slot, 1))
        });
        slot.clear();
        assert!(slot.is_free());
        write(&slot, 2, 2);
        let (new, old) = reader.join().unwrap();
        assert!(matches!((new, old), (None | Some(2), None) | (None, Some(1))), "{new:?} {old:?}");
    });
}
