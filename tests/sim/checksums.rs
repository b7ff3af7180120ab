//! Verification of transport checksums for packets that open a flow or change its state, and of exact
//! sequence numbers for resets.

use palisade::dataplane::DropReason;
use palisade::ids::PortId;

use crate::frames::{Spec, Transport};
use crate::rig::assertions::{A, B, CLIENT, SERVER, connect, flows, is_dropped, passes, tcp, udp, udp_of};
use crate::rig::model::{ACK, FIN, RST, SYN};
use crate::rig::{Rig, Setting, addressed, forwarded, pod_address};

/// Chunks of SCTP.
const INIT: u8 = 1;
const DATA: u8 = 0;
const ABORT: u8 = 6;

fn broken(spec: &Spec) -> Spec {
    Spec { broken: true, ..spec.clone() }
}

fn state(rig: &Rig) -> String {
    flows(rig)[0].state.to_string()
}

/// Sends a packet with a wrong checksum, which changes nothing, and then with the right one.
#[track_caller]
fn counts_only_with_its_checksum(rig: &mut Rig, from: PortId, to: PortId, spec: &Spec) {
    let before = flows(rig);
    is_dropped(rig, from, &broken(spec), DropReason::BadChecksum);
    assert_eq!(flows(rig), before);
    passes(rig, from, to, spec);
}

#[test]
fn a_segment_with_a_wrong_checksum_opens_answers_finishes_and_resets_nothing() {
    let mut rig = Rig::new(1, &Setting::open());
    for (from, to, flags, then) in [
        (A, B, SYN, "syn-sent"),
        (B, A, SYN | ACK, "syn-received"),
        (A, B, ACK, "established"),
        (B, A, FIN | ACK, "fin-wait"),
        (A, B, RST, "reset"),
        // Next connection between the same ports.
        (A, B, SYN, "syn-sent"),
        (B, A, RST | ACK, "reset"),
    ] {
        counts_only_with_its_checksum(&mut rig, from, to, &tcp(flags, from == A));
        assert_eq!(state(&rig), then);
    }
}

#[test]
fn a_segment_that_decides_nothing_passes_with_a_wrong_checksum_and_leaves_it_to_its_receiver() {
    let mut rig = Rig::new(1, &Setting::open());
    connect(&mut rig);
    passes(&mut rig, A, B, &broken(&tcp(ACK, true)));
    passes(&mut rig, B, A, &broken(&tcp(ACK, false)));
    assert_eq!(state(&rig), "established");
}

#[test]
fn an_unfinished_checksum_is_a_right_one_and_is_finished() {
    let mut rig = Rig::new(1, &Setting::open());
    for (from, to, flags) in
        [(A, B, SYN), (B, A, SYN | ACK), (A, B, ACK), (B, A, FIN | ACK), (A, B, FIN | ACK), (A, B, RST)]
    {
        let spec = tcp(flags, from == A);
        let mut frame = addressed(from, &spec).bytes();
        crate::frames::unfinish(&mut frame);
        assert_eq!(rig.send_on(0, from, &[frame]), [(to, forwarded(to, &spec))]);
    }
    assert_eq!(state(&rig), "reset");
}

#[test]
fn what_opens_a_flow_or_answers_it_first_has_a_right_checksum_in_every_protocol_that_has_one() {
    for family in 0..2 {
        let mut rig = Rig::new(1, &Setting::open());
        counts_only_with_its_checksum(&mut rig, A, B, &udp_of(family, 0, 1, [1000, 53]));
        counts_only_with_its_checksum(&mut rig, B, A, &udp_of(family, 1, 0, [53, 1000]));
        // The receiver verifies later segments itself.
        passes(&mut rig, A, B, &broken(&udp_of(family, 0, 1, [1000, 53])));
        passes(&mut rig, B, A, &broken(&udp_of(family, 1, 0, [53, 1000])));
        let to_b = |transport| Spec::new(pod_address(0)[family], pod_address(1)[family], transport);
        counts_only_with_its_checksum(
            &mut rig,
            A,
            B,
            &to_b(Transport::Echo { request: true, identifier: 7 }),
        );
        let sctp = |chunk| to_b(Transport::Sctp { ports: [1000, 9], chunk });
        counts_only_with_its_checksum(&mut rig, A, B, &sctp(INIT));
        passes(&mut rig, A, B, &broken(&sctp(DATA)));
        counts_only_with_its_checksum(&mut rig, A, B, &sctp(ABORT));
        counts_only_with_its_checksum(&mut rig, A, B, &sctp(INIT));
        assert_eq!(rig.sim.flows_len(), 3);
    }
}

#[test]
fn a_datagram_without_a_checksum_or_padded_on_its_way_opens_a_flow() {
    for family in 0..2 {
        let mut rig = Rig::new(1, &Setting::open());
        let spec = udp_of(family, 0, 1, [1000, 53]);
        let mut frame = addressed(A, &spec).bytes();
        let field = frame.len() - spec.payload.len() - 2;
        frame[field..field + 2].fill(0);
        assert_eq!(rig.send_on(0, A, &[frame]).len(), 1);
        let spec = udp_of(family, 0, 1, [1001, 53]);
        let padded = [addressed(A, &spec).bytes(), vec![0xee; 21]].concat();
        assert_eq!(rig.send_on(0, A, &[padded]), [(B, forwarded(B, &spec))]);
        assert_eq!(rig.sim.flows_len(), 2);
    }
}

/// First fragment of an IPv4 packet without its other fragments.
fn first_fragment(from: PortId, spec: &Spec, number: u8) -> Vec<u8> {
    let mut frame =
        addressed(from, &Spec { payload: vec![7; 12 + usize::from(number) * 8], ..spec.clone() }).bytes();
    let behind = if matches!(spec.transport, Transport::Tcp { .. }) { 20 } else { 8 };
    frame.truncate(34 + behind + (12 + usize::from(number) * 8) / 8 * 8 - behind % 8);
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame[18..20].copy_from_slice(&[from.0 as u8, number]);
    frame[20..22].copy_from_slice(&[0x20, 0]);
    frame[24..26].fill(0);
    let sum = palisade::net::checksum::Sum::default().add_bytes(&frame[14..34]).finish();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

#[test]
fn a_first_fragment_passes_unverified_and_changes_the_state_of_no_connection() {
    let mut rig = Rig::new(1, &Setting::open());
    // It may open an unassured flow, as any packet without a reply may.
    assert_eq!(rig.send_on(0, A, &[first_fragment(A, &tcp(SYN, true), 1)]).len(), 1);
    assert_eq!(state(&rig), "syn-sent");
    passes(&mut rig, B, A, &tcp(SYN | ACK, false));
    assert_eq!(rig.send_on(0, A, &[first_fragment(A, &tcp(ACK, true), 2)]).len(), 1);
    assert_eq!(state(&rig), "syn-received");
    passes(&mut rig, A, B, &tcp(ACK, true));
    for (number, flags) in [(3, FIN | ACK), (4, RST), (5, RST | ACK)] {
        for (from, client) in [(A, true), (B, false)] {
            let frame = first_fragment(from, &tcp(flags, client), number);
            assert_eq!(rig.send_on(0, from, &[frame]).len(), 1);
            assert_eq!(state(&rig), "established", "{flags}");
        }
    }
    // Fragmented datagrams are ordinary traffic.
    let mut rig = Rig::new(1, &Setting::open());
    assert_eq!(rig.send_on(0, A, &[first_fragment(A, &udp_of(0, 0, 1, [1000, 53]), 1)]).len(), 1);
    assert_eq!(rig.send_on(0, B, &[first_fragment(B, &udp_of(0, 1, 0, [53, 1000]), 1)]).len(), 1);
    assert_eq!(state(&rig), "udp-two-way");
}

/// Reset with a sequence number this far from the next one.
fn reset(client_to_server: bool, away: i32) -> Spec {
    let spec = tcp(RST, client_to_server);
    let Transport::Tcp { ports, flags, sequence, acknowledgement, window } = spec.transport else { panic!() };
    let sequence = sequence.wrapping_add_signed(away);
    Spec { transport: Transport::Tcp { ports, flags, sequence, acknowledgement, window }, ..spec }
}

#[test]
fn a_reset_ends_a_flow_by_the_exact_number_alone_and_passes_elsewhere_in_the_window() {
    for (from, to) in [(A, B), (B, A)] {
        let mut rig = Rig::new(1, &Setting::open());
        connect(&mut rig);
        for away in [1, -1, 7, 900, -900] {
            passes(&mut rig, from, to, &reset(from == A, away));
            assert_eq!(state(&rig), "established", "{away}");
        }
        for away in [100_000, -100_000, i32::MIN] {
            is_dropped(&mut rig, from, &reset(from == A, away), DropReason::InvalidState);
        }
        passes(&mut rig, from, to, &reset(from == A, 0));
        assert_eq!(state(&rig), "reset");
        assert_eq!(flows(&rig)[0].key.src_port, CLIENT);
        assert_eq!(flows(&rig)[0].key.dst_port, SERVER);
    }
}

#[test]
fn unfinished_checksums_are_finished_on_the_way() {
    let mut rig = Rig::new(1, &Setting::open());
    for spec in [tcp(SYN, true), udp(0, 1, [1, 2])] {
        let mut frame = addressed(A, &spec).bytes();
        crate::frames::unfinish(&mut frame);
        assert_eq!(rig.send_on(0, A, &[frame]), [(B, forwarded(B, &spec))]);
    }
}
