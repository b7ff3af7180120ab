use std::fmt::Write;

use super::*;

const INITIATOR: Side = Side::Initiator;
const RESPONDER: Side = Side::Responder;
const SYN: u8 = Flags::SYN;
const ACK: u8 = Flags::ACK;
const FIN: u8 = Flags::FIN;
const RST: u8 = Flags::RST;

/// Two hosts and the flow between them: the hosts have their next numbers, the flow only those that it has
/// seen.
#[derive(Clone)]
struct Talk {
    flow: TcpFlow,
    next: [u32; 2],
}

impl Talk {
    /// A connection after a SYN with a sequence number that is about to wrap.
    fn opened() -> Talk {
        let next = [u32::MAX - 5, 0x8000_0000];
        let syn = Segment { scale: Some(7), ..segment(SYN, next[0], 0) };
        let flow = TcpFlow::open(&syn, false).unwrap();
        Talk { flow, next: [next[0].wrapping_add(1), next[1]] }
    }

    fn answered() -> Talk {
        let mut talk = Talk::opened();
        let syn_ack = Segment { scale: Some(7), ..segment(SYN | ACK, talk.next[1], talk.next[0]) };
        assert_eq!(talk.flow.advance(&syn_ack, RESPONDER), Outcome::Pass);
        talk.next[1] += 1;
        talk
    }

    fn established() -> Talk {
        let mut talk = Talk::answered();
        talk.say(ACK, INITIATOR, 0);
        talk
    }

    fn picked_up() -> Talk {
        let next = [1000, 2000];
        let flow = TcpFlow::open(&segment(ACK, next[0], next[1]), true).unwrap();
        Talk { flow, next }
    }

    /// The next segment of `sender`.
    fn next(&self, flags: u8, sender: Side, payload_bytes: u32) -> Segment {
        let [sequence, acknowledgement] = [sender as usize, 1 - sender as usize].map(|side| self.next[side]);
        Segment { payload_bytes, ..segment(flags, sequence, acknowledgement) }
    }

    fn say(&mut self, flags: u8, sender: Side, payload_bytes: u32) {
        let segment = self.next(flags, sender, payload_bytes);
        assert_eq!(self.flow.advance(&segment, sender), Outcome::Pass);
        self.next[sender as usize] = segment.end();
    }

    fn hears(&self, segment: &Segment, sender: Side) -> (Outcome, FlowState) {
        let mut flow = self.flow;
        (flow.advance(segment, sender), flow.state)
    }
}

fn segment(flags: u8, sequence: u32, acknowledgement: u32) -> Segment {
    let flags = Flags(flags);
    Segment { flags, sequence, acknowledgement, window: 1000, payload_bytes: 0, scale: None }
}

fn talks() -> Vec<(&'static str, Talk)> {
    let mut talks =
        vec![("SYN", Talk::opened()), ("SYN-ACK", Talk::answered()), ("ACK", Talk::established())];
    let mut go_on = |name, flags, sender, payload_bytes| {
        let mut talk = talks.last().unwrap().1.clone();
        talk.say(flags, sender, payload_bytes);
        talks.push((name, talk));
    };
    go_on("data", ACK, INITIATOR, 10);
    go_on("FIN of the initiator", FIN | ACK, INITIATOR, 0);
    go_on("its ACK", ACK, RESPONDER, 0);
    go_on("FIN of the responder", FIN | ACK, RESPONDER, 0);
    go_on("its ACK", ACK, INITIATOR, 0);
    let mut reset = Talk::established();
    reset.say(RST, RESPONDER, 0);
    talks.push(("RST", reset));
    talks.push(("picked up", Talk::picked_up()));
    talks
}

/// Golden table of the outcome and the next state, for every state and every event.
#[test]
fn golden_table_of_states_and_events() {
    type Event = fn(&Talk, Side) -> Segment;
    let events: [(&str, Event); 12] = [
        ("SYN", |talk, sender| talk.next(SYN, sender, 0)),
        ("SYN of another number", |talk, sender| Segment { sequence: 77, ..talk.next(SYN, sender, 0) }),
        ("SYN-ACK", |talk, sender| talk.next(SYN | ACK, sender, 0)),
        ("SYN-ACK of something else", |talk, sender| Segment {
            acknowledgement: 77,
            ..talk.next(SYN | ACK, sender, 0)
        }),
        ("ACK", |talk, sender| talk.next(ACK, sender, 0)),
        ("data", |talk, sender| talk.next(ACK, sender, 100)),
        ("data beyond the window", |talk, sender| {
            let next = talk.next(ACK, sender, 100);
            Segment { sequence: next.sequence.wrapping_add(1 << 30), ..next }
        }),
        ("FIN", |talk, sender| talk.next(FIN | ACK, sender, 0)),
        ("FIN beyond the window", |talk, sender| {
            let next = talk.next(FIN | ACK, sender, 0);
            Segment { sequence: next.sequence.wrapping_add(1 << 30), ..next }
        }),
        ("RST", |talk, sender| talk.next(RST | ACK, sender, 0)),
        ("RST in the window", |talk, sender| {
            let next = talk.next(RST, sender, 0);
            Segment { sequence: next.sequence.wrapping_add(500), ..next }
        }),
        ("RST beyond the window", |talk, sender| {
            let next = talk.next(RST, sender, 0);
            Segment { sequence: next.sequence.wrapping_add(1 << 30), ..next }
        }),
    ];
    let mut table = String::new();
    for (after, talk) in talks() {
        writeln!(table, "{} (after {after})", talk.flow.state.name()).unwrap();
        for (name, event) in events {
            write!(table, "  {name:<26}").unwrap();
            for sender in [INITIATOR, RESPONDER] {
                let (outcome, state) = talk.hears(&event(&talk, sender), sender);
                let then = if outcome == Outcome::Pass { state.name() } else { "" };
                let cell = format!("{sender:?}: {outcome:?} {then}");
                write!(table, "{cell:<36}").unwrap();
            }
            table.truncate(table.trim_end().len());
            table.push('\n');
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn a_reset_outside_the_window_is_dropped_and_changes_nothing() {
    let talk = Talk::established();
    for sender in [INITIATOR, RESPONDER] {
        let sequence = talk.next[sender as usize];
        for away in [200_000, 1 << 31, (1u32 << 31) - 1, u32::MAX - 200_000] {
            let reset = segment(RST, sequence.wrapping_add(away), 0);
            assert_eq!(talk.hears(&reset, sender), (Outcome::Invalid, Established), "{sender:?} {away}");
        }
    }
}

#[test]
fn of_all_resets_in_the_window_only_the_one_with_the_next_number_closes() {
    let talk = Talk::established();
    for sender in [INITIATOR, RESPONDER] {
        let next = talk.next[sender as usize];
        for away in -900..900i32 {
            let reset = segment(RST, next.wrapping_add_signed(away), 0);
            let state = if away == 0 { Reset } else { Established };
            assert_eq!(talk.hears(&reset, sender), (Outcome::Pass, state), "{sender:?} {away}");
        }
    }
}

#[test]
fn a_reset_closes_by_what_its_receiver_expects_also_where_later_segments_were_lost() {
    for sender in [INITIATOR, RESPONDER] {
        let mut talk = Talk::established();
        talk.say(ACK, sender, 100);
        let expected = talk.next[sender as usize];
        // The receiver acknowledges the first hundred bytes; the next three hundred are lost behind the
        // switch.
        let receiver = if sender == INITIATOR { RESPONDER } else { INITIATOR };
        talk.say(ACK, receiver, 0);
        talk.say(ACK, sender, 300);
        let sent = talk.next[sender as usize];
        for (sequence, state) in [
            (expected, Reset),
            (sent, Reset),
            (expected.wrapping_sub(100), Established),
            (expected.wrapping_add(1), Established),
            (sent.wrapping_sub(1), Established),
            (sent.wrapping_add(1), Established),
        ] {
            let reset = segment(RST, sequence, 0);
            assert_eq!(talk.hears(&reset, sender), (Outcome::Pass, state), "{sender:?} {sequence}");
        }
    }
}

#[test]
fn a_reset_that_is_not_exact_is_challenged_and_the_exact_one_that_answers_closes() {
    let mut talk = Talk::established();
    // Fifty bytes were lost before the switch.
    let ahead = segment(RST, talk.next[0].wrapping_add(50), 0);
    assert_eq!(talk.flow.advance(&ahead, INITIATOR), Outcome::Pass);
    assert_eq!(talk.flow.state, Established);
    talk.say(ACK, RESPONDER, 0);
    talk.say(RST, INITIATOR, 0);
    assert_eq!(talk.flow.state, Reset);
}

#[test]
fn a_host_that_forgot_a_connection_resets_it_by_the_challenge_to_its_syn_and_opens_the_next() {
    // The switch either still has the connection, or has lost it too and sees a SYN first.
    for mut talk in [Talk::established(), Talk::opened()] {
        let syn = segment(SYN, 77, 0);
        assert_eq!(talk.flow.advance(&syn, INITIATOR), Outcome::Pass);
        let expected = if talk.flow.state == Established { talk.next[0] } else { 123_456 };
        let challenge = segment(ACK, talk.next[1], expected);
        assert_eq!(talk.flow.advance(&challenge, RESPONDER), Outcome::Pass);
        assert_eq!(talk.flow.advance(&segment(RST, expected, 0), INITIATOR), Outcome::Pass);
        assert_eq!(talk.flow.state, Reset);
        assert_eq!(talk.flow.advance(&syn, INITIATOR), Outcome::Reopen);
    }
}

#[test]
fn a_reset_of_an_initiator_that_nobody_has_answered_has_the_number_behind_its_syn() {
    let talk = Talk::opened();
    for away in [-1, 1, 100, 1 << 30] {
        let reset = segment(RST, talk.next[0].wrapping_add_signed(away), 0);
        assert_eq!(talk.hears(&reset, INITIATOR), (Outcome::Invalid, SynSent), "{away}");
    }
    assert_eq!(talk.hears(&segment(RST, 0, 0), INITIATOR), (Outcome::Invalid, SynSent));
    assert_eq!(talk.hears(&talk.next(RST, INITIATOR, 0), INITIATOR), (Outcome::Pass, Reset));
}

#[test]
fn a_reset_that_refuses_a_syn_has_to_acknowledge_it() {
    let talk = Talk::opened();
    let refusal = segment(RST | ACK, 0, talk.next[0]);
    assert_eq!(talk.hears(&refusal, RESPONDER), (Outcome::Pass, Reset));
    for wrong in [segment(RST, 0, talk.next[0]), segment(RST | ACK, 0, talk.next[0].wrapping_add(1))] {
        assert_eq!(talk.hears(&wrong, RESPONDER), (Outcome::Invalid, SynSent));
    }
}

#[test]
fn a_syn_of_the_responder_of_an_open_connection_is_invalid() {
    for talk in [Talk::answered(), Talk::established()] {
        assert_eq!(talk.hears(&talk.next(SYN, RESPONDER, 0), RESPONDER).0, Outcome::Invalid);
    }
}

#[test]
fn a_syn_ack_opens_nothing_and_neither_does_a_reset() {
    for flags in [SYN | ACK, RST, RST | ACK, 0, FIN] {
        assert_eq!(TcpFlow::open(&segment(flags, 1, 1), true), None, "{flags:#x}");
    }
}

#[test]
fn both_sides_finish_and_the_connection_waits() {
    let mut talk = Talk::established();
    let mut states = Vec::new();
    for (flags, sender) in
        [(FIN | ACK, INITIATOR), (ACK, RESPONDER), (ACK, RESPONDER), (FIN | ACK, RESPONDER), (ACK, INITIATOR)]
    {
        talk.say(flags, sender, 0);
        states.push(talk.flow.state);
    }
    assert_eq!(states, [FinWait, FinWait, FinWait, LastAck, TimeWait]);
}

#[test]
fn a_fin_outside_the_window_ends_nothing() {
    let talk = Talk::established();
    for sender in [INITIATOR, RESPONDER] {
        let fin = talk.next(FIN | ACK, sender, 0);
        let fin = Segment { sequence: fin.sequence.wrapping_add(1 << 29), ..fin };
        assert_eq!(talk.hears(&fin, sender), (Outcome::Pass, Established));
    }
}

#[test]
fn a_syn_in_time_wait_reopens_from_either_side() {
    let (_, talk) = talks().into_iter().find(|(_, talk)| talk.flow.state == TimeWait).unwrap();
    for sender in [INITIATOR, RESPONDER] {
        assert_eq!(talk.hears(&talk.next(SYN, sender, 0), sender).0, Outcome::Reopen);
    }
}

#[test]
fn the_middle_of_a_connection_is_picked_up_only_where_that_is_wanted() {
    for flags in [ACK, FIN | ACK] {
        let middle = segment(flags, 1000, 2000);
        assert_eq!(TcpFlow::open(&middle, false), None);
        assert_eq!(TcpFlow::open(&middle, true).map(|flow| flow.state), Some(Unacknowledged));
    }
}

#[test]
fn a_picked_up_connection_is_established_by_an_answer_that_fits_and_by_nothing_else() {
    let mut talk = Talk::picked_up();
    talk.say(ACK, INITIATOR, 100);
    let fits = talk.next(ACK, RESPONDER, 10);
    for wrong in [
        Segment { acknowledgement: talk.next[0] + 1, ..fits },
        Segment { acknowledgement: talk.next[0].wrapping_sub((1000 << 14) + 1), ..fits },
        Segment { sequence: fits.sequence.wrapping_add((1000 << 14) + 2), ..fits },
        Segment { sequence: fits.sequence.wrapping_sub(1 << 28), ..fits },
        Segment { flags: Flags(FIN), ..fits },
    ] {
        assert_eq!(talk.hears(&wrong, RESPONDER), (Outcome::Pass, Unacknowledged), "{wrong:?}");
    }
    assert_eq!(talk.hears(&fits, INITIATOR).1, Unacknowledged);
    for (finished, states) in [(false, [Established, FinWait]), (true, [FinWait, LastAck])] {
        let mut talk = talk.clone();
        if finished {
            talk.say(FIN | ACK, INITIATOR, 0);
            assert_eq!(talk.flow.state, Unacknowledged);
        }
        for (flags, state) in [ACK, FIN | ACK].into_iter().zip(states) {
            assert_eq!(talk.hears(&talk.next(flags, RESPONDER, 0), RESPONDER), (Outcome::Pass, state));
        }
    }
}

#[test]
fn a_syn_opens_a_connection_in_place_of_one_that_was_picked_up_and_not_answered() {
    let talk = Talk::picked_up();
    for sender in [INITIATOR, RESPONDER] {
        assert_eq!(talk.hears(&talk.next(SYN, sender, 0), sender).0, Outcome::Reopen);
    }
}

#[test]
fn a_connection_picked_up_is_followed_from_the_first_reply_on() {
    let mut talk = Talk::picked_up();
    talk.say(ACK, RESPONDER, 500);
    talk.say(ACK, INITIATOR, 0);
    talk.say(FIN | ACK, RESPONDER, 0);
    talk.say(FIN | ACK, INITIATOR, 0);
    talk.say(ACK, RESPONDER, 0);
    assert_eq!(talk.flow.state, TimeWait);
}

#[test]
fn the_side_of_a_picked_up_connection_that_has_not_spoken_may_reset_it() {
    let talk = Talk::picked_up();
    assert_eq!(talk.hears(&segment(RST, 2000, 0), RESPONDER), (Outcome::Pass, Reset));
    assert_eq!(talk.hears(&segment(RST, 1999, 0), RESPONDER), (Outcome::Invalid, Unacknowledged));
}

#[test]
fn a_syn_with_data_may_be_acknowledged_with_and_without_it() {
    let syn = Segment { payload_bytes: 100, ..segment(SYN, 10, 0) };
    let flow = TcpFlow::open(&syn, false).unwrap();
    let talk = Talk { flow, next: [11, 50] };
    for (acknowledgement, outcome) in
        [(10, Outcome::Invalid), (11, Outcome::Pass), (111, Outcome::Pass), (112, Outcome::Invalid)]
    {
        let syn_ack = segment(SYN | ACK, 50, acknowledgement);
        assert_eq!(talk.hears(&syn_ack, RESPONDER).0, outcome, "{acknowledgement}");
    }
    let mut talk = talk;
    assert_eq!(talk.flow.advance(&segment(SYN | ACK, 50, 111), RESPONDER), Outcome::Pass);
    assert_eq!(talk.flow.advance(&segment(ACK, 111, 51), INITIATOR), Outcome::Pass);
    assert_eq!(talk.flow.state, Established);
}

#[test]
fn a_second_syn_cookie_replaces_the_first() {
    let mut talk = Talk::answered();
    let cookie = segment(SYN | ACK, 123_456, talk.next[0]);
    assert_eq!(talk.flow.advance(&cookie, RESPONDER), Outcome::Pass);
    talk.next[1] = 123_457;
    talk.say(ACK, INITIATOR, 0);
    assert_eq!(talk.flow.state, Established);
}

#[test]
fn a_responder_may_send_what_the_syn_has_offered_before_the_handshake_is_over() {
    let mut talk = Talk::answered();
    talk.say(ACK, RESPONDER, 600);
    talk.say(ACK, RESPONDER, 400);
    talk.say(ACK, INITIATOR, 0);
    assert_eq!(talk.flow.state, Established);
}

#[test]
fn both_sides_may_open_at_once() {
    let mut talk = Talk::opened();
    talk.say(SYN, RESPONDER, 0);
    let syn_ack = segment(SYN | ACK, talk.next[0].wrapping_sub(1), talk.next[1]);
    assert_eq!(talk.flow.advance(&syn_ack, INITIATOR), Outcome::Pass);
    let syn_ack = segment(SYN | ACK, talk.next[1].wrapping_sub(1), talk.next[0]);
    assert_eq!(talk.flow.advance(&syn_ack, RESPONDER), Outcome::Pass);
    assert_eq!(talk.flow.state, Established);
    talk.say(ACK, INITIATOR, 500);
    talk.say(FIN | ACK, INITIATOR, 0);
    assert_eq!(talk.flow.state, FinWait);
}

#[test]
fn windows_are_scaled_only_where_both_sides_scale() {
    for (scale, max_end) in [(Some(7), 1000 << 7), (None, 1000)] {
        let mut talk = Talk::opened();
        let syn_ack = Segment { scale, ..segment(SYN | ACK, talk.next[1], talk.next[0]) };
        assert_eq!(talk.flow.advance(&syn_ack, RESPONDER), Outcome::Pass);
        talk.next[1] += 1;
        talk.say(ACK, INITIATOR, 0);
        let [initiator, responder] = &talk.flow.sides;
        assert_eq!(responder.limit(initiator).wrapping_sub(talk.next[1]), max_end, "{scale:?}");
    }
}

/// A connection that the kernel forwards: the flow gets its numbers when a segment comes that the kernel leaves to the switch.
fn forwarded_by_the_kernel(mut talk: Talk, payloads: &[(Side, u32)]) -> Talk {
    let mut kernel = talk.clone();
    payloads.iter().for_each(|(sender, bytes)| kernel.say(ACK, *sender, *bytes));
    talk.next = kernel.next;
    talk.flow.take_over(kernel.flow.numbers());
    talk
}

#[test]
fn a_connection_that_the_kernel_forwards_ends_by_the_numbers_that_it_has_reached() {
    let payloads: Vec<_> =
        (0..400).flat_map(|_| [(INITIATOR, 900), (RESPONDER, 500), (INITIATOR, 100)]).collect();
    for start in [Talk::answered(), Talk::established()] {
        let talk = forwarded_by_the_kernel(start, &payloads);
        let state = talk.flow.state;
        for sender in [INITIATOR, RESPONDER] {
            let exact = talk.next(RST, sender, 0);
            assert_eq!(talk.hears(&exact, sender), (Outcome::Pass, Reset));
            let near = Segment { sequence: exact.sequence.wrapping_sub(500), ..exact };
            assert_eq!(talk.hears(&near, sender), (Outcome::Pass, state));
            let far = Segment { sequence: exact.sequence.wrapping_add(1 << 20), ..exact };
            assert_eq!(talk.hears(&far, sender), (Outcome::Invalid, state));
            let fin = talk.next(FIN | ACK, sender, 0);
            assert_eq!(talk.hears(&fin, sender), (Outcome::Pass, FinWait));
            for far in [1 << 20, 1 << 30, 1 << 31] {
                let another = Segment { sequence: fin.sequence.wrapping_add(far), ..fin };
                assert_eq!(talk.hears(&another, sender), (Outcome::Pass, state));
                let another = Segment { acknowledgement: fin.acknowledgement.wrapping_sub(far), ..fin };
                assert_eq!(talk.hears(&another, sender), (Outcome::Pass, state));
            }
        }
    }
}

#[test]
fn numbers_of_the_kernel_that_are_late_are_those_of_the_acknowledgements() {
    let talk = forwarded_by_the_kernel(Talk::established(), &[(INITIATOR, 900), (RESPONDER, 500)]);
    let mut late = Talk::established();
    let mut numbers = talk.flow.numbers();
    numbers[0].end = late.flow.numbers()[0].end;
    late.flow.take_over(numbers);
    assert_eq!(late.flow.numbers()[0].end, talk.next[0]);
}

#[test]
fn a_connection_that_the_kernel_has_carried_far_ends_by_its_numbers() {
    for gibibytes in [1, 2, 3] {
        let mut talk = Talk::established();
        let mut numbers = talk.flow.numbers();
        let bytes = gibibytes << 30;
        (numbers[0].end, numbers[1].acknowledged) =
            (talk.next[0].wrapping_add(bytes), talk.next[0].wrapping_add(bytes));
        talk.next[0] = talk.next[0].wrapping_add(bytes);
        talk.flow.take_over(numbers);
        for sender in [INITIATOR, RESPONDER] {
            let reset = talk.next(RST, sender, 0);
            assert_eq!(talk.hears(&reset, sender), (Outcome::Pass, Reset), "{gibibytes} GiB");
            let fin = talk.next(FIN | ACK, sender, 0);
            assert_eq!(talk.hears(&fin, sender), (Outcome::Pass, FinWait), "{gibibytes} GiB");
        }
    }
}

#[test]
fn a_reset_passes_and_ends_nothing_where_a_restart_has_lost_the_numbers() {
    let mut talk = forwarded_by_the_kernel(Talk::established(), &[(INITIATOR, 900), (RESPONDER, 500)]);
    talk.flow.sides.iter_mut().for_each(|side| side.max_window = 0);
    for sender in [INITIATOR, RESPONDER] {
        assert_eq!(talk.hears(&talk.next(RST, sender, 0), sender), (Outcome::Pass, Established));
    }
    // The next segments tell them.
    talk.say(ACK, INITIATOR, 10);
    talk.say(ACK, RESPONDER, 10);
    assert_eq!(talk.hears(&talk.next(RST, INITIATOR, 0), INITIATOR), (Outcome::Pass, Reset));
    let far = Segment { sequence: talk.next[0].wrapping_add(1 << 30), ..talk.next(RST, INITIATOR, 0) };
    assert_eq!(talk.hears(&far, INITIATOR), (Outcome::Invalid, Established));
}
