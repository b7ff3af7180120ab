//! Models of the table under [`loom`], which runs two workers in all relevant orders and lets each read every
//! value that the memory model allows. They compile entries and table a second time, with loom's atomics. The
//! hashes are fixed, so that keys collide.

#![allow(dead_code, unused_imports)] // A model does not use everything that workers do.
#![allow(clippy::duplicate_mod)] // The table is compiled a second time, with loom's atomics.

#[path = "entry/mod.rs"]
mod entry;
#[path = "forward_counts.rs"]
mod forward_counts;
#[path = "../fib/publish.rs"]
mod publish;
#[path = "quota.rs"]
mod quota;
#[path = "table/mod.rs"]
mod table;
#[path = "virtual_end.rs"]
mod virtual_end;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use loom::sync::Arc;
use loom::thread;

use self::entry::NewFlow;
use self::publish::{Numbered, Publication};
use self::table::{Conntrack, InsertOutcome, Slot, WorkerState};
use self::virtual_end::FrontEnd;
use super::state::{FlowState, QuotaClass, Side};
use super::{Key, state, tcp, timeouts};
use crate::dataplane::ConntrackSettings;
use crate::ids::{Generation, PortId, WorkerId};
use crate::net::address::from_v4;
use crate::net::flow::Protocol;

/// Loom's versions of `super::parts` and of the parts of publication.
mod parts {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    pub(super) use loom::sync::{Arc, RwLock};

    pub(super) const PORTS_MAX: usize = 3;
    pub(super) const WORKERS_MAX: usize = 2;
}

/// `super::key` without random numbers.
mod key {
    pub(super) use super::super::Key;

    #[derive(Clone, Copy)]
    pub(super) struct HashSeed;

    impl HashSeed {
        pub(super) fn random() -> HashSeed {
            HashSeed
        }

        /// A hash that gives all keys the same two buckets and the same primary slot. Loom requires that each
        /// run does the same.
        #[allow(clippy::unused_self, clippy::trivially_copy_pass_by_ref)] // It has the signature of the real one.
        pub(super) fn hash(&self, key: &Key) -> u64 {
            (key.word & 1) << 57
        }
    }
}

/// Runs a model in all its orders. Loom considers the last access to an atomic only: of two threads, the one
/// that reads the other's writes must be the spawned one, or loom misses the orders in which it reads in
/// between.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    builder.check(model);
}

fn key(number: u64) -> Key {
    Key::new(from_v4(1), from_v4(2), number)
}

fn flow(owner_port: u16) -> NewFlow {
    NewFlow {
        opened_by_low: true,
        by_node_socket: false,
        pods: [true, false],
        owner_port: PortId(owner_port),
        policy_epoch: Generation(1),
        state: FlowState::UdpOneWay,
        tcp: None,
        virtual_end: None,
        hops: [None; 2],
    }
}

/// A table and two workers, each in a batch.
fn fixture() -> (Arc<Conntrack>, WorkerState, WorkerState) {
    let settings = ConntrackSettings { flows_max: 32, ..ConntrackSettings::default() };
    let table = Arc::new(Conntrack::new(&settings, false).unwrap());
    let [mut one, mut other] = [0, 1].map(|worker| WorkerState::new(WorkerId(worker), 2));
    table.start_batch(&mut one);
    table.start_batch(&mut other);
    (table, one, other)
}

fn insert(table: &Conntrack, key: &Key, flow: &NewFlow, now_ms: u32, by: &mut WorkerState) -> Slot {
    match table.insert(key, table.hash(key), flow, now_ms, by) {
        InsertOutcome::Inserted(slot) | InsertOutcome::Exists(slot) => slot,
        refused @ InsertOutcome::Full => panic!("{refused:?}"),
    }
}

/// Assured and unassured flows of the two ports.
fn counts_of_ports(table: &Conntrack) -> [[u32; 2]; 2] {
    [1, 2].map(|port| {
        [QuotaClass::Assured, QuotaClass::Unassured].map(|class| table.flows_of(PortId(port), class))
    })
}

fn look_up(table: &Conntrack, key: &Key) -> Option<Slot> {
    table.look_up(key, table.hash(key))
}

#[test]
fn of_a_flow_that_two_workers_enter_at_once_one_entry_stays() {
    explore(|| {
        let (table, mut one, mut other) = fixture();
        let theirs = table.clone();
        let beside = thread::spawn(move || {
            insert(&theirs, &key(0), &flow(1), 0, &mut other);
            other
        });
        insert(&table, &key(0), &flow(1), 0, &mut one);
        let other = beside.join().unwrap();
        assert_eq!(table.len(), 1);
        assert!(look_up(&table, &key(0)).is_some());
        assert_eq!((one.inserted + other.inserted, one.ended + other.ended), (2, 1));
        assert_eq!(counts_of_ports(&table), [[0, 1], [0, 0]]);
    });
}

#[test]
fn a_flow_that_two_workers_remove_at_once_ends_once() {
    explore(|| {
        let (table, mut one, mut other) = fixture();
        let slot = insert(&table, &key(0), &flow(1), 0, &mut one);
        let theirs = table.clone();
        let beside = thread::spawn(move || {
            theirs.remove(slot, None, &mut other);
            other
        });
        table.remove(slot, None, &mut one);
        let other = beside.join().unwrap();
        assert_eq!((table.len(), look_up(&table, &key(0))), (0, None));
        assert_eq!(one.ended + other.ended, 1);
        assert_eq!(counts_of_ports(&table), [[0, 0]; 2]);
    });
}

/// Checks that a slot which a worker has found holds no other flow until the worker's batch ends.
fn check_found_slots_stay(find: fn(&Conntrack, &Key) -> Option<Slot>) {
    let reused = std::sync::Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
    let seen = reused.clone();
    explore(move || {
        let (table, mut one, mut other) = fixture();
        let slot = insert(&table, &key(0), &flow(1), 0, &mut one);
        // An offline worker's first batch must be visible in time too.
        table.offline(&other);
        let theirs = table.clone();
        let beside = thread::spawn(move || {
            theirs.start_batch(&mut other);
            let found = find(&theirs, &key(0));
            if let Some(slot) = found {
                let key_there = theirs.entry(slot).key();
                assert!(key_there.is_none_or(|there| there == key(0)), "{key_there:?}");
            }
            theirs.start_batch(&mut other);
            found.is_some()
        });
        table.remove(slot, None, &mut one);
        (0..3).for_each(|_| table.start_batch(&mut one));
        let reused = insert(&table, &key(1), &flow(1), 0, &mut one) == slot;
        let found = beside.join().unwrap();
        seen[0].fetch_or(reused, Relaxed);
        seen[1].fetch_or(reused && found, Relaxed);
    });
    assert!(reused.iter().all(|reused| reused.load(Relaxed)), "no order reused the slot");
}

#[test]
fn a_slot_that_a_worker_has_found_by_its_tag_is_no_other_flow_until_its_batch_ends() {
    check_found_slots_stay(look_up);
}

#[test]
fn a_primary_slot_that_a_worker_has_found_from_either_end_is_no_other_flow_until_its_batch_ends() {
    check_found_slots_stay(|table, key| table.at_primary_slot(key, true));
    check_found_slots_stay(|table, key| table.at_primary_slot(key, false));
}

/// IPv6 keys that have only the word in common.
fn key_v6(number: u64, protocol: Protocol) -> Key {
    let address = |end: u64| u128::from(1 + 2 * number + end) * (u128::MAX / 0xff);
    Key::new(address(0), address(1), u64::from(protocol.0) << 32)
}

/// Checks that a lookup for the lower end of one key and the higher end of another finds nothing while the
/// slot of the one becomes the other's.
fn check_keys_stay_whole(protocol: Protocol, from_low: bool) {
    explore(move || {
        let (table, mut one, mut other) = fixture();
        let [first, second] = [0, 1].map(|number| key_v6(number, protocol));
        let flow_of = |policy_epoch| NewFlow { policy_epoch: Generation(policy_epoch), ..flow(1) };
        let slot = insert(&table, &first, &flow_of(1), 0, &mut one);
        let theirs = table.clone();
        let beside = thread::spawn(move || {
            theirs.start_batch(&mut other);
            for key in [
                Key::new(first.low(), second.high(), first.word),
                Key::new(second.low(), first.high(), first.word),
            ] {
                assert_eq!(theirs.at_primary_slot(&key, from_low), None, "no flow has {key:?}");
            }
            // The other flow is visible as a whole, with its policy epoch.
            if let Some(slot) = theirs.at_primary_slot(&second, from_low) {
                assert_eq!(theirs.entry(slot).flow_word(from_low).policy_epoch(), Generation(2));
            }
            theirs.start_batch(&mut other);
        });
        table.remove(slot, None, &mut one);
        (0..3).for_each(|_| table.start_batch(&mut one));
        insert(&table, &second, &flow_of(2), 0, &mut one);
        beside.join().unwrap();
    });
}

#[test]
fn a_reader_of_one_line_sees_whole_keys_of_ipv6_only() {
    check_keys_stay_whole(Protocol::UDP, true);
    check_keys_stay_whole(Protocol::UDP, false);
}

#[test]
fn a_reader_of_both_lines_sees_whole_keys_of_ipv6_only() {
    check_keys_stay_whole(Protocol::TCP, true);
    check_keys_stay_whole(Protocol::TCP, false);
}

#[test]
fn a_restarted_flow_counts_against_its_new_pod_unless_it_ends_at_the_same_time() {
    explore(|| {
        let (table, mut one, mut other) = fixture();
        let slot = insert(&table, &key(0), &flow(1), 0, &mut one);
        let theirs = table.clone();
        let beside = thread::spawn(move || theirs.remove(slot, None, &mut other));
        table.restart(slot, &flow(2), 5);
        beside.join().unwrap();
        assert_eq!((table.len(), counts_of_ports(&table)), (0, [[0, 0]; 2]));
    });
}

/// Does the work of a worker that sees an answer.
fn answer(table: &Conntrack, slot: Slot) {
    table.entry(slot).set_state(FlowState::UdpOneWay, FlowState::UdpTwoWay);
    table.on_state_change(slot, FlowState::UdpOneWay, FlowState::UdpTwoWay);
}

#[test]
fn a_flow_that_becomes_assured_by_two_workers_at_once_is_counted_once() {
    explore(|| {
        let (table, mut one, _) = fixture();
        let slot = insert(&table, &key(0), &flow(1), 0, &mut one);
        let theirs = table.clone();
        let beside = thread::spawn(move || answer(&theirs, slot));
        answer(&table, slot);
        beside.join().unwrap();
        assert_eq!(counts_of_ports(&table), [[1, 0], [0, 0]]);
    });
}

#[test]
fn a_flow_that_becomes_assured_while_it_ends_is_counted_no_more() {
    explore(|| {
        let (table, mut one, mut other) = fixture();
        let slot = insert(&table, &key(0), &flow(1), 0, &mut one);
        let theirs = table.clone();
        let beside = thread::spawn(move || theirs.remove(slot, None, &mut other));
        answer(&table, slot);
        beside.join().unwrap();
        assert_eq!((table.len(), counts_of_ports(&table)), (0, [[0, 0]; 2]));
    });
}

#[test]
fn a_flow_that_becomes_assured_while_another_port_restarts_it_counts_against_one_of_them() {
    explore(|| {
        let (table, mut one, _) = fixture();
        let slot = insert(&table, &key(0), &flow(1), 0, &mut one);
        let theirs = table.clone();
        let beside = thread::spawn(move || answer(&theirs, slot));
        table.restart(slot, &flow(2), 5);
        beside.join().unwrap();
        let owner = table.entry(slot).quota_owner().unwrap();
        assert_eq!(owner.port, PortId(2));
        let expected =
            [QuotaClass::Assured, QuotaClass::Unassured].map(|class| u32::from(owner.class == class));
        assert_eq!(counts_of_ports(&table), [[0, 0], expected]);
    });
}

#[test]
fn a_sweep_ends_no_flow_that_is_only_just_there() {
    explore(|| {
        let (table, mut one, mut other) = fixture();
        let slot = insert(&table, &key(0), &flow(1), 0, &mut one);
        table.remove(slot, None, &mut one);
        for _ in 0..3 {
            table.start_batch(&mut one);
            table.start_batch(&mut other);
        }
        let late_ms = 1_000_000;
        let theirs = table.clone();
        let beside = thread::spawn(move || theirs.sweep(1, late_ms, &mut one, |_| false));
        assert_eq!(insert(&table, &key(0), &flow(1), late_ms, &mut other), slot, "where an idle one was");
        beside.join().unwrap();
        assert_eq!((table.len(), counts_of_ports(&table)), (1, [[0, 1], [0, 0]]));
    });
}

/// A numbered snapshot that allows all flows or none.
struct Snapshot {
    generation: Generation,
    allows: bool,
}

impl Numbered for Snapshot {
    fn generation(&self) -> Generation {
        self.generation
    }
}

/// Handles a packet at a worker with `snapshot`: evaluates a known flow again where an earlier generation has
/// evaluated it.
fn packet(table: &Conntrack, snapshot: &Snapshot, by: &mut WorkerState) {
    match look_up(table, &key(0)) {
        Some(slot) if table.entry(slot).flow_word(true).policy_epoch() < snapshot.generation => {
            if snapshot.allows {
                let entry = table.entry(slot);
                entry.mark_current(true, entry.flow_word(true), snapshot.generation, None);
            } else {
                table.remove(slot, None, by);
            }
        }
        Some(_) => assert!(snapshot.allows, "it passes by an evaluation that is stale"),
        None if snapshot.allows => {
            insert(table, &key(0), &NewFlow { policy_epoch: snapshot.generation, ..flow(1) }, 0, by);
        }
        None => (),
    }
}

#[test]
fn a_flow_of_an_earlier_generation_is_evaluated_again_by_each_worker_that_has_the_next_snapshot() {
    explore(|| {
        let (table, mut one, mut other) = fixture();
        let snapshot = |number, allows| Snapshot { generation: Generation(number), allows };
        let snapshots = Arc::new(Publication::new(snapshot(1, true), 2));
        let (theirs, published) = (table.clone(), snapshots.clone());
        let mut own = snapshots.register(WorkerId(1));
        let beside = thread::spawn(move || {
            while own.generation < Generation(2) {
                packet(&theirs, &own, &mut other);
                if !published.observe(WorkerId(1), &mut own) {
                    thread::yield_now();
                }
            }
            packet(&theirs, &own, &mut other);
            other
        });
        drop(snapshots.publish(snapshot(2, false)));
        let own = snapshots.register(WorkerId(0));
        packet(&table, &own, &mut one);
        let other = beside.join().unwrap();
        assert_eq!((table.len(), counts_of_ports(&table)), (0, [[0, 0]; 2]), "denied flows have ended");
        assert_eq!(one.inserted + other.inserted, one.ended + other.ended);
    });
}

#[test]
fn a_direction_that_a_generation_has_not_evaluated_does_not_become_current_by_a_restart_meanwhile() {
    explore(|| {
        let (table, mut one, _) = fixture();
        let slot = insert(&table, &key(0), &flow(1), 0, &mut one);
        let theirs = table.clone();
        let beside = thread::spawn(move || {
            // The second generation allows only flows that the lower end opens.
            let entry = theirs.entry(slot);
            for from_low in [true, false] {
                let seen = entry.flow_word(from_low);
                if (seen.side(from_low) == Side::Initiator) == from_low {
                    entry.mark_current(from_low, seen, Generation(2), None);
                }
            }
        });
        // A worker at the first generation, which allows both, restarts the flow from the higher end.
        table.restart(slot, &NewFlow { opened_by_low: false, ..flow(1) }, 5);
        beside.join().unwrap();
        let entry = table.entry(slot);
        for from_low in [true, false] {
            assert_eq!(
                (entry.sender(true), entry.flow_word(from_low).policy_epoch()),
                (Side::Responder, Generation(1))
            );
        }
    });
}

#[test]
fn ends_that_a_generation_has_not_seen_do_not_become_current_when_an_earlier_one_restarts_the_flow_meanwhile()
{
    explore(|| {
        let (table, mut one, _) = fixture();
        // At the second generation another pod has the address: the flow is that pod's, and the third
        // generation allows it.
        let slot = insert(&table, &key(0), &NewFlow { policy_epoch: Generation(2), ..flow(1) }, 0, &mut one);
        let theirs = table.clone();
        let beside = thread::spawn(move || {
            let entry = theirs.entry(slot);
            for from_low in [true, false] {
                let seen = entry.flow_word(from_low);
                if seen.policy_epoch() == Generation(2) {
                    entry.mark_current(from_low, seen, Generation(3), None);
                }
            }
        });
        // A worker at the first generation lets the previous pod restart the connection.
        table.restart(slot, &flow(1), 5);
        beside.join().unwrap();
        assert!(
            [true, false].iter().all(|end| table.entry(slot).flow_word(*end).policy_epoch() == Generation(1))
        );
    });
}

#[test]
fn a_worker_that_finds_a_translated_flow_from_either_end_reads_its_whole_virtual_end() {
    const END: FrontEnd =
        FrontEnd { address: 0xfd00 << 112 | 9, port: 80, client_port: 9, external_port: 61_000 };
    for from_low in [true, false] {
        explore(move || {
            let (table, mut one, _other) = fixture();
            let theirs = table.clone();
            let beside = thread::spawn(move || {
                theirs.at_primary_slot(&key(0), from_low).map(|slot| theirs.virtual_end(slot))
            });
            insert(&table, &key(0), &NewFlow { virtual_end: Some(END), ..flow(1) }, 0, &mut one);
            let seen = beside.join().unwrap();
            assert!(seen.is_none_or(|seen| seen == END), "{seen:?}");
        });
    }
}
