//! Rules of the packet path, one test each: the packets that pass and the counters that move.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use palisade::dataplane::{DropReason, FlowInfo, PortKind};
use palisade::ids::{AttachmentId, PortId};
use palisade::net::flow::Protocol;
use palisade::tables::{Direction, RuleOrigin, Verdict};

use crate::frames::{Spec, Transport, arp, check};
use crate::rig::model::{ACK, FIN, RST, SYN};
use crate::rig::rule_lists::{PodRules, Rule};
use crate::rig::{
    HOST, Rig, Setting, UPLINK, addressed, forwarded, gateway_address, gateway_mac, ip, mac, node_address,
    outside_address, pod_address, router_address, switch_mac,
};

pub(crate) const A: PortId = PortId(0);
pub(crate) const B: PortId = PortId(1);
pub(crate) const C: PortId = PortId(2);
pub(crate) const CLIENT: u16 = 40_000;
pub(crate) const SERVER: u16 = 80;
/// Chunks of SCTP (RFC 9260 section 3.2).
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const COOKIE_ACK: u8 = 11;
const SHUTDOWN_COMPLETE: u8 = 14;

/// Rules of a pod that may open no connection, and that everyone may reach.
pub(crate) fn mute() -> PodRules {
    PodRules { egress: Some(Vec::new()), ingress: None }
}

/// Rules of a pod that everyone may reach on this port only.
pub(crate) fn serves(protocol: Protocol, port: u16) -> PodRules {
    PodRules { ingress: Some(vec![Rule::port(protocol, port)]), egress: None }
}

pub(crate) fn tcp(flags: u8, client_to_server: bool) -> Spec {
    let (sequence, acknowledgement) = match (flags, client_to_server) {
        (SYN, _) => (100, 0),
        (_, true) => (101, 501),
        (flags, false) if flags & SYN != 0 => (500, 101),
        (_, false) => (501, 101),
    };
    let ports = if client_to_server { [CLIENT, SERVER] } else { [SERVER, CLIENT] };
    let (src, dst) = if client_to_server { (0, 1) } else { (1, 0) };
    let transport = Transport::Tcp { ports, flags, sequence, acknowledgement, window: 1000 };
    Spec { payload: Vec::new(), ..Spec::new(pod_address(src)[0], pod_address(dst)[0], transport) }
}

pub(crate) fn udp(from: usize, to: usize, ports: [u16; 2]) -> Spec {
    udp_of(0, from, to, ports)
}

/// Datagram as of [`udp`], over IPv4 (0) or IPv6 (1).
pub(crate) fn udp_of(family: usize, from: usize, to: usize, ports: [u16; 2]) -> Spec {
    Spec::new(pod_address(from)[family], pod_address(to)[family], Transport::Udp { ports })
}

/// Opens a TCP connection from `a` to `b`.
pub(crate) fn connect(rig: &mut Rig) {
    passes(rig, A, B, &tcp(SYN, true));
    passes(rig, B, A, &tcp(SYN | ACK, false));
    passes(rig, A, B, &tcp(ACK, true));
}

#[track_caller]
pub(crate) fn passes(rig: &mut Rig, from: PortId, to: PortId, spec: &Spec) {
    let before = rig.counters(from);
    let frames = rig.send(from, spec);
    assert_eq!(frames, [(to, forwarded(to, spec))], "drops: {:?}", rig.drops_since(from, &before));
    assert_eq!(rig.drops_since(from, &before), BTreeMap::new());
}

#[track_caller]
pub(crate) fn is_dropped(rig: &mut Rig, from: PortId, spec: &Spec, reason: DropReason) {
    let before = rig.counters(from);
    assert_eq!(rig.send(from, spec), []);
    assert_eq!(rig.drops_since(from, &before), BTreeMap::from([(reason.name().to_owned(), 1)]));
}

pub(crate) fn flows(rig: &Rig) -> Vec<FlowInfo> {
    let mut flows = rig.sim.flows(100);
    flows.sort_by_key(|flow| flow.key);
    flows
}

pub(crate) fn decisions(rig: &Rig, verdict: Verdict) -> BTreeMap<RuleOrigin, u64> {
    let counts = rig.sim.counters().decisions.into_iter();
    counts.filter(|count| count.verdict == verdict).map(|count| (count.origin, count.packets)).collect()
}

#[test]
fn a_connection_passes_both_ways_and_is_followed() {
    let mut rig = Rig::new(1, &Setting::open().with(0, PodRules { ingress: Some(Vec::new()), egress: None }));
    connect(&mut rig);
    let flow = &flows(&rig)[0];
    assert_eq!((flow.state.as_str(), flow.packets, flow.reply_packets), ("established", 2, 1));
    assert_eq!((flow.bytes, flow.reply_bytes), (80, 40));
    assert_eq!(flow.egress, Some(RuleOrigin::NotIsolated { direction: Direction::Egress }));
    passes(&mut rig, B, A, &tcp(FIN | ACK, false));
    passes(&mut rig, A, B, &tcp(RST | ACK, true));
    assert_eq!(flows(&rig)[0].state, "reset");
}

#[test]
fn the_two_directions_of_a_flow_may_be_on_different_workers() {
    let mut rig = Rig::new(2, &Setting::open());
    for (worker, port, spec) in [
        (0, A, tcp(SYN, true)),
        (1, B, tcp(SYN | ACK, false)),
        (0, A, tcp(ACK, true)),
        (1, B, tcp(ACK, false)),
    ] {
        assert_eq!(rig.send_on(worker, port, &[addressed(port, &spec).bytes()]).len(), 1);
    }
    let flow = &flows(&rig)[0];
    assert_eq!((flow.state.as_str(), flow.packets, flow.reply_packets), ("established", 2, 2));
    let workers = rig.sim.counters().workers;
    assert!(workers.values().all(|worker| worker.received > 0), "{workers:?}");
}

#[test]
fn packets_of_one_flow_in_one_batch_open_it_once_and_are_evaluated_once() {
    const FLOWS: u16 = 60;
    let mut rig = Rig::new(1, &Setting::open());
    let frame = |port| addressed(A, &udp(0, 1, [port, SERVER])).bytes();
    let batch: Vec<Vec<u8>> = (0..FLOWS).chain([7, 8, 7, 9]).map(|i| frame(CLIENT + i)).collect();
    assert_eq!(rig.send_on(0, A, &batch).len(), batch.len());
    let packets: Vec<u64> = flows(&rig).iter().map(|flow| flow.packets).collect();
    let expected = |i| match i {
        7 => 3,
        8 | 9 => 2,
        _ => 1,
    };
    assert_eq!(packets, (0..FLOWS).map(expected).collect::<Vec<u64>>());
    let evaluated: Vec<u64> = decisions(&rig, Verdict::Allow).into_values().collect();
    assert_eq!(evaluated, [u64::from(FLOWS); 2], "each flow on each side");
}

#[test]
fn what_policy_denies_is_counted_by_direction_and_by_rule() {
    let mut rig = Rig::new(1, &Setting::open().with(1, serves(Protocol::TCP, 443)).with(2, mute()));
    is_dropped(&mut rig, A, &tcp(SYN, true), DropReason::PolicyIngress);
    is_dropped(&mut rig, A, &tcp(SYN, true), DropReason::PolicyIngress);
    is_dropped(&mut rig, C, &udp(2, 0, [1, 2]), DropReason::PolicyEgress);
    let denied: Vec<_> = decisions(&rig, Verdict::Deny).into_iter().collect();
    let is_of = |origin: &RuleOrigin, wanted: Direction, pod: &str| {
        matches!(origin, RuleOrigin::DefaultDeny { direction, policies }
            if *direction == wanted && policies[0].name == format!("for-{pod}"))
    };
    assert_eq!(denied.iter().map(|(_, packets)| *packets).collect::<Vec<_>>(), [2, 1]);
    assert!(is_of(&denied[0].0, Direction::Ingress, "b") && is_of(&denied[1].0, Direction::Egress, "c"));
    assert_eq!(rig.sim.flows_len(), 0);
}

#[test]
fn reply_passes_after_the_policy_that_denies_its_own_direction_is_loaded() {
    let mut rig = Rig::new(1, &Setting::open());
    connect(&mut rig);
    rig.publish(&Setting::open().with(1, mute()));
    passes(&mut rig, B, A, &tcp(ACK, false));
    let flow = &flows(&rig)[0];
    assert_eq!((flow.state.as_str(), flow.packets, flow.reply_packets), ("established", 2, 2));
}

#[test]
fn an_established_flow_that_a_new_policy_denies_is_closed_on_its_next_packet_from_either_side() {
    for (port, packet) in [(A, tcp(ACK, true)), (B, tcp(ACK, false))] {
        let mut rig = Rig::new(1, &Setting::open());
        connect(&mut rig);
        let denies =
            PodRules { ingress: Some(vec![Rule { verdict: Verdict::Deny, ..Rule::ALL }]), egress: None };
        rig.publish(&Setting::open().with(1, denies));
        is_dropped(&mut rig, port, &packet, DropReason::PolicyIngress);
        let denied = decisions(&rig, Verdict::Deny);
        let [(RuleOrigin::Rule { policy, direction, index, .. }, 1)] =
            &denied.into_iter().collect::<Vec<_>>()[..]
        else {
            panic!("one rule has decided once")
        };
        assert_eq!((policy.name.as_str(), *direction, *index), ("for-b", Direction::Ingress, 0));
        assert_eq!(rig.sim.flows_len(), 0);
    }
}

#[test]
fn a_policy_loaded_again_costs_an_allowed_flow_nothing() {
    let mut rig = Rig::new(1, &Setting::open());
    connect(&mut rig);
    for round in 0..5u64 {
        rig.publish(&Setting::open().with(1, serves(Protocol::TCP, SERVER)));
        passes(&mut rig, A, B, &tcp(ACK, true));
        passes(&mut rig, B, A, &tcp(ACK, false));
        let flow = &flows(&rig)[0];
        assert_eq!(
            (flow.state.as_str(), flow.packets, flow.reply_packets),
            ("established", 3 + round, 2 + round)
        );
    }
}

#[test]
fn of_a_pod_with_several_addresses_rules_see_the_one_of_the_packet_also_after_other_rules_are_loaded() {
    let first = pod_address(0);
    let second = [ip("10.0.0.6"), ip("fd00::6")];
    let mut rig = Rig::new(1, &Setting::open());
    // Each step changes rule tables only, and with them the classes of most addresses.
    for (round, named) in [first, second, first].into_iter().enumerate() {
        let with_named = Some(vec![Rule { peers: Some(named.to_vec()), ..Rule::ALL }]);
        let setting = Setting::open()
            .with(1, PodRules { ingress: with_named.clone(), egress: None })
            .with(2, PodRules { ingress: None, egress: with_named });
        let mut desired = setting.desired();
        desired.pods[0].addresses.extend(second);
        rig.sim.publish(desired);
        rig.sim.step();
        let transport = Transport::Udp { ports: [1000 + round as u16, 53] };
        for (family, address) in [first, second].into_iter().flat_map(|pair| pair.into_iter().enumerate()) {
            let to_b = Spec::new(address, pod_address(1)[family], transport);
            let from_c = Spec::new(pod_address(2)[family], address, transport);
            if named.contains(&address) {
                passes(&mut rig, A, B, &to_b);
                passes(&mut rig, C, A, &from_c);
            } else {
                is_dropped(&mut rig, A, &to_b, DropReason::PolicyIngress);
                is_dropped(&mut rig, C, &from_c, DropReason::PolicyEgress);
            }
        }
    }
}

#[test]
fn a_pod_attached_with_the_address_of_another_inherits_nothing() {
    // Directly, after idle time, and with the last pod's policy loaded again in between.
    for between in [vec![], vec![None], vec![Some(AttachmentId(1)), None, Some(AttachmentId(78))]] {
        for family in [0, 1] {
            let mut rig = Rig::new(1, &Setting::open().with(0, mute()).with(1, PodRules::default()));
            // b sends to a, which may only answer.
            passes(&mut rig, B, A, &udp_of(family, 1, 0, [1000, 53]));
            passes(&mut rig, A, B, &udp_of(family, 0, 1, [53, 1000]));
            for attachment in between.iter().copied().chain([Some(AttachmentId(77))]) {
                let mut setting = Setting::open().with(0, mute());
                setting.attachments[0] = attachment;
                rig.publish(&setting);
            }
            is_dropped(&mut rig, A, &udp_of(family, 0, 1, [53, 1000]), DropReason::PolicyEgress);
            assert_eq!(rig.sim.flows_len(), 0);
            passes(&mut rig, B, A, &udp_of(family, 1, 0, [1000, 53]));
            assert_eq!(flows(&rig)[0].packets, 1);
        }
    }
}

#[test]
fn a_flow_goes_on_while_other_pods_come_and_go_and_either_end_may_have_been_silent() {
    for family in [0, 1] {
        let mut rig = Rig::new(1, &Setting::open().with(0, mute()));
        passes(&mut rig, B, A, &udp_of(family, 1, 0, [1000, 53]));
        passes(&mut rig, A, B, &udp_of(family, 0, 1, [53, 1000]));
        for (attachment, a_speaks) in [(None, false), (Some(77), false), (None, true), (Some(78), true)] {
            let mut setting = Setting::open().with(0, mute());
            setting.attachments[2] = attachment.map(AttachmentId);
            rig.publish(&setting);
            if a_speaks {
                passes(&mut rig, A, B, &udp_of(family, 0, 1, [53, 1000]));
            } else {
                passes(&mut rig, B, A, &udp_of(family, 1, 0, [1000, 53]));
            }
            rig.wait(Duration::from_secs(2));
        }
        let flow = &flows(&rig)[0];
        assert_eq!((flow.packets, flow.reply_packets), (3, 3), "it is the flow that it was");
    }
}

#[test]
fn flows_of_a_pod_that_is_gone_end_within_a_sweep_though_nobody_speaks() {
    let mut rig = Rig::new(2, &Setting::open());
    connect(&mut rig);
    passes(&mut rig, A, C, &udp(0, 2, [1, 2]));
    let mut setting = Setting::open();
    setting.attachments[1] = None;
    rig.publish(&setting);
    rig.wait(Duration::from_secs(2));
    let left: Vec<_> = flows(&rig).into_iter().map(|flow| flow.key.dst).collect();
    assert_eq!(left, [pod_address(2)[0]]);
}

#[test]
fn without_tables_nothing_of_a_pod_passes_unless_it_is_wanted_so() {
    let closed = Setting { loaded: false, ..Setting::open() };
    let mut rig = Rig::new(1, &closed);
    is_dropped(&mut rig, A, &tcp(SYN, true), DropReason::UnknownPod);
    let from_node = Spec::new(node_address()[0], pod_address(0)[0], Transport::Udp { ports: [1, 2] });
    is_dropped(&mut rig, HOST, &from_node, DropReason::UnknownPod);
    let open = Setting { fail_open: true, ..closed };
    rig.publish(&open);
    passes(&mut rig, A, B, &tcp(SYN, true));
}

#[test]
fn a_pod_that_the_tables_do_not_know_is_closed_and_the_others_are_not() {
    let mut setting = Setting::open();
    setting.rules[1] = None;
    let mut rig = Rig::new(1, &setting);
    is_dropped(&mut rig, A, &tcp(SYN, true), DropReason::UnknownPod);
    is_dropped(&mut rig, B, &udp(1, 0, [1, 2]), DropReason::UnknownPod);
    passes(&mut rig, A, C, &udp(0, 2, [1, 2]));
    rig.publish(&Setting { fail_open: true, ..setting });
    passes(&mut rig, A, B, &tcp(SYN, true));
}

#[test]
fn a_pod_port_without_a_pod_is_closed_even_where_unknown_pods_are_open() {
    let mut setting = Setting { fail_open: true, ..Setting::open() };
    setting.attachments[0] = None;
    let mut rig = Rig::new(1, &setting);
    is_dropped(&mut rig, A, &udp(0, 1, [1, 2]), DropReason::Spoofed);
}

#[test]
fn a_source_that_is_not_the_pods_own_is_spoofed() {
    let mut rig = Rig::new(1, &Setting::open());
    let transport = Transport::Udp { ports: [1, 2] };
    let to = pod_address(1)[0];
    for src in
        [pod_address(2)[0], node_address()[0], gateway_address()[0], outside_address(1)[0], ip("127.0.0.1")]
    {
        is_dropped(&mut rig, A, &Spec::new(src, to, transport), DropReason::Spoofed);
    }
    for src in [pod_address(2)[1], gateway_address()[1], ip("fe80::1"), ip("::1"), ip("::")] {
        is_dropped(&mut rig, A, &Spec::new(src, pod_address(1)[1], transport), DropReason::Spoofed);
    }
}

#[test]
fn nobody_behind_the_uplink_or_the_node_speaks_for_a_pod_the_switch_or_the_other() {
    let mut rig = Rig::new(1, &Setting::open());
    let transport = Transport::Udp { ports: [1, 2] };
    for (port, src) in [
        (UPLINK, pod_address(0)[0]),
        (UPLINK, node_address()[0]),
        (UPLINK, gateway_address()[0]),
        (UPLINK, ip("224.0.0.1")),
        (HOST, pod_address(0)[0]),
        (HOST, gateway_address()[0]),
    ] {
        is_dropped(&mut rig, port, &Spec::new(src, pod_address(1)[0], transport), DropReason::Spoofed);
    }
}

#[test]
fn link_local_packets_do_not_leave_their_link() {
    let mut rig = Rig::new(1, &Setting::open());
    let transport = Transport::Udp { ports: [1, 2] };
    let to_link = Spec::new(pod_address(0)[1], ip("fe80::9"), transport);
    is_dropped(&mut rig, A, &to_link, DropReason::NoRoute);
    let of_link = Spec::new(ip("fe80::1"), ip("fe80::9"), transport);
    is_dropped(&mut rig, A, &of_link, DropReason::NoRoute);
}

#[test]
fn frames_for_others_and_of_another_vlan_are_not_taken() {
    let mut rig = Rig::new(1, &Setting::open());
    let right = addressed(A, &udp(0, 1, [1, 2]));
    let before = rig.counters(A);
    let wrong = [
        Spec { dst_mac: mac(B), ..right.clone() },
        Spec { vlan: Some(5), ..right.clone() },
        Spec { dst_mac: [0xff; 6], ..right },
    ];
    assert_eq!(rig.send_on(0, A, &wrong.map(|spec| spec.bytes())), []);
    let expected = ["multicast", "not-for-us", "vlan"].map(|reason| (reason.to_owned(), 1));
    assert_eq!(rig.drops_since(A, &before), BTreeMap::from(expected));
}

#[test]
fn a_pod_reaches_itself_through_the_switch_whatever_its_rules_say() {
    let nothing = PodRules { ingress: Some(Vec::new()), egress: Some(Vec::new()) };
    let mut rig = Rig::new(1, &Setting::open().with(0, nothing));
    passes(&mut rig, A, A, &udp(0, 0, [1000, 53]));
    passes(&mut rig, A, A, &udp(0, 0, [53, 1000]));
    assert_eq!(decisions(&rig, Verdict::Deny), BTreeMap::new());
    is_dropped(&mut rig, A, &udp(0, 0, [53, 53]), DropReason::Spoofed);
}

#[test]
fn the_pods_own_node_is_let_in_but_not_every_packet_behind_its_port_nor_the_way_back_out() {
    let nothing = PodRules { ingress: Some(Vec::new()), egress: Some(Vec::new()) };
    let mut rig = Rig::new(1, &Setting::open().with(0, nothing));
    let transport = Transport::Udp { ports: [1000, 53] };
    let (node, pod) = (node_address()[0], pod_address(0)[0]);
    passes(&mut rig, HOST, A, &Spec::new(node, pod, transport));
    passes(&mut rig, A, HOST, &Spec::new(pod, node, Transport::Udp { ports: [53, 1000] }));
    assert_eq!(flows(&rig)[0].ingress, Some(RuleOrigin::OwnNode));
    let container = Spec::new(ip("172.17.0.2"), pod, transport);
    is_dropped(&mut rig, HOST, &container, DropReason::PolicyIngress);
    is_dropped(
        &mut rig,
        A,
        &Spec::new(pod, node, Transport::Udp { ports: [9, 9] }),
        DropReason::PolicyEgress,
    );
}

#[test]
fn idle_flows_are_forgotten_and_their_replies_with_them() {
    let mut rig = Rig::new(2, &Setting::open().with(1, mute()));
    passes(&mut rig, A, B, &udp(0, 1, [1000, 53]));
    rig.wait(Duration::from_secs(30));
    passes(&mut rig, B, A, &udp(1, 0, [53, 1000]));
    assert_eq!(flows(&rig)[0].state, "udp-two-way");
    rig.wait(Duration::from_mins(2));
    passes(&mut rig, B, A, &udp(1, 0, [53, 1000]));
    rig.wait(Duration::from_secs(121));
    assert_eq!(rig.sim.flows_len(), 0);
    is_dropped(&mut rig, B, &udp(1, 0, [53, 1000]), DropReason::PolicyEgress);
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

#[test]
fn a_port_pair_used_again_is_evaluated_again_and_by_its_opener() {
    let mut rig = Rig::new(1, &Setting::open().with(1, mute()));
    connect(&mut rig);
    passes(&mut rig, A, B, &tcp(RST | ACK, true));
    let syn = |from: usize, to: usize, ports| {
        let transport =
            Transport::Tcp { ports, flags: SYN, sequence: 9000, acknowledgement: 0, window: 1000 };
        Spec { payload: Vec::new(), ..Spec::new(pod_address(from)[0], pod_address(to)[0], transport) }
    };
    is_dropped(&mut rig, B, &syn(1, 0, [SERVER, CLIENT]), DropReason::PolicyEgress);
    passes(&mut rig, A, B, &syn(0, 1, [CLIENT, SERVER]));
    let flow = &flows(&rig)[0];
    assert_eq!((flow.state.as_str(), flow.packets, flow.reply_packets), ("syn-sent", 1, 0));
}

#[test]
fn an_association_is_not_opened_by_the_side_that_may_only_answer() {
    let mut rig = Rig::new(1, &Setting::open().with(1, mute()));
    let sctp = |from: usize, to: usize, chunk| {
        let ports = if from == 0 { [CLIENT, 9] } else { [9, CLIENT] };
        Spec::new(pod_address(from)[0], pod_address(to)[0], Transport::Sctp { ports, chunk })
    };
    passes(&mut rig, A, B, &sctp(0, 1, INIT));
    passes(&mut rig, B, A, &sctp(1, 0, INIT_ACK));
    passes(&mut rig, B, A, &sctp(1, 0, COOKIE_ACK));
    assert_eq!(flows(&rig)[0].state, "sctp-established");
    is_dropped(&mut rig, B, &sctp(1, 0, INIT), DropReason::InvalidState);
    passes(&mut rig, A, B, &sctp(0, 1, SHUTDOWN_COMPLETE));
    is_dropped(&mut rig, B, &sctp(1, 0, INIT), DropReason::PolicyEgress);
    passes(&mut rig, A, B, &sctp(0, 1, INIT));
}

#[test]
fn the_switch_is_the_gateway_of_every_pod() {
    let mut rig = Rig::new(1, &Setting::open());
    let own = [10, 0, 0, 2];
    let before = rig.counters(A);
    for (target, is_answered) in [([10, 0, 0, 1], true), ([10, 0, 0, 99], true), (own, false)] {
        let request = arp(1, (mac(A), own), ([0; 6], target), [0xff; 6]);
        let reply = arp(2, (gateway_mac(), target), (mac(A), own), mac(A));
        let expected = if is_answered { vec![(A, reply)] } else { vec![] };
        assert_eq!(rig.send_on(0, A, &[request]), expected);
    }
    for family in [0, 1] {
        let echo = |request| Transport::Echo { request, identifier: 3 };
        let question = Spec::new(pod_address(0)[family], gateway_address()[family], echo(true));
        let frames = rig.send(A, &question);
        check(&frames[0].1).unwrap();
        let answer = Spec {
            src_mac: gateway_mac(),
            dst_mac: mac(A),
            ..Spec::new(question.dst, question.src, echo(false))
        };
        assert_eq!(frames, [(A, answer.bytes())]);
    }
    let after = rig.counters(A);
    assert_eq!((after.consumed - before.consumed, after.forwarded), (5, 0));
    assert_eq!(rig.drops_since(A, &before), BTreeMap::new());
    let spoofed = arp(1, (mac(A), [10, 0, 0, 3]), ([0; 6], [10, 0, 0, 1]), [0xff; 6]);
    assert_eq!(rig.send_on(0, A, &[spoofed]), []);
    assert_eq!(rig.drops_since(A, &before), BTreeMap::from([("spoofed".to_owned(), 1)]));
}

#[test]
fn a_way_that_is_not_known_is_asked_for_and_the_next_packet_goes_it() {
    let mut rig = Rig::new(1, &Setting::open());
    rig.sim.close_port(HOST).unwrap();
    let question = Spec::new(pod_address(0)[0], node_address()[0], Transport::Udp { ports: [1, 2] });
    is_dropped(&mut rig, A, &question, DropReason::PortDown);
    let port = rig.sim.open_port(PortKind::Host, Some(7), 1500).unwrap();
    assert_eq!(port.id, HOST, "numbers are used again");
    rig.ports[HOST.index()] = port;
    let mut desired = Setting::open().desired();
    desired.node.as_mut().unwrap().mac = None;
    rig.sim.publish(desired);
    rig.sim.step();
    // The router is resolved before the first packet for it.
    let request = arp(1, (gateway_mac(), [10, 0, 0, 1]), ([0; 6], [10, 0, 0, 254]), [0xff; 6]);
    let tagged = |frame: &[u8]| [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat();
    assert_eq!(rig.collect(), [(HOST, tagged(&request))]);
    let before = rig.counters(A);
    is_asked_once_in_a_while(&mut rig, &question);
    assert_eq!(rig.drops_since(A, &before), BTreeMap::from([("unresolved".to_owned(), 11)]));
    let reply = arp(2, (mac(HOST), [10, 0, 0, 254]), (gateway_mac(), [10, 0, 0, 1]), gateway_mac());
    assert_eq!(rig.send_on(0, HOST, &[tagged(&reply)]), []);
    let out = Spec { vlan: Some(7), ..addressed(A, &question) };
    let out = Spec { src_mac: gateway_mac(), dst_mac: mac(HOST), ttl: out.ttl - 1, ..out };
    assert_eq!(rig.send(A, &question), [(HOST, out.bytes())]);
}

fn is_asked_once_in_a_while(rig: &mut Rig, question: &Spec) {
    for _ in 0..10 {
        assert_eq!(rig.send(A, question), []);
    }
    rig.sim.now += Duration::from_millis(100);
    assert_eq!(rig.send(A, question).len(), 1);
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

#[test]
fn a_packet_that_says_its_way_is_dropped_by_name_and_its_fragments_decide_nothing_for_others() {
    let mut rig = Rig::new(1, &Setting::open());
    let with_options = |options: [u8; 8], fragment: [u8; 2]| {
        let mut frame = addressed(A, &udp(0, 1, [1, 2])).bytes();
        frame.splice(34..34, options);
        frame[14] = 0x47;
        let total = (frame.len() - 14) as u16;
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        frame[20..22].copy_from_slice(&fragment);
        frame[24..26].fill(0);
        let sum = palisade::net::checksum::Sum::default().add_bytes(&frame[14..42]).finish();
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    let before = rig.counters(A);
    for kind in [131, 137, 7, 68] {
        for fragment in [[0x40, 0], [0x20, 0], [0, 1]] {
            assert_eq!(rig.send_on(0, A, &[with_options([kind, 7, 4, 10, 0, 0, 9, 0], fragment)]), []);
        }
    }
    let expected = [("ip-option".to_owned(), 6), ("source-route".to_owned(), 6)];
    assert_eq!(rig.drops_since(A, &before), BTreeMap::from(expected));
    // IPv6: a routing header of type 0 and one of type 2.
    for (kind, outcome) in [(0, 0), (2, 1)] {
        let udp = udp_of(1, 0, 1, [1, 2]);
        let routing = [&[17, 0, kind, 0, 0, 0, 0, 0], &udp.ip()[40..]].concat();
        let ip = udp.raw(43, &routing);
        let frame = crate::frames::ethernet(mac(A), gateway_mac(), None, etherparse::EtherType::IPV6, &ip);
        assert_eq!(rig.send_on(0, A, &[frame]).len(), outcome);
    }
    assert_eq!(rig.counters(A).drops["source-route"], 7);
    // Router Alert (RFC 2113), which the switch ignores.
    assert_eq!(rig.send_on(0, A, &[with_options([148, 4, 0, 0, 1, 1, 1, 0], [0x40, 0])]).len(), 1);
}

#[test]
fn a_fragment_waits_for_the_first_of_its_datagram_and_then_is_dropped_by_name() {
    let mut rig = Rig::new(1, &Setting::open());
    let mut frame = addressed(A, &udp(0, 1, [1, 2])).bytes();
    // Sets fragment offset 8 and adjusts the checksum.
    (frame[20], frame[21]) = (0, 1);
    let word = u16::from_be_bytes([frame[24], frame[25]]);
    frame[24..26].copy_from_slice(&(word + 0x4000 - 1).to_be_bytes());
    let before = rig.counters(A);
    assert_eq!(rig.send_on(0, A, &[frame]), []);
    assert_eq!(rig.drops_since(A, &before), BTreeMap::new());
    rig.wait(Duration::from_mins(1));
    assert_eq!(rig.drops_since(A, &before), BTreeMap::from([("fragment-timeout".to_owned(), 1)]));
}

#[test]
fn a_next_hop_that_is_not_known_is_the_kernels_to_resolve_and_nothing_is_learned_from_frames() {
    let mut rig = Rig::new(1, &Setting::open());
    rig.know_router(false);
    let question =
        |port| Spec::new(pod_address(0)[0], outside_address(1)[0], Transport::Udp { ports: [port, 2] });
    // The router sends packets and ARP to the switch: neither resolves it.
    let hello = Transport::Echo { request: true, identifier: 1 };
    assert_eq!(rig.send(UPLINK, &Spec::new(outside_address(1)[0], gateway_address()[0], hello)).len(), 1);
    let request = arp(1, (mac(UPLINK), [192, 0, 2, 1]), ([0; 6], [10, 0, 0, 1]), [0xff; 6]);
    let tagged = [&request[..12], &[0x81, 0, 0, 7], &request[12..]].concat();
    assert_eq!(rig.send_on(0, UPLINK, &[tagged]), [], "the kernel answers ARP there");
    let before = rig.counters(A);
    for port in 1..=3 {
        assert_eq!(rig.send(A, &question(port)), []);
    }
    assert_eq!(rig.drops_since(A, &before), BTreeMap::from([("unresolved".to_owned(), 3)]));
    let router = (UPLINK, router_address()[0]);
    assert_eq!(rig.sim.solicitations(), [router], "once in a while");
    rig.sim.now += Duration::from_millis(100);
    rig.send(A, &question(1));
    assert_eq!(rig.sim.solicitations(), [router]);
    rig.know_router(true);
    passes(&mut rig, A, UPLINK, &question(1));
}

#[test]
fn each_neighbour_on_the_uplinks_own_link_has_its_own_address() {
    let mut rig = Rig::new(1, &Setting::open());
    let to = |last: u8| {
        Spec::new(pod_address(0)[0], [192, 0, 2, last].into(), Transport::Udp { ports: [1, last.into()] })
    };
    let neighbor = |last: u8| palisade::net::mac::Mac([2, 0, 0, 0, 0xcc, last]);
    for last in [5, 6] {
        assert_eq!(rig.send(A, &to(last)), []);
        rig.sim.resolve(UPLINK, [192, 0, 2, last].into(), Some(neighbor(last)));
    }
    let asked: Vec<_> = [5, 6].map(|last| (UPLINK, IpAddr::from([192, 0, 2, last]))).into();
    let mut solicitations = rig.sim.solicitations();
    solicitations.sort();
    assert_eq!(solicitations, asked, "a second neighbour does not wait for the first");
    for last in [5, 6] {
        let [(UPLINK, frame)] = &rig.send(A, &to(last))[..] else {
            panic!("it does not leave by the uplink")
        };
        assert_eq!((&frame[..6], &frame[6..12]), (&neighbor(last).0[..], &switch_mac(UPLINK)[..]));
    }
}

#[test]
fn an_uplink_serves_its_own_ethernet_address_and_the_other_ports_theirs() {
    let mut rig = Rig::new(1, &Setting::open());
    let from_outside = Spec::new(outside_address(1)[0], pod_address(0)[0], Transport::Udp { ports: [1, 2] });
    passes(&mut rig, UPLINK, A, &from_outside);
    for (port, spec, wrong) in
        [(UPLINK, from_outside, gateway_mac()), (A, udp(0, 1, [1, 2]), switch_mac(UPLINK))]
    {
        let before = rig.counters(port);
        let frame = Spec { dst_mac: wrong, ..addressed(port, &spec) }.bytes();
        assert_eq!(rig.send_on(0, port, &[frame]), []);
        assert_eq!(rig.drops_since(port, &before), BTreeMap::from([("not-for-us".to_owned(), 1)]));
    }
}

#[test]
fn what_is_for_an_address_among_the_pods_that_no_pod_has_goes_nowhere() {
    let mut setting = Setting::open();
    setting.attachments[2] = None;
    let mut rig = Rig::new(1, &setting);
    let transport = Transport::Udp { ports: [1, 2] };
    for family in [0, 1] {
        let nobody = pod_address(2)[family];
        is_dropped(&mut rig, A, &Spec::new(pod_address(0)[family], nobody, transport), DropReason::NoRoute);
        let from_outside = Spec::new(outside_address(1)[family], nobody, transport);
        is_dropped(&mut rig, UPLINK, &from_outside, DropReason::NoRoute);
        // Packets from outside with its address are dropped, too.
        let as_nobody = Spec::new(nobody, pod_address(0)[family], transport);
        is_dropped(&mut rig, UPLINK, &as_nobody, DropReason::Spoofed);
    }
}

#[test]
fn the_switch_is_no_router_between_what_is_behind_the_uplink() {
    let mut rig = Rig::new(1, &Setting::open());
    let through = Spec::new(outside_address(1)[0], outside_address(2)[0], Transport::Udp { ports: [1, 2] });
    is_dropped(&mut rig, UPLINK, &through, DropReason::NoRoute);
}
