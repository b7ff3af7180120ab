use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use proptest::prelude::*;

use super::entry::{Entry, QuotaOwner};
use super::table::{BUCKET_SLOTS, FREE, TOMBSTONE, TagMatch};
use super::tcp::TcpSide;
use super::timeouts::timeouts_ms;
use super::{
    Conntrack, FlowState, InsertOutcome, Key, NewFlow, QuotaClass, Segment, Side, Slot, TcpFlow, WorkerState,
};
use crate::dataplane::{ConntrackSettings, Timeouts};
use crate::ids::{Generation, PortId, WorkerId};
use crate::limits::RETIRED_FLOWS_MAX;
use crate::net::address::from_v4;
use crate::net::flow::Protocol;
use crate::net::tcp::Flags;

mod reference_model;

fn settings(flows_max: usize, pod_quota_percent: u8) -> ConntrackSettings {
    ConntrackSettings { flows_max, pod_quota_percent, ..ConntrackSettings::default() }
}

/// The key of the UDP flow from 10.0.0.1 with this source port.
fn key(port: u32) -> Key {
    let high = from_v4(0x0a00_0002 + (port >> 16));
    Key::new(from_v4(0x0a00_0001), high, word(port as u16, Protocol::UDP))
}

fn word(port: u16, protocol: Protocol) -> u64 {
    u64::from(port) | 53 << 16 | u64::from(protocol.0) << 32
}

fn flow(owner_port: u16, state: FlowState) -> NewFlow {
    NewFlow {
        opened_by_low: true,
        pods: [true, false],
        owner_port: PortId(owner_port),
        policy_epoch: Generation(1),
        state,
        tcp: None,
        hops: [None; 2],
    }
}

/// A table and its workers.
struct Bench {
    table: Conntrack,
    workers: Vec<WorkerState>,
}

impl Bench {
    fn new(settings: &ConntrackSettings, workers: usize) -> Bench {
        let worker_state = |worker| WorkerState::new(WorkerId(worker as u16), workers);
        let mut bench = Bench {
            table: Conntrack::new(settings, false).unwrap(),
            workers: (0..workers).map(worker_state).collect(),
        };
        bench.start_batches();
        bench
    }

    fn start_batch(&mut self, worker: usize) {
        self.table.start_batch(&mut self.workers[worker]);
    }

    /// As many batches of every worker as it takes until what was removed is free.
    fn start_batches(&mut self) {
        for _ in 0..4 {
            (0..self.workers.len()).for_each(|worker| self.start_batch(worker));
        }
    }

    /// Enters a flow. One that begins in a state of answered flows becomes assured, as if the answer had come.
    fn insert(&mut self, key: &Key, flow: &NewFlow, now_ms: u32) -> InsertOutcome {
        let expected = self.candidate(key);
        let outcome = self.table.insert(key, self.table.hash(key), flow, now_ms, &mut self.workers[0]);
        if let InsertOutcome::Inserted(slot) = outcome {
            if let TagMatch::None(place) = expected {
                assert_eq!(slot, place, "the place that was made ready is another one");
            }
            self.table.on_state_change(slot, FlowState::SynSent, flow.state);
        }
        outcome
    }

    /// Assured and unassured flows of a port.
    fn flows_of(&self, port: u16) -> [u32; 2] {
        [QuotaClass::Assured, QuotaClass::Unassured].map(|class| self.table.flows_of(PortId(port), class))
    }

    /// What tags say, as the packet path asks them.
    fn candidate(&self, key: &Key) -> TagMatch {
        let hash = self.table.hash(key);
        match self.table.match_tags(hash, true) {
            TagMatch::SecondBucket => self.table.match_second_bucket(hash),
            known => known,
        }
    }

    fn find(&self, key: &Key) -> Option<Slot> {
        let hash = self.table.hash(key);
        let found = match self.candidate(key) {
            TagMatch::Slot(slot) => self.table.find(key, true, slot),
            TagMatch::None(_) => None,
            TagMatch::SecondBucket => unreachable!("both buckets have been asked"),
        };
        assert_eq!(found, self.table.look_up(key, hash));
        let at_primary_slot = self.table.at_primary_slot(key, false);
        if let Some(primary_slot) = at_primary_slot {
            assert_eq!(
                (found, self.candidate(key)),
                (at_primary_slot, TagMatch::Slot(primary_slot)),
                "its home is looked at first"
            );
        }
        found
    }

    /// Enters twice as many flows as there are slots, in this state: the keys of those that are in the table then.
    fn fill(&mut self, flows_max: usize, state: FlowState) -> Vec<Key> {
        let keys: Vec<Key> = (0..2 * flows_max as u32).map(key).collect();
        for key in &keys {
            self.insert(key, &flow(0, state), 0);
            self.start_batches();
        }
        let keys: Vec<Key> = keys.into_iter().filter(|key| self.find(key).is_some()).collect();
        assert_eq!(keys.len(), self.table.len());
        keys
    }
}

#[test]
fn what_is_entered_is_found_until_it_is_removed() {
    let mut bench = Bench::new(&settings(1024, 100), 1);
    let InsertOutcome::Inserted(slot) = bench.insert(&key(1), &flow(0, FlowState::UdpOneWay), 0) else {
        panic!()
    };
    assert_eq!(bench.find(&key(1)), Some(slot));
    assert_eq!(bench.find(&key(2)), None);
    assert_eq!(bench.table.entry(slot).sender(true), Side::Initiator);
    assert_eq!(bench.table.entry(slot).sender(false), Side::Responder);
    bench.table.remove(slot, &mut bench.workers[0]);
    assert_eq!((bench.find(&key(1)), bench.table.len()), (None, 0));
    assert_eq!((bench.workers[0].inserted, bench.workers[0].ended), (1, 1));
    bench.table.remove(slot, &mut bench.workers[0]);
    assert_eq!(bench.workers[0].ended, 1, "what has ended does not end again");
}

#[test]
fn a_full_table_finds_every_flow_in_its_first_or_second_group() {
    for flows_max in [32, 64, 1024] {
        let mut bench = Bench::new(&settings(flows_max, 100), 1);
        let keys = bench.fill(flows_max, FlowState::UdpOneWay);
        assert!(keys.len() > flows_max * 3 / 4, "{} of {flows_max}", keys.len());
        let slots: HashSet<u32> = keys.iter().map(|key| bench.find(key).unwrap().0).collect();
        assert_eq!(slots.len(), keys.len());
        for key in &keys {
            let slot = bench.find(key).unwrap();
            bench.table.remove(slot, &mut bench.workers[0]);
        }
        assert_eq!(bench.table.len(), 0);
        assert!(
            (0..flows_max / BUCKET_SLOTS).all(|bucket| !bench.table.has_overflow(bucket)),
            "removals count the overflow down"
        );
    }
}

#[test]
fn of_a_full_table_assured_flows_stay_and_unassured_ones_go() {
    let mut bench = Bench::new(&settings(256, 100), 1);
    let established: Vec<Key> = (0..100).map(key).collect();
    for key in &established {
        assert!(matches!(bench.insert(key, &flow(0, FlowState::Established), 0), InsertOutcome::Inserted(_)));
    }
    for port in 1000..5000 {
        // A second try finds the free slot.
        let flow = flow(1, FlowState::SynSent);
        let mut tries = 0;
        while !matches!(bench.insert(&key(port), &flow, port), InsertOutcome::Inserted(_)) {
            bench.start_batches();
            tries += 1;
            assert!(tries < 3, "{port}");
        }
    }
    assert!(established.iter().all(|key| bench.find(key).is_some()));
    assert!(bench.workers[0].evicted >= 4000 - 156, "{}", bench.workers[0].evicted);
}

#[test]
fn three_quarters_of_the_table_are_assured_at_most_and_none_of_these_goes() {
    let mut bench = Bench::new(&settings(64, 100), 1);
    let keys: Vec<Key> = (0..64).map(key).collect();
    for key in &keys {
        bench.insert(key, &flow(0, FlowState::Established), 0);
        bench.start_batches();
    }
    let is_assured = |bench: &Bench, key: &Key| {
        let owner = bench.find(key).and_then(|slot| bench.table.entry(slot).quota_owner());
        owner == Some(QuotaOwner { port: PortId(0), class: QuotaClass::Assured })
    };
    let assured: Vec<&Key> = keys.iter().filter(|key| is_assured(&bench, key)).collect();
    assert_eq!((assured.len(), bench.flows_of(0)[0]), (48, 48));
    for port in 10_000..10_500 {
        bench.insert(&key(port), &flow(1, FlowState::SynSent), 1);
        bench.start_batches();
    }
    assert!(assured.into_iter().all(|key| is_assured(&bench, key)));
}

#[test]
fn ports_that_grow_together_have_equal_shares_of_the_assured_flows_and_one_share_is_left_over() {
    for ports in [1, 2, 3, 7] {
        // Three quarters of these slots are 840, which all of one to eight divide.
        let mut bench = Bench::new(&settings(1120, 50), 1);
        for number in 0..1120 {
            let outcome =
                bench.insert(&key(number), &flow((number % ports) as u16, FlowState::Established), 0);
            assert!(!matches!(outcome, InsertOutcome::Exists(_)));
            bench.start_batches();
        }
        for port in 0..ports {
            assert_eq!(bench.flows_of(port as u16)[0], 840 / (ports + 1), "{port} of {ports}");
        }
    }
}

#[test]
fn a_port_with_a_smaller_quota_has_less() {
    let mut bench = Bench::new(&settings(1024, 25), 1);
    for port in 0..400 {
        assert!(matches!(
            bench.insert(&key(port), &flow(7, FlowState::Established), 0),
            InsertOutcome::Inserted(_)
        ));
    }
    // A third of what is left for the others.
    assert_eq!(bench.flows_of(7), [192, 208]);
}

#[test]
fn what_was_beyond_a_quota_becomes_assured_when_there_is_room_and_what_is_over_ceases_to_be() {
    let mut bench = Bench::new(&settings(64, 50), 1);
    let keys: Vec<Key> = (0..30).map(key).collect();
    for key in &keys {
        bench.insert(key, &flow(1, FlowState::Established), 0);
    }
    assert_eq!(bench.flows_of(1), [24, 6]);
    let sweep = |bench: &mut Bench| bench.table.sweep(4, 0, &mut bench.workers[0], |_| false);
    sweep(&mut bench);
    assert_eq!(bench.flows_of(1), [24, 6]);
    for key in &keys[..6] {
        let slot = bench.find(key).unwrap();
        bench.table.entry(slot).set_state(FlowState::Established, FlowState::Reset);
        bench.table.on_state_change(slot, FlowState::Established, FlowState::Reset);
    }
    assert_eq!((bench.flows_of(1), bench.table.flows_of(PortId(1), QuotaClass::Ended)), ([18, 6], 6));
    sweep(&mut bench);
    assert_eq!(bench.flows_of(1), [24, 0]);
}

#[test]
fn a_flow_is_evicted_only_for_one_of_a_port_that_has_no_more_unassured_flows() {
    let mut bench = Bench::new(&settings(1024, 50), 1);
    // Longer idle than everything that follows.
    let few: Vec<Key> = (0..100).map(key).collect();
    for key in &few {
        bench.insert(key, &flow(1, FlowState::SynSent), 0);
    }
    for port in 1000..10_000 {
        bench.insert(&key(port), &flow(2, FlowState::SynSent), 1 + port / 1000);
        bench.start_batches();
    }
    assert_eq!(bench.flows_of(1), [0, 100]);
    assert!(few.iter().all(|key| bench.find(key).is_some()));
    // The first port grows at the cost of the second, until both have the same.
    for port in 10_000..20_000 {
        bench.insert(&key(port), &flow(1, FlowState::SynSent), 20);
        bench.start_batches();
    }
    let [[_, one], [_, other]] = [1, 2].map(|port| bench.flows_of(port));
    assert!(one.abs_diff(other) < 100, "{one} {other}");
}

#[test]
fn of_flows_that_may_go_those_whose_time_is_over_go_first_and_are_not_counted_as_evicted() {
    let mut bench = Bench::new(&settings(32, 50), 1);
    for port in 0..28 {
        bench.insert(&key(port), &flow(1, FlowState::UdpOneWay), 0);
    }
    // The second port has more unassured flows than the first at the end.
    for port in 100..120 {
        bench.insert(&key(port), &flow(2, FlowState::SynSent), 30_001);
        bench.start_batches();
    }
    assert_eq!((bench.workers[0].ended, bench.workers[0].evicted), (20, 0));
    assert_eq!([1, 2].map(|port| bench.flows_of(port)), [[0, 8], [0, 20]]);
}

#[test]
fn flows_that_have_ended_go_before_those_that_wait_for_an_answer() {
    let mut bench = Bench::new(&settings(32, 50), 1);
    for port in 0..28 {
        let state = if port % 7 == 0 { FlowState::SynSent } else { FlowState::TimeWait };
        bench.insert(&key(port), &flow(1, state), 0);
    }
    for port in 100..108 {
        bench.insert(&key(port), &flow(2, FlowState::SynSent), 1);
        bench.start_batches();
    }
    assert!((0..28).step_by(7).all(|port| bench.find(&key(port)).is_some()));
    assert_eq!((bench.workers[0].evicted, bench.table.flows_of(PortId(1), QuotaClass::Ended)), (8, 16));
}

/// Batches full of new flows of hostile ports, of which every second one is answered if they collude, and some of another port, which are
/// answered a few batches later: the part of these that is inserted and lives until then.
fn part_that_gets_through(flows_max: usize, hostile: u32, collude: bool) -> f64 {
    const PER_BATCH: u32 = 4;
    const DELAY: usize = 4;
    let mut bench = Bench::new(&settings(flows_max, 50), 1);
    let (mut number, mut tried, mut through) = (0, 0, 0);
    let mut waiting: VecDeque<Vec<Key>> = VecDeque::new();
    let batches = 3 * flows_max / 256;
    for batch in 0..batches {
        bench.start_batch(0);
        let now_ms = batch as u32;
        for _ in 0..256 - PER_BATCH {
            number += 1;
            let is_answered = collude && (number / hostile).is_multiple_of(2);
            let state = if is_answered { FlowState::Established } else { FlowState::SynSent };
            bench.insert(&key(number), &flow(1 + (number % hostile) as u16, state), now_ms);
        }
        let keys: Vec<Key> = (number + 1..=number + PER_BATCH).map(key).collect();
        number += PER_BATCH;
        for key in &keys {
            bench.insert(key, &flow(0, FlowState::SynSent), now_ms);
        }
        waiting.push_back(keys);
        if waiting.len() > DELAY {
            let slots: Vec<Slot> =
                waiting.pop_front().unwrap().iter().filter_map(|key| bench.find(key)).collect();
            if batch > batches / 2 {
                tried += PER_BATCH;
                through += slots.len() as u32;
            }
            // They close soon after, so that the port has few connections at a time.
            slots.into_iter().for_each(|slot| bench.table.remove(slot, &mut bench.workers[0]));
        }
    }
    f64::from(through) / f64::from(tried)
}

#[test]
fn another_ports_flows_get_through_floods_of_first_packets_and_of_answered_flows() {
    for hostile in [2, 10, 250] {
        for collude in [false, true] {
            let part = part_that_gets_through(1 << 16, hostile, collude);
            assert!(part >= 0.95, "{hostile} hostile ports, colluding {collude}: {part:.3}");
        }
    }
}

#[test]
fn a_flow_restarted_by_its_other_side_counts_against_the_other_pod_and_no_count_wraps() {
    let mut bench = Bench::new(&settings(64, 100), 1);
    let InsertOutcome::Inserted(slot) = bench.insert(&key(1), &flow(1, FlowState::TimeWait), 0) else {
        panic!()
    };
    let restarted = NewFlow { opened_by_low: false, ..flow(2, FlowState::SynSent) };
    bench.table.restart(slot, &restarted, 5);
    let counts = |bench: &Bench| [1, 2].map(|port| bench.flows_of(port));
    assert_eq!(counts(&bench), [[0, 0], [0, 1]]);
    assert_eq!(bench.table.entry(slot).sender(true), Side::Responder);
    bench.table.remove(slot, &mut bench.workers[0]);
    assert_eq!(counts(&bench), [[0, 0]; 2]);
}

#[test]
fn a_flow_whose_port_has_another_number_counts_against_that_in_its_class() {
    let mut bench = Bench::new(&settings(64, 100), 1);
    for (number, state) in [FlowState::Established, FlowState::SynSent].into_iter().enumerate() {
        let InsertOutcome::Inserted(slot) = bench.insert(&key(number as u32), &flow(1, state), 0) else {
            panic!()
        };
        (0..2).for_each(|_| bench.table.set_owner_port(slot, PortId(2)));
    }
    assert_eq!([1, 2].map(|port| bench.flows_of(port)), [[0, 0], [1, 1]]);
}

#[test]
fn a_slot_is_not_used_again_while_a_worker_may_hold_it() {
    let mut bench = Bench::new(&settings(32, 100), 2);
    let keys = bench.fill(32, FlowState::UdpOneWay);
    // Worker 1 is in a batch that knows the slot; worker 0 ends the flow and goes on.
    bench.start_batch(1);
    let slot = bench.find(&keys[0]).unwrap();
    bench.table.remove(slot, &mut bench.workers[0]);
    let mut refused = 0;
    for port in 100..200 {
        bench.start_batch(0);
        let outcome = bench.insert(&key(port), &flow(0, FlowState::UdpOneWay), 0);
        refused += u32::from(outcome == InsertOutcome::Full);
        assert_eq!(bench.table.tag(slot), TOMBSTONE);
    }
    assert!(refused >= 90, "{refused}");
    bench.start_batches();
    assert_eq!(bench.table.tag(slot), FREE);
    assert!(matches!(bench.insert(&keys[0], &flow(0, FlowState::UdpOneWay), 0), InsertOutcome::Inserted(_)));
}

#[test]
fn a_worker_that_sleeps_holds_nothing_back() {
    let mut bench = Bench::new(&settings(32, 100), 2);
    let keys = bench.fill(32, FlowState::UdpOneWay);
    bench.table.offline(&bench.workers[1]);
    let slot = bench.find(&keys[0]).unwrap();
    bench.table.remove(slot, &mut bench.workers[0]);
    (0..4).for_each(|_| bench.start_batch(0));
    assert_eq!(bench.table.tag(slot), FREE);
}

#[test]
fn a_worker_with_no_place_for_more_ended_flows_lets_them_live_on() {
    let mut bench = Bench::new(&settings(2 * RETIRED_FLOWS_MAX, 100), 2);
    let keys: Vec<Key> = (0..RETIRED_FLOWS_MAX as u32 + 10).map(key).collect();
    for key in &keys {
        assert!(matches!(bench.insert(key, &flow(0, FlowState::UdpOneWay), 0), InsertOutcome::Inserted(_)));
    }
    for key in &keys {
        let slot = bench.find(key).unwrap();
        bench.table.remove(slot, &mut bench.workers[0]);
    }
    assert_eq!(bench.table.len(), 10);
    bench.start_batches();
    let rest: Vec<Slot> = keys.iter().filter_map(|key| bench.find(key)).collect();
    rest.into_iter().for_each(|slot| bench.table.remove(slot, &mut bench.workers[0]));
    assert_eq!(bench.table.len(), 0);
}

#[test]
fn each_state_is_forgotten_after_its_own_time_and_not_before() {
    let seconds = |seconds: u64| Duration::from_secs(seconds);
    let timeouts = Timeouts {
        tcp_syn_sent: seconds(1),
        tcp_syn_received: seconds(2),
        tcp_unacknowledged: seconds(13),
        tcp_established: seconds(3),
        tcp_fin_wait: seconds(4),
        tcp_time_wait: seconds(5),
        tcp_close: seconds(6),
        udp_one_way: seconds(7),
        udp_two_way: seconds(8),
        icmp_echo: seconds(9),
        sctp_setup: seconds(10),
        sctp_established: seconds(11),
        other_one_way: seconds(14),
        other: seconds(12),
    };
    let expected = [1, 2, 13, 3, 4, 4, 5, 6, 7, 8, 9, 10, 11, 6, 14, 12];
    let mut bench = Bench::new(&ConntrackSettings { timeouts, ..settings(1024, 100) }, 2);
    // The clock wraps in between.
    let start = u32::MAX - 4000;
    for (port, state) in FlowState::ALL.iter().enumerate() {
        bench.insert(&key(port as u32), &flow(0, *state), start);
    }
    for second in 0..16 {
        for (past_ms, idle_is) in [(0, "as long as it may"), (1, "too long")] {
            let buckets = bench.table.buckets_per_worker(&bench.workers[0]);
            let now_ms = start.wrapping_add(second * 1000 + past_ms);
            for worker_state in &mut bench.workers {
                bench.table.sweep(buckets, now_ms, worker_state, |_| false);
            }
            for (port, seconds) in expected.iter().enumerate() {
                let lives = bench.find(&key(port as u32)).is_some();
                assert_eq!(lives, second + past_ms <= *seconds, "{:?} idle {idle_is}", FlowState::ALL[port]);
            }
        }
    }
}

#[test]
fn a_packet_keeps_a_flow_alive_even_when_another_worker_is_a_little_ahead() {
    let mut bench = Bench::new(&settings(64, 100), 1);
    let InsertOutcome::Inserted(slot) = bench.insert(&key(1), &flow(0, FlowState::UdpOneWay), 0) else {
        panic!()
    };
    bench.table.entry(slot).count(true, 100, 29_000);
    for now_ms in [28_000, 31_000, 58_000] {
        bench.table.sweep(64, now_ms, &mut bench.workers[0], |_| false);
        assert!(bench.find(&key(1)).is_some(), "{now_ms}");
    }
    assert_eq!(bench.table.entry(slot).counts()[0], (1, 100));
}

#[test]
fn a_sweep_ends_what_is_over_and_every_worker_sweeps_its_share() {
    let mut bench = Bench::new(&settings(1024, 100), 3);
    let other = NewFlow { pods: [true; 2], ..flow(0, FlowState::Established) };
    for port in 0..100 {
        let flow = if port % 2 == 0 { flow(0, FlowState::Established) } else { other };
        bench.insert(&key(port), &flow, 0);
    }
    let is_ended = |entry: &Entry| entry.flow_word(true).pods() == [true; 2];
    let buckets = bench.table.buckets_per_worker(&bench.workers[0]);
    let mut ended = Vec::new();
    for worker_state in &mut bench.workers {
        bench.table.sweep(buckets, 0, worker_state, is_ended);
        ended.push(worker_state.ended);
    }
    assert_eq!(ended.iter().sum::<u64>(), 50);
    assert!(ended.iter().all(|ended| *ended > 0), "{ended:?}");
    assert!((0..100).all(|port| bench.find(&key(port)).is_some() == (port % 2 == 0)));
}

#[test]
fn workers_that_enter_the_same_flows_at_once_leave_one_of_each() {
    const WORKERS: usize = 3;
    let table = Conntrack::new(&settings(1 << 14, 100), false).unwrap();
    let slots: Vec<Vec<Slot>> = std::thread::scope(|scope| {
        let worker = |worker: usize| {
            let table = &table;
            scope.spawn(move || {
                let mut worker_state = WorkerState::new(WorkerId(worker as u16), WORKERS);
                let mut slots = Vec::new();
                for port in 0..2000 {
                    table.start_batch(&mut worker_state);
                    let key = key(port);
                    let hash = table.hash(&key);
                    let outcome = table.look_up(&key, hash).map_or_else(
                        || table.insert(&key, hash, &flow(0, FlowState::Established), 0, &mut worker_state),
                        InsertOutcome::Exists,
                    );
                    match outcome {
                        InsertOutcome::Inserted(slot) | InsertOutcome::Exists(slot) => slots.push(slot),
                        other @ InsertOutcome::Full => panic!("{other:?}"),
                    }
                }
                table.offline(&worker_state);
                slots
            })
        };
        let threads: Vec<_> = (0..WORKERS).map(worker).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(slots.len(), WORKERS);
    assert_eq!(table.len(), 2000);
    assert_eq!(table.flows_of(PortId(0), QuotaClass::Unassured), 2000);
    assert!((0..2000).all(|port| table.look_up(&key(port), table.hash(&key(port))).is_some()));
}

#[test]
fn the_workers_of_two_directions_do_not_undo_each_others_steps() {
    let mut bench = Bench::new(&settings(64, 100), 1);
    let segment = |flags: u8, sequence: u32, acknowledgement: u32| Segment {
        flags: Flags(flags),
        sequence,
        acknowledgement,
        window: 1000,
        payload_bytes: 0,
        scale: None,
    };
    let tcp = TcpFlow::open(&segment(Flags::ACK, 100, 200), true).unwrap();
    let new = NewFlow { tcp: Some(tcp), ..flow(0, tcp.state) };
    let key = Key { word: word(1, Protocol::TCP), ..key(1) };
    let InsertOutcome::Inserted(slot) = bench.insert(&key, &new, 0) else { panic!() };
    let entry = bench.table.entry(slot);
    assert_eq!(entry.load_tcp(), tcp);
    // The initiator's worker has loaded the flow; before it stores, the responder's worker follows a FIN.
    let before = entry.load_tcp();
    let mut finished = before;
    finished.advance(&segment(Flags::FIN | Flags::ACK, 200, 100), Side::Responder);
    entry.store_tcp(&before, &finished);
    let mut acknowledged = before;
    acknowledged.advance(&segment(Flags::ACK, 150, 200), Side::Initiator);
    entry.store_tcp(&before, &acknowledged);
    let after = entry.load_tcp();
    assert_eq!(after.state, FlowState::FinWait);
    assert!(after.sides[1].finished);
    assert_eq!(after.sides[0].end, 150);
}

fn published(key: &Key) -> Entry {
    let entry = Entry::default();
    entry.publish(key, &flow(3, FlowState::UdpOneWay), 0);
    entry
}

#[test]
fn no_ipv6_flow_passes_for_one_of_ipv4() {
    let v4 = key(7);
    // Addresses that look in an entry as those of the IPv4 flow do.
    let both = u128::from(v4.addresses[0]) << 64;
    let v6 = Key::new(both, both | 1, v4.word);
    for (there, asked) in [(&v4, &v6), (&v6, &v4)] {
        let entry = published(there);
        assert_eq!(entry.key().as_ref(), Some(there));
        for from_low in [true, false] {
            assert!(entry.matches(there, from_low) && !entry.matches(asked, from_low));
        }
    }
}

#[test]
fn an_end_of_a_flow_is_confirmed_by_itself_and_not_once_the_flow_is_open_from_the_other_end() {
    let entry = published(&key(7));
    let seen = entry.flow_word(true);
    entry.mark_current(true, seen, Generation(2), Some(7));
    assert_eq!((entry.flow_word(true).policy_epoch(), entry.flow_word(true).hop()), (Generation(2), Some(7)));
    assert_eq!((entry.flow_word(false).policy_epoch(), entry.flow_word(false).hop()), (Generation(1), None));
    assert_eq!(entry.quota_owner(), Some(QuotaOwner::unassured(PortId(3))));
    entry.restart(&NewFlow { opened_by_low: false, ..flow(3, FlowState::SynSent) }, 5);
    entry.mark_current(true, seen, Generation(3), Some(8));
    assert_eq!((entry.flow_word(true).policy_epoch(), entry.flow_word(true).hop()), (Generation(1), None));
}

#[test]
fn an_end_is_not_confirmed_once_an_earlier_generation_or_another_pod_has_opened_the_flow_anew() {
    let entry = published(&key(7));
    let opened = |policy_epoch, pods| NewFlow {
        policy_epoch: Generation(policy_epoch),
        pods,
        ..flow(3, FlowState::SynSent)
    };
    entry.restart(&opened(2, [true, false]), 0);
    let seen = entry.flow_word(true);
    for (policy_epoch, pods, marked) in
        [(1, [true, false], 1), (2, [true; 2], 2), (2, [false; 2], 2), (2, [true, false], 3)]
    {
        entry.restart(&opened(policy_epoch, pods), 5);
        entry.mark_current(true, seen, Generation(3), Some(8));
        assert_eq!(
            (entry.flow_word(true).policy_epoch(), entry.flow_word(true).pods()),
            (Generation(marked), pods)
        );
    }
}

/// Keys of IPv6 flows of protocols with windows and without.
fn keys_v6() -> impl Strategy<Value = Key> {
    let protocol = prop::sample::select(vec![Protocol::TCP, Protocol::UDP, Protocol::SCTP, Protocol::ICMPV6]);
    (any::<u128>(), any::<u128>(), any::<u16>(), protocol).prop_map(|(one, other, port, protocol)| {
        let [one, other] = [one, other].map(|address| address | 1 << 127);
        Key::new(one.min(other), one.max(other), word(port, protocol))
    })
}

proptest! {
    #[test]
    fn an_entry_over_ipv6_is_its_own_flow_alone_from_both_ends_and_whatever_becomes_of_it(
        key in keys_v6(),
        numbers in any::<[u32; 4]>(),
        opened_by_low in any::<bool>(),
    ) {
        let [end, max_end, max_window, acknowledged] = numbers;
        let side = TcpSide { end, max_end, max_window: max_window >> 2, acknowledged, ..TcpSide::default() };
        let is_tcp = key.protocol() == Protocol::TCP;
        let tcp = is_tcp.then_some(TcpFlow { state: FlowState::SynSent, sides: [side; 2] });
        let new = NewFlow { opened_by_low, tcp, ..flow(3, FlowState::SynSent) };
        let entry = Entry::default();
        entry.publish(&key, &new, 0);
        let is_alone = || {
            let of_key = |bit: usize| {
                let mut words = key.words();
                words[bit / 64] ^= 1 << (bit % 64);
                Key::from_words(words)
            };
            let is_no_other = (0..256 + 48).map(of_key).all(|other| !entry.matches(&other, true) && !entry.matches(&other, false));
            entry.key() == Some(key) && entry.matches(&key, true) && entry.matches(&key, false) && is_no_other
        };
        prop_assert!(is_alone());
        if is_tcp {
            let before = entry.load_tcp();
            prop_assert_eq!(before.sides, [side; 2]);
            let moved = TcpSide {
                end: !end,
                max_end: !max_end,
                max_window: side.max_window ^ 1,
                acknowledged: !acknowledged,
                finished: true,
                scale: 7,
            };
            entry.store_tcp(&before, &TcpFlow { state: FlowState::FinWait, sides: [moved; 2] });
            prop_assert_eq!(entry.load_tcp().sides, [moved; 2]);
        }
        entry.set_state(entry.state(), FlowState::TimeWait);
        entry.mark_current(opened_by_low, entry.flow_word(opened_by_low), Generation(u32::MAX), Some(u16::MAX - 1));
        [true, false].iter().for_each(|from_low| entry.count(*from_low, usize::MAX, u32::MAX));
        prop_assert!(is_alone());
        entry.restart(&NewFlow { opened_by_low: !opened_by_low, ..new }, 5);
        let owner = QuotaOwner { port: PortId(1023), class: QuotaClass::Assured };
        prop_assert_eq!(entry.replace_quota_owner(None, owner), Some(QuotaOwner::unassured(PortId(3))));
        prop_assert_eq!(entry.replace_quota_owner(Some(QuotaOwner::unassured(PortId(1023))), QuotaOwner::unassured(PortId(1))), None);
        prop_assert!(is_alone());
        prop_assert_eq!(entry.unpublish(), Some(owner));
        prop_assert!(entry.key().is_none() && !entry.matches(&key, true) && !entry.matches(&key, false));
    }
}

/// What happens to a table.
#[derive(Debug, Clone, Copy)]
enum Step {
    Insert { port: u32, state: u8 },
    Remove { port: u32 },
    Touch { port: u32 },
    Wait { ms: u32 },
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    let port = 0..150u32;
    prop_oneof![
        4 => (port.clone(), 0..FlowState::ALL.len() as u8).prop_map(|(port, state)| Step::Insert { port, state }),
        2 => port.clone().prop_map(|port| Step::Remove { port }),
        2 => port.prop_map(|port| Step::Touch { port }),
        1 => (0..40_000u32).prop_map(|ms| Step::Wait { ms }),
        1 => Just(Step::Sweep),
    ]
}

proptest! {
    /// The naive twin: a hash map of what each flow was inserted as and when it was seen.
    #[test]
    fn the_table_is_a_map(steps in prop::collection::vec(step(), 0..400), workers in 1..4usize) {
        let mut bench = Bench::new(&settings(1024, 100), workers);
        let mut model: HashMap<u32, (FlowState, u32)> = HashMap::new();
        let timeouts = timeouts_ms(&Timeouts::default());
        let mut now_ms = u32::MAX - 100_000;
        for step in steps {
            bench.start_batches();
            match step {
                Step::Insert { port, state } if !model.contains_key(&port) => {
                    let state = FlowState::from_number(state);
                    let outcome = bench.insert(&key(port), &flow(3, state), now_ms);
                    prop_assert!(matches!(outcome, InsertOutcome::Inserted(_)), "{outcome:?}");
                    model.insert(port, (state, now_ms));
                }
                Step::Insert { .. } => {}
                Step::Remove { port } => {
                    let found = bench.find(&key(port));
                    prop_assert_eq!(found.is_some(), model.remove(&port).is_some());
                    found.into_iter().for_each(|slot| bench.table.remove(slot, &mut bench.workers[0]));
                }
                Step::Touch { port } => {
                    let found = bench.find(&key(port));
                    prop_assert_eq!(found.is_some(), model.contains_key(&port));
                    found.into_iter().for_each(|slot| bench.table.entry(slot).count(false, 1, now_ms));
                    model.entry(port).and_modify(|(_, last_seen_ms)| *last_seen_ms = now_ms);
                }
                Step::Wait { ms } => now_ms = now_ms.wrapping_add(ms),
                Step::Sweep => {
                    let buckets = bench.table.buckets_per_worker(&bench.workers[0]);
                    for worker_state in &mut bench.workers {
                        bench.table.sweep(buckets, now_ms, worker_state, |_| false);
                    }
                    model.retain(|_, (state, last_seen_ms)| {
                        now_ms.wrapping_sub(*last_seen_ms) <= timeouts[*state as usize]
                    });
                }
            }
            prop_assert_eq!(bench.table.len(), model.len());
            for class in [QuotaClass::Assured, QuotaClass::Unassured, QuotaClass::Ended] {
                let flows = model.values().filter(|(state, _)| state.class() == class).count();
                prop_assert_eq!(bench.table.flows_of(PortId(3), class) as usize, flows, "{:?}", class);
            }
        }
        for port in 0..150 {
            let state = bench.find(&key(port)).map(|slot| bench.table.entry(slot).state());
            prop_assert_eq!(state, model.get(&port).map(|(state, _)| *state));
        }
    }
}
