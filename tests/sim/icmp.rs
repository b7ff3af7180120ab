//! ICMP: replies to requests, messages evaluated by themselves, errors about packets, and the rate limit of
//! errors that the switch sends.

use std::time::Duration;

use palisade::dataplane::DropReason;
use palisade::ids::PortId;
use palisade::tables::Verdict;

use crate::frames::{Spec, Transport};
use crate::rig::assertions::{A, B, C, decisions, flows, is_dropped, mute, passes, udp};
use crate::rig::{Rig, Setting, UPLINK, addressed, ip, outside_address, pod_address};

/// Types of requests and replies, over IPv4 and over IPv6.
const QUERIES: [&[(u8, u8)]; 2] = [&[(8, 0), (13, 14), (15, 16), (17, 18)], &[(128, 129), (139, 140)]];

fn message(family: usize, kind: u8, identifier: u16, from: usize, to: usize) -> Spec {
    let [high, low] = identifier.to_be_bytes();
    let transport = Transport::Icmp { kind, code: 0, rest: [high, low, 0, 1] };
    Spec::new(pod_address(from)[family], pod_address(to)[family], transport)
}

#[test]
fn queries_of_both_sides_with_one_identifier_do_not_meet() {
    for (family, queries) in QUERIES.into_iter().enumerate() {
        let mut rig = Rig::new(1, &Setting::open().with(1, mute()));
        for &(request, reply) in queries {
            for identifier in [0, 7] {
                let from_b = |kind| message(family, kind, identifier, 1, 0);
                let from_a = |kind| message(family, kind, identifier, 0, 1);
                is_dropped(&mut rig, B, &from_b(reply), DropReason::InvalidState);
                passes(&mut rig, A, B, &from_a(request));
                passes(&mut rig, B, A, &from_b(reply));
                is_dropped(&mut rig, B, &from_b(request), DropReason::PolicyEgress);
                is_dropped(&mut rig, A, &from_a(reply), DropReason::InvalidState);
            }
        }
        assert_eq!(rig.sim.flows_len(), 2 * queries.len());
    }
}

#[test]
fn a_request_lets_in_its_own_kind_of_reply_and_nothing_else() {
    for (family, queries) in QUERIES.into_iter().enumerate() {
        for &(request, reply) in queries {
            let mut rig = Rig::new(1, &Setting::open().with(1, mute()));
            passes(&mut rig, A, B, &message(family, request, 7, 0, 1));
            is_dropped(&mut rig, B, &message(family, reply, 8, 1, 0), DropReason::InvalidState);
            for &(_, other) in queries.iter().filter(|(other, _)| *other != request) {
                is_dropped(&mut rig, B, &message(family, other, 7, 1, 0), DropReason::InvalidState);
            }
            for other in [[9, 10, 19, 30, 40, 42, 255], [144, 145, 146, 150, 160, 200, 255]][family] {
                is_dropped(&mut rig, B, &message(family, other, 7, 1, 0), DropReason::PolicyEgress);
            }
            passes(&mut rig, B, A, &message(family, reply, 7, 1, 0));
        }
    }
}

#[test]
fn a_message_that_nothing_answers_is_evaluated_each_time_and_enters_no_flow() {
    for (family, kinds) in [[9, 10, 40, 255], [144, 146, 200, 255]].into_iter().enumerate() {
        let mut rig = Rig::new(1, &Setting::open());
        for kind in kinds {
            passes(&mut rig, A, B, &message(family, kind, 7, 0, 1));
            passes(&mut rig, A, B, &message(family, kind, 7, 0, 1));
        }
        assert_eq!(flows(&rig), []);
        let evaluated: u64 = decisions(&rig, Verdict::Allow).into_values().sum();
        assert_eq!(evaluated, 2 * 2 * 4, "each packet, on both sides");
        rig.publish(&Setting::open().with(0, mute()));
        for kind in kinds {
            is_dropped(&mut rig, A, &message(family, kind, 7, 0, 1), DropReason::PolicyEgress);
        }
        // The other direction has no flow either: each request is evaluated by itself.
        passes(&mut rig, B, A, &message(family, kinds[0], 7, 1, 0));
    }
}

#[test]
fn an_error_about_a_timestamp_request_belongs_to_its_flow() {
    let mut rig = Rig::new(1, &Setting::open().with(1, mute()));
    let request = message(0, 13, 7, 0, 1);
    let error = |quoted: &Spec| {
        let transport = Transport::Icmp { kind: 3, code: 1, rest: [0; 4] };
        Spec { payload: quoted.ip(), ..Spec::new(quoted.dst, quoted.src, transport) }
    };
    is_dropped(&mut rig, B, &error(&request), DropReason::InvalidState);
    passes(&mut rig, A, B, &request);
    passes(&mut rig, B, A, &error(&request));
    is_dropped(&mut rig, B, &error(&message(0, 8, 7, 0, 1)), DropReason::InvalidState);
    is_dropped(&mut rig, B, &error(&message(0, 9, 7, 0, 1)), DropReason::InvalidState);
}

/// Sends packets with an expiring TTL from a pod; returns the number of errors that it receives.
fn provoke(rig: &mut Rig, port: PortId, packets: usize) -> usize {
    let to = usize::from(port != B);
    let expiring = addressed(port, &Spec { ttl: 1, ..udp(port.index(), to, [1, 2]) }).bytes();
    let mut told = 0;
    for _ in 0..packets {
        told += rig.send_on(0, port, std::slice::from_ref(&expiring)).len();
    }
    told
}

#[test]
fn errors_of_the_switch_are_limited_in_number_and_not_for_ever() {
    let mut rig = Rig::new(1, &Setting::open());
    assert_eq!(provoke(&mut rig, A, 1300), 1100, "its own hundred, and all of the common thousand");
    assert_eq!(rig.counters(A).drops["ttl-exceeded"], 1300);
    rig.sim.now += Duration::from_secs(1);
    assert_eq!(provoke(&mut rig, A, 1), 1);
}

#[test]
fn pods_that_provoke_errors_without_end_do_not_silence_them_for_others() {
    let mut rig = Rig::new(1, &Setting::open());
    for _ in 0..3 {
        provoke(&mut rig, A, 2000);
        provoke(&mut rig, B, 2000);
        assert_eq!(provoke(&mut rig, C, 150), 100);
        rig.sim.now += Duration::from_secs(1);
    }
}

#[test]
fn what_nobody_is_told_of_costs_nobodys_budget() {
    let mut rig = Rig::new(1, &Setting::open());
    // An ICMP error with an expiring TTL gets no error in reply (RFC 1122 section 3.2.2).
    let question = udp(0, 1, [1000, 53]);
    passes(&mut rig, A, B, &question);
    let transport = Transport::Icmp { kind: 3, code: 3, rest: [0; 4] };
    let error = Spec { payload: question.ip(), ttl: 1, ..Spec::new(question.dst, question.src, transport) };
    let frame = addressed(B, &error).bytes();
    for _ in 0..1200 {
        assert_eq!(rig.send_on(0, B, std::slice::from_ref(&frame)), []);
    }
    assert_eq!(provoke(&mut rig, B, 1100), 1100);
}

/// ICMP error about a packet, from the packet's destination.
fn error_about(quoted: &Spec) -> Spec {
    let kind = if quoted.src.is_ipv4() { 3 } else { 1 };
    let transport = Transport::Icmp { kind, code: 3, rest: [0; 4] };
    Spec { payload: quoted.ip(), ..Spec::new(quoted.dst, quoted.src, transport) }
}

#[test]
fn an_icmp_error_passes_only_to_the_sender_of_what_it_quotes_and_from_where_that_went() {
    let nothing_out = Setting::open().with(1, mute()).with(2, mute());
    let mut rig = Rig::new(1, &nothing_out);
    for family in [0, 1] {
        let transport = Transport::Udp { ports: [1000, 53] };
        let question = Spec::new(pod_address(0)[family], pod_address(1)[family], transport);
        is_dropped(&mut rig, B, &error_about(&question), DropReason::InvalidState);
        passes(&mut rig, A, B, &question);
        passes(&mut rig, B, A, &error_about(&question));
        let misdirected = Spec { dst: pod_address(2)[family], ..error_about(&question) };
        is_dropped(&mut rig, B, &misdirected, DropReason::InvalidState);
        let stranger = Spec { src: pod_address(2)[family], ..error_about(&question) };
        is_dropped(&mut rig, C, &stranger, DropReason::InvalidState);
        let other = Spec { transport: Transport::Udp { ports: [1000, 54] }, ..question.clone() };
        is_dropped(&mut rig, B, &error_about(&other), DropReason::InvalidState);
        let answer = Transport::Udp { ports: [53, 1000] };
        let answer = Spec { src: question.dst, dst: question.src, transport: answer, ..question };
        passes(&mut rig, A, B, &error_about(&answer));
    }
    assert!(flows(&rig).iter().all(|flow| (flow.packets, flow.reply_packets) == (1, 0)));
}

#[test]
fn an_icmp_error_from_a_router_behind_the_uplink_passes() {
    let mut rig = Rig::new(1, &Setting::open());
    let question = Spec::new(pod_address(0)[0], outside_address(1)[0], Transport::Udp { ports: [1000, 53] });
    passes(&mut rig, A, UPLINK, &question);
    let from_router = Spec { src: ip("192.0.2.1"), ..error_about(&question) };
    passes(&mut rig, UPLINK, A, &from_router);
}
