//! Reclamation of slots, timeouts and the sweep.

use super::*;

#[test]
fn a_slot_is_not_used_again_while_a_worker_may_hold_it() {
    let mut fixture = Fixture::new(&settings(32, 100), 2);
    let keys = fixture.fill(32, FlowState::UdpOneWay);
    // Worker 1 is in a batch that has the slot number; worker 0 ends the flow and starts further batches.
    fixture.start_batch(1);
    let slot = fixture.find(&keys[0]).unwrap();
    fixture.table.remove(slot, None, &mut fixture.workers[0]);
    let mut refused = 0;
    for port in 100..200 {
        fixture.start_batch(0);
        let outcome = fixture.insert(&key(port), &flow(0, FlowState::UdpOneWay), 0);
        refused += u32::from(outcome == InsertOutcome::Full);
        assert_eq!(fixture.table.tag(slot), TOMBSTONE);
    }
    assert!(refused >= 90, "{refused}");
    fixture.start_batches();
    assert_eq!(fixture.table.tag(slot), FREE);
    assert!(matches!(
        fixture.insert(&keys[0], &flow(0, FlowState::UdpOneWay), 0),
        InsertOutcome::Inserted(_)
    ));
}

#[test]
fn an_offline_worker_does_not_delay_reclamation() {
    let mut fixture = Fixture::new(&settings(32, 100), 2);
    let keys = fixture.fill(32, FlowState::UdpOneWay);
    fixture.table.offline(&fixture.workers[1]);
    let slot = fixture.find(&keys[0]).unwrap();
    fixture.table.remove(slot, None, &mut fixture.workers[0]);
    (0..4).for_each(|_| fixture.start_batch(0));
    assert_eq!(fixture.table.tag(slot), FREE);
}

#[test]
fn a_worker_with_a_full_retired_queue_removes_no_flow() {
    let mut fixture = Fixture::new(&settings(2 * RETIRED_FLOWS_MAX, 100), 2);
    let keys: Vec<Key> = (0..RETIRED_FLOWS_MAX as u32 + 10).map(key).collect();
    for key in &keys {
        assert!(matches!(fixture.insert(key, &flow(0, FlowState::UdpOneWay), 0), InsertOutcome::Inserted(_)));
    }
    for key in &keys {
        let slot = fixture.find(key).unwrap();
        fixture.table.remove(slot, None, &mut fixture.workers[0]);
    }
    assert_eq!(fixture.table.len(), 10);
    fixture.start_batches();
    let rest: Vec<Slot> = keys.iter().filter_map(|key| fixture.find(key)).collect();
    rest.into_iter().for_each(|slot| fixture.table.remove(slot, None, &mut fixture.workers[0]));
    assert_eq!(fixture.table.len(), 0);
}

#[test]
fn each_state_ends_after_its_own_timeout_and_not_before() {
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
    let mut fixture = Fixture::new(&ConntrackSettings { timeouts, ..settings(1024, 100) }, 2);
    // The clock wraps in between.
    let start = u32::MAX - 4000;
    for (port, state) in FlowState::ALL.iter().enumerate() {
        fixture.insert(&key(port as u32), &flow(0, *state), start);
    }
    for second in 0..16 {
        for (past_ms, idle_for) in [(0, "as long as it may"), (1, "too long")] {
            let buckets = fixture.table.buckets_per_worker(&fixture.workers[0]);
            let now_ms = start.wrapping_add(second * 1000 + past_ms);
            for worker_state in &mut fixture.workers {
                fixture.table.sweep(buckets, now_ms, worker_state, |_| false);
            }
            for (port, seconds) in expected.iter().enumerate() {
                let lives = fixture.find(&key(port as u32)).is_some();
                assert_eq!(lives, second + past_ms <= *seconds, "{:?} idle {idle_for}", FlowState::ALL[port]);
            }
        }
    }
}

#[test]
fn a_packet_keeps_a_flow_alive_even_when_another_worker_is_a_little_ahead() {
    let mut fixture = Fixture::new(&settings(64, 100), 1);
    let InsertOutcome::Inserted(slot) = fixture.insert(&key(1), &flow(0, FlowState::UdpOneWay), 0) else {
        panic!()
    };
    fixture.table.entry(slot).count(true, 100, 29_000);
    for now_ms in [28_000, 31_000, 58_000] {
        fixture.table.sweep(64, now_ms, &mut fixture.workers[0], |_| false);
        assert!(fixture.find(&key(1)).is_some(), "{now_ms}");
    }
    assert_eq!(fixture.table.entry(slot).counts()[0], (1, 100));
}

#[test]
fn a_sweep_ends_the_flows_that_its_caller_names_and_every_worker_sweeps_its_share() {
    let mut fixture = Fixture::new(&settings(1024, 100), 3);
    let other = NewFlow { pods: [true; 2], ..flow(0, FlowState::Established) };
    for port in 0..100 {
        let flow = if port % 2 == 0 { flow(0, FlowState::Established) } else { other };
        fixture.insert(&key(port), &flow, 0);
    }
    let is_ended = |entry: &Entry| entry.flow_word(true).pods() == [true; 2];
    let buckets = fixture.table.buckets_per_worker(&fixture.workers[0]);
    let mut ended = Vec::new();
    for worker_state in &mut fixture.workers {
        fixture.table.sweep(buckets, 0, worker_state, is_ended);
        ended.push(worker_state.ended);
    }
    assert_eq!(ended.iter().sum::<u64>(), 50);
    assert!(ended.iter().all(|ended| *ended > 0), "{ended:?}");
    assert!((0..100).all(|port| fixture.find(&key(port)).is_some() == (port % 2 == 0)));
}
