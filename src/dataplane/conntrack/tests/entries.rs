//! Entries.

use super::*;

#[test]
fn the_workers_of_two_directions_do_not_undo_each_others_steps() {
    let mut fixture = Fixture::new(&settings(64, 100), 1);
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
    let InsertOutcome::Inserted(slot) = fixture.insert(&key, &new, 0) else { panic!() };
    let entry = fixture.table.entry(slot);
    assert_eq!(entry.load_tcp(), tcp);
    // The initiator's worker has loaded the flow; before it stores, the responder's worker handles a FIN.
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
    // In an entry these addresses have the same words as those of the IPv4 flow.
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
fn an_end_of_a_flow_becomes_current_by_itself_and_not_after_a_restart_from_the_other_end() {
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
fn an_end_does_not_become_current_after_an_earlier_generation_or_another_pod_has_restarted_the_flow() {
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

/// Keys of IPv6 flows of protocols with and without TCP fields.
fn keys_v6() -> impl Strategy<Value = Key> {
    let protocol = prop::sample::select(vec![Protocol::TCP, Protocol::UDP, Protocol::SCTP, Protocol::ICMPV6]);
    (any::<u128>(), any::<u128>(), any::<u16>(), protocol).prop_map(|(one, other, port, protocol)| {
        let [one, other] = [one, other].map(|address| address | 1 << 127);
        Key::new(one.min(other), one.max(other), word(port, protocol))
    })
}

/// Numbers of a side of a connection, from one number on. It has acknowledged what its peer has sent before another one.
fn sides(from: u32, acknowledges: u32) -> impl Strategy<Value = TcpSide> {
    let offset = || prop_oneof![0_u32..4, 0_u32..100_000, 0_u32..1 << 30];
    let window = prop_oneof![Just(0_u32), 1_u32..1 << 17, 1_u32..1 << 30];
    (0_u32..100_000, offset(), window, offset(), 0_u8..15).prop_map(
        move |(end, room, max_window, behind, scale)| {
            let end = from.wrapping_add(end);
            let (max_end, acknowledged) = (end.wrapping_add(room), acknowledges.wrapping_sub(behind));
            TcpSide { end, max_end, max_window, acknowledged, scale, finished: false }
        },
    )
}

/// Segments from one number on that acknowledge another one.
fn segments(from: u32, acknowledges: u32) -> impl Strategy<Value = Segment> {
    let offset = || prop_oneof![Just(0), -4_i32..4, -100_000_i32..100_000, any::<i32>()];
    (offset(), offset(), any::<u16>(), 0_u32..3000).prop_map(
        move |(sequence, acknowledgement, window, payload_bytes)| {
            let sequence = from.wrapping_add_signed(sequence);
            let acknowledgement = acknowledges.wrapping_add_signed(acknowledgement);
            Segment {
                flags: Flags(Flags::ACK),
                sequence,
                acknowledgement,
                window,
                payload_bytes,
                scale: None,
            }
        },
    )
}

proptest! {

    #![proptest_config(crate::random::cases(4096))]

    #[test]
    fn a_segment_that_takes_the_short_path_changes_what_the_state_machine_changes(
        (numbers, sent) in any::<[u32; 2]>().prop_flat_map(|[one, other]| {
            let numbers = (sides(one, other), sides(other, one)).prop_map(<[TcpSide; 2]>::from);
            let sent = proptest::collection::vec((segments(one, other), segments(other, one), any::<bool>()), 1..8);
            (numbers, sent)
        }),
        opened_by_low in any::<bool>(),
    ) {
        let key = Key { word: word(1, Protocol::TCP), ..key(1) };
        let tcp = TcpFlow { state: FlowState::Established, sides: numbers };
        let [short, long] = [Entry::default(), Entry::default()];
        for entry in [&short, &long] {
            entry.publish(&key, &NewFlow { opened_by_low, tcp: Some(tcp), ..flow(3, tcp.state) }, 0);
        }
        for (by_initiator, by_responder, is_initiator) in sent {
            let (segment, sender) =
                if is_initiator { (by_initiator, Side::Initiator) } else { (by_responder, Side::Responder) };
            short.pass_segment(is_initiator == opened_by_low, &segment);
            let before = long.load_tcp();
            let mut after = before;
            prop_assert_eq!(after.advance(&segment, sender), Outcome::Pass);
            prop_assert!(!long.store_tcp(&before, &after), "the state stays");
            let [short, long] = [&short, &long].map(|entry| {
                let sides = entry.load_tcp().sides;
                // The state machine notes a limit that the short path derives when it needs it.
                [0, 1].map(|side| TcpSide { max_end: sides[side].limit(&sides[1 - side]), ..sides[side] })
            });
            prop_assert_eq!(short, long);
        }
    }
}

proptest! {

    #![proptest_config(crate::random::cases(256))]

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
