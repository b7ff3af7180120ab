//! Quotas and eviction.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::dataplane::conntrack::quota::ASSURED_IDLE_MAX_MS;
use crate::dataplane::offload::{Gateway, Offload, OffloadedFlow};
use crate::xdp::offload::OffloadMaps;

#[test]
fn a_full_table_keeps_assured_flows_and_evicts_unassured_ones() {
    let mut fixture = Fixture::new(&settings(256, 100), 1);
    let established: Vec<Key> = (0..100).map(key).collect();
    for key in &established {
        assert!(matches!(
            fixture.insert(key, &flow(0, FlowState::Established), 0),
            InsertOutcome::Inserted(_)
        ));
    }
    for port in 1000..5000 {
        // A later try finds the slot that the first one has freed.
        let flow = flow(1, FlowState::SynSent);
        let mut tries = 0;
        while !matches!(fixture.insert(&key(port), &flow, port), InsertOutcome::Inserted(_)) {
            fixture.start_batches();
            tries += 1;
            assert!(tries < 3, "{port}");
        }
    }
    assert!(established.iter().all(|key| fixture.find(key).is_some()));
    assert!(fixture.workers[0].evicted >= 4000 - 156, "{}", fixture.workers[0].evicted);
}

#[test]
fn at_most_three_quarters_of_the_table_are_assured_and_none_of_these_is_evicted() {
    let mut fixture = Fixture::new(&settings(64, 100), 1);
    let keys: Vec<Key> = (0..64).map(key).collect();
    for key in &keys {
        fixture.insert(key, &flow(0, FlowState::Established), 0);
        fixture.start_batches();
    }
    let is_assured = |fixture: &Fixture, key: &Key| {
        let owner = fixture.find(key).and_then(|slot| fixture.table.entry(slot).quota_owner());
        owner == Some(QuotaOwner { port: PortId(0), class: QuotaClass::Assured })
    };
    let assured: Vec<&Key> = keys.iter().filter(|key| is_assured(&fixture, key)).collect();
    assert_eq!((assured.len(), fixture.flows_of(0)[0]), (48, 48));
    for port in 10_000..10_500 {
        fixture.insert(&key(port), &flow(1, FlowState::SynSent), 1);
        fixture.start_batches();
    }
    assert!(assured.into_iter().all(|key| is_assured(&fixture, key)));
}

#[test]
fn ports_that_grow_together_have_equal_shares_of_the_assured_flows_and_one_share_is_left_over() {
    for ports in [1, 2, 3, 7] {
        // Three quarters of these slots are 840, a multiple of one to eight.
        let mut fixture = Fixture::new(&settings(1120, 50), 1);
        for number in 0..1120 {
            let outcome =
                fixture.insert(&key(number), &flow((number % ports) as u16, FlowState::Established), 0);
            assert!(!matches!(outcome, InsertOutcome::Exists(_)));
            fixture.start_batches();
        }
        for port in 0..ports {
            assert_eq!(fixture.flows_of(port as u16)[0], 840 / (ports + 1), "{port} of {ports}");
        }
    }
}

#[test]
fn a_port_with_a_smaller_quota_has_less() {
    let mut fixture = Fixture::new(&settings(1024, 25), 1);
    for port in 0..400 {
        assert!(matches!(
            fixture.insert(&key(port), &flow(7, FlowState::Established), 0),
            InsertOutcome::Inserted(_)
        ));
    }
    // The port may have a third of the slots that are left for all others.
    assert_eq!(fixture.flows_of(7), [192, 208]);
}

#[test]
fn a_flow_beyond_a_quota_becomes_assured_within_it_and_an_ended_flow_is_assured_no_longer() {
    let mut fixture = Fixture::new(&settings(64, 50), 1);
    let keys: Vec<Key> = (0..30).map(key).collect();
    for key in &keys {
        fixture.insert(key, &flow(1, FlowState::Established), 0);
    }
    assert_eq!(fixture.flows_of(1), [24, 6]);
    let sweep = |fixture: &mut Fixture| fixture.table.sweep(4, 0, &mut fixture.workers[0], |_| false);
    sweep(&mut fixture);
    assert_eq!(fixture.flows_of(1), [24, 6]);
    for key in &keys[..6] {
        let slot = fixture.find(key).unwrap();
        fixture.table.entry(slot).set_state(FlowState::Established, FlowState::Reset);
        fixture.table.on_state_change(slot, FlowState::Established, FlowState::Reset);
    }
    assert_eq!((fixture.flows_of(1), fixture.table.flows_of(PortId(1), QuotaClass::Ended)), ([18, 6], 6));
    sweep(&mut fixture);
    assert_eq!(fixture.flows_of(1), [24, 0]);
}

#[test]
fn a_flow_is_evicted_only_for_one_of_a_port_that_has_no_more_unassured_flows() {
    let mut fixture = Fixture::new(&settings(1024, 50), 1);
    // These flows are idle longer than all that follow.
    let few: Vec<Key> = (0..100).map(key).collect();
    for key in &few {
        fixture.insert(key, &flow(1, FlowState::SynSent), 0);
    }
    for port in 1000..10_000 {
        fixture.insert(&key(port), &flow(2, FlowState::SynSent), 1 + port / 1000);
        fixture.start_batches();
    }
    assert_eq!(fixture.flows_of(1), [0, 100]);
    assert!(few.iter().all(|key| fixture.find(key).is_some()));
    // The first port evicts flows of the second until both have the same number.
    for port in 10_000..20_000 {
        fixture.insert(&key(port), &flow(1, FlowState::SynSent), 20);
        fixture.start_batches();
    }
    let [[_, one], [_, other]] = [1, 2].map(|port| fixture.flows_of(port));
    assert!(one.abs_diff(other) < 100, "{one} {other}");
}

#[test]
fn a_flow_that_is_silent_for_hours_lives_on_until_a_new_one_needs_its_slot() {
    let mut fixture = Fixture::new(&settings(64, 100), 1);
    let keys: Vec<Key> = (0..48).map(key).collect();
    for key in &keys {
        fixture.insert(key, &flow(0, FlowState::Established), 0);
        fixture.start_batches();
    }
    let present = |fixture: &Fixture| keys.iter().filter(|key| fixture.find(key).is_some()).count();
    let sweep =
        |fixture: &mut Fixture, now_ms| fixture.table.sweep(4, now_ms, &mut fixture.workers[0], |_| false);
    assert_eq!((present(&fixture), fixture.flows_of(0)), (48, [48, 0]));
    sweep(&mut fixture, ASSURED_IDLE_MAX_MS - 1);
    assert_eq!(fixture.flows_of(0), [48, 0]);
    sweep(&mut fixture, ASSURED_IDLE_MAX_MS);
    assert_eq!((present(&fixture), fixture.flows_of(0)), (48, [0, 48]));
    // One that is heard again is assured again.
    let heard = fixture.find(&keys[0]).unwrap();
    fixture.table.entry(heard).count(true, 100, ASSURED_IDLE_MAX_MS);
    sweep(&mut fixture, ASSURED_IDLE_MAX_MS);
    assert_eq!(fixture.flows_of(0), [1, 47]);
    // Connections of another port take their slots, and are assured.
    for port in 20_000..20_200 {
        fixture.insert(&key(port), &flow(2, FlowState::Established), ASSURED_IDLE_MAX_MS);
        fixture.start_batches();
    }
    assert_eq!(fixture.flows_of(2)[0], 47);
    assert!(present(&fixture) < 20 && fixture.find(&keys[0]).is_some(), "{}", present(&fixture));
}

#[test]
fn flows_past_their_timeout_are_removed_first_and_do_not_count_as_evicted() {
    let ends_expired_flows_only = |_: &i32| {
        let mut fixture = Fixture::new(&settings(32, 50), 1);
        for port in 0..28 {
            fixture.insert(&key(port), &flow(1, FlowState::UdpOneWay), 0);
        }
        // In the end the second port has more unassured flows than the first.
        for port in 100..120 {
            fixture.insert(&key(port), &flow(2, FlowState::SynSent), 30_001);
            fixture.start_batches();
        }
        let counts = (fixture.workers[0].ended, fixture.workers[0].evicted);
        counts == (20, 0) && [1, 2].map(|port| fixture.flows_of(port)) == [[0, 8], [0, 20]]
    };
    // One table of thirty has a seed by which more new flows than expired ones share a bucket.
    let only = (0..64).filter(ends_expired_flows_only).count();
    assert!(only > 48, "{only} of 64 tables evicted nothing");
}

#[test]
fn ended_flows_are_evicted_before_those_that_wait_for_an_answer() {
    let mut fixture = Fixture::new(&settings(32, 50), 1);
    for port in 0..28 {
        let state = if port % 7 == 0 { FlowState::SynSent } else { FlowState::TimeWait };
        fixture.insert(&key(port), &flow(1, state), 0);
    }
    for port in 100..108 {
        fixture.insert(&key(port), &flow(2, FlowState::SynSent), 1);
        fixture.start_batches();
    }
    assert!((0..28).step_by(7).all(|port| fixture.find(&key(port)).is_some()));
    assert_eq!((fixture.workers[0].evicted, fixture.table.flows_of(PortId(1), QuotaClass::Ended)), (8, 16));
}

/// Fills batches with new flows of hostile ports, every second of which is answered if they collude, and adds
/// some flows of another port, which are answered a few batches later. Returns the part of these that is
/// inserted and lives until then.
fn part_that_gets_through(flows_max: usize, hostile: u32, collude: bool) -> f64 {
    const PER_BATCH: u32 = 2;
    const DELAY: usize = 4;
    let mut fixture = Fixture::new(&settings(flows_max, 50), 1);
    let (mut number, mut tried, mut through) = (0, 0, 0);
    let mut waiting: VecDeque<Vec<Key>> = VecDeque::new();
    let batches = 3 * flows_max / 256;
    for batch in 0..batches {
        fixture.start_batch(0);
        let now_ms = batch as u32;
        for _ in 0..256 - PER_BATCH {
            number += 1;
            let is_answered = collude && (number / hostile).is_multiple_of(2);
            let state = if is_answered { FlowState::Established } else { FlowState::SynSent };
            fixture.insert(&key(number), &flow(1 + (number % hostile) as u16, state), now_ms);
        }
        let keys: Vec<Key> = (number + 1..=number + PER_BATCH).map(key).collect();
        number += PER_BATCH;
        for key in &keys {
            fixture.insert(key, &flow(0, FlowState::SynSent), now_ms);
        }
        waiting.push_back(keys);
        if waiting.len() > DELAY {
            let slots: Vec<Slot> =
                waiting.pop_front().unwrap().iter().filter_map(|key| fixture.find(key)).collect();
            if batch > batches / 2 {
                tried += PER_BATCH;
                through += slots.len() as u32;
            }
            // The flows close at once, so that the port has few connections at a time.
            slots.into_iter().for_each(|slot| fixture.table.remove(slot, None, &mut fixture.workers[0]));
        }
    }
    f64::from(through) / f64::from(tried)
}

#[test]
fn another_ports_flows_get_through_floods_of_first_packets_and_of_answered_flows() {
    for hostile in [2, 10, 250] {
        for collude in [false, true] {
            let part = part_that_gets_through(1 << 15, hostile, collude);
            assert!(part >= 0.99, "{hostile} hostile ports, colluding {collude}: {part:.4}");
        }
    }
}

#[test]
fn a_flow_restarted_by_its_other_side_counts_against_the_other_pod_and_no_count_wraps() {
    let mut fixture = Fixture::new(&settings(64, 100), 1);
    let InsertOutcome::Inserted(slot) = fixture.insert(&key(1), &flow(1, FlowState::TimeWait), 0) else {
        panic!()
    };
    let restarted = NewFlow { opened_by_low: false, ..flow(2, FlowState::SynSent) };
    fixture.table.restart(slot, &restarted, 5);
    let counts = |fixture: &Fixture| [1, 2].map(|port| fixture.flows_of(port));
    assert_eq!(counts(&fixture), [[0, 0], [0, 1]]);
    assert_eq!(fixture.table.entry(slot).sender(true), Side::Responder);
    fixture.table.remove(slot, None, &mut fixture.workers[0]);
    assert_eq!(counts(&fixture), [[0, 0]; 2]);
}

#[test]
fn a_flow_whose_port_has_another_number_counts_against_that_in_its_class() {
    let mut fixture = Fixture::new(&settings(64, 100), 1);
    for (number, state) in [FlowState::Established, FlowState::SynSent].into_iter().enumerate() {
        let InsertOutcome::Inserted(slot) = fixture.insert(&key(number as u32), &flow(1, state), 0) else {
            panic!()
        };
        (0..2).for_each(|_| fixture.table.set_owner_port(slot, PortId(2)));
    }
    assert_eq!([1, 2].map(|port| fixture.flows_of(port)), [[0, 0], [1, 1]]);
}

#[test]
fn a_connection_whose_handshake_the_kernel_has_completed_is_not_evicted() {
    const HALF_OPEN: usize = 100;
    let mut fixture = Fixture::new(&settings(256, 100), 1);
    let offload = Arc::new(Offload::new(OffloadMaps::in_memory(256).unwrap()));
    fixture.table.add_offload(offload.clone());
    let keys: Vec<Key> = (0..HALF_OPEN as u32).map(key).collect();
    for key in &keys {
        fixture.insert(key, &flow(0, FlowState::SynReceived), 0);
        let recorded = OffloadedFlow {
            addresses: [key.low(), key.high()],
            transport_ports: [key.low_port(), key.high_port()],
            protocol: key.protocol(),
            ports: [PortId(0), PortId(1)],
            epochs: [Some(Generation(1)); 2],
            front: None,
            gateway: Gateway::None,
            numbers: Default::default(),
        };
        offload.record(fixture.find(key).unwrap().number(), &recorded, || true);
    }
    // The third segments of all of them but one.
    let records = offload.maps().records.iter().filter(|record| record.head.load(Relaxed) != 0);
    let completed: Vec<_> = records.skip(1).collect();
    completed.iter().for_each(|record| _ = record.packets[0].fetch_add(1, Relaxed));
    let completed = completed.len();
    assert!(completed > HALF_OPEN - 5, "{completed}");
    for port in 1000..5000 {
        fixture.insert(&key(port), &flow(1, FlowState::SynSent), port);
        fixture.start_batches();
    }
    let kept = keys.iter().filter_map(|key| fixture.find(key));
    let kept = kept.filter(|slot| fixture.table.entry(*slot).state() == FlowState::Established);
    assert_eq!(kept.count(), completed);
}
