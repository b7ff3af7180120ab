//! [`loom`] models of the table of first fragments: the production code on loom's atomics, with one slot or two. The
//! reading side is the spawned thread, as in `conntrack/loom_tests.rs`.

#![allow(dead_code)] // A model calls a part of the production code only.
#![allow(clippy::duplicate_mod)] // The table is compiled a second time, with loom's atomics.

#[path = "first_fragment_table.rs"]
mod first_fragment_table;
#[path = "../../mem/sequence_lock.rs"]
mod sequence_lock;

use loom::sync::Arc;
use loom::thread;

use self::first_fragment_table::FirstFragmentTable;
use super::first_verdict;
use super::first_verdict::{FirstRecord, FirstVerdict};
use crate::dataplane::DropReason;
use crate::dataplane::conntrack::Key;

/// Loom's versions of `super::parts`. All datagrams share one slot.
mod parts {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, fence};

    pub(super) use super::sequence_lock::SequenceLock;

    pub(super) const FIRST_VERDICTS_SHARED_MAX: usize = 1;
    pub(super) const PROBES: usize = 1;
}

fn key(number: u64) -> Key {
    let host = u128::from(number);
    Key::new(host << 64 | host, (host + 10) << 64 | host, number)
}

/// Record of a datagram, with its number as the end unit.
fn record(number: u64) -> FirstRecord {
    FirstRecord { first: FirstVerdict::Denied(DropReason::PolicyIngress), end_unit: number as usize }
}

fn publish(table: &FirstFragmentTable, number: u64) {
    table.publish(&key(number), 0, &record(number), 0);
}

/// Whether the record of a datagram is found. It is its own, and whole.
fn is_found(table: &FirstFragmentTable, number: u64) -> bool {
    let found = table.find(&key(number), 0, 0);
    assert!(found.is_none_or(|found| found == record(number)), "{found:?} for {number}");
    found.is_some()
}

/// Runs a model in all its orders in which a thread is interrupted at most twice: a slot has eight words.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    builder.preemption_bound = Some(2);
    builder.check(model);
}

#[test]
fn a_worker_that_sees_the_version_of_a_record_finds_the_record() {
    explore(|| {
        let table = Arc::new(FirstFragmentTable::new(2));
        let reader = thread::spawn({
            let table = table.clone();
            move || (table.version(), is_found(&table, 1))
        });
        publish(&table, 1);
        let (version, found) = reader.join().unwrap();
        assert!(version == 0 || found, "waiting fragments are not looked up again");
        assert!(is_found(&table, 1));
    });
}

/// Runs the model of a worker that looks a datagram up while the record of the second replaces that of the first.
fn look_up_beside_a_replacement(number: u64) {
    explore(move || {
        let table = Arc::new(FirstFragmentTable::new(2));
        publish(&table, 1);
        let reader = thread::spawn({
            let table = table.clone();
            move || is_found(&table, number)
        });
        publish(&table, 2);
        reader.join().unwrap();
        assert!(is_found(&table, 2) && !is_found(&table, 1));
    });
}

#[test]
fn a_worker_finds_the_record_of_its_datagram_or_none() {
    look_up_beside_a_replacement(1);
    look_up_beside_a_replacement(2);
}

#[test]
fn of_two_workers_that_publish_one_skips_or_replaces() {
    explore(|| {
        let table = Arc::new(FirstFragmentTable::new(2));
        let other = thread::spawn({
            let table = table.clone();
            move || publish(&table, 2)
        });
        publish(&table, 1);
        other.join().unwrap();
        assert!(is_found(&table, 1) != is_found(&table, 2));
        assert!((1..=2).contains(&table.version()));
    });
}

#[test]
fn a_removal_leaves_the_record_of_another_datagram() {
    explore(|| {
        let table = Arc::new(FirstFragmentTable::new(2));
        publish(&table, 1);
        let remover = thread::spawn({
            let table = table.clone();
            move || table.remove(&key(1), 0, 0)
        });
        publish(&table, 2);
        let is_published = table.version() == 2;
        remover.join().unwrap();
        assert_eq!(is_found(&table, 2), is_published);
        assert!(!is_found(&table, 1));
    });
}
