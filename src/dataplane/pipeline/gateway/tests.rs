use std::collections::BTreeMap;

use etherparse::{EtherType, IpNumber, Ipv4Header};

use super::super::parse;
use super::*;
use crate::dataplane::fib::port::PortView;
use crate::dataplane::frames::{self, Spec, Transport};
use crate::dataplane::{Bandwidth, DesiredState, Gateway, NodeAttachment, PodAttachment, PortKind, packet};
use crate::ids::{AttachmentId, Generation, PortId};
use crate::net::address;
use crate::tables::PodName;

const POD: PortId = PortId(0);
const HOST: PortId = PortId(1);
const POD_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const POD_V4: [u8; 4] = [10, 0, 0, 2];
const GATEWAY_V4: [u8; 4] = [10, 0, 0, 1];
const NOBODY: [u8; 4] = [0; 4];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A snapshot with a pod (10.0.0.2, `fd00::2`) behind port 0, and other stations behind port 1.
fn snapshot(gateway: &[&str]) -> Snapshot {
    snapshot_with_node(gateway, &[])
}

/// The same, with these addresses of the node behind port 1.
fn snapshot_with_node(gateway: &[&str], node: &[&str]) -> Snapshot {
    let pod = PodAttachment {
        id: AttachmentId(1),
        pod: PodName::new("default", "pod"),
        port: POD,
        addresses: vec![ip("10.0.0.2"), ip("fd00::2")],
        mac: None,
        bandwidth: Bandwidth::default(),
    };
    let addresses = |texts: &[&str]| texts.iter().map(|text| ip(text)).collect::<Vec<_>>();
    let node = NodeAttachment { port: HOST, addresses: addresses(node), mac: None };
    let gateway = Gateway { addresses: addresses(gateway), ..Gateway::default() };
    let node = Some(node).filter(|node| !node.addresses.is_empty());
    let desired = DesiredState { gateway, node, pods: vec![pod], ..DesiredState::default() };
    let open_port = |kind| PortView::new(kind, None, 1500, None);
    let open = BTreeMap::from([(POD, open_port(PortKind::Pod)), (HOST, open_port(PortKind::Host))]);
    Snapshot::new(&desired, Generation(1), &open, 1)
}

fn whole_snapshot() -> Snapshot {
    snapshot(&["10.0.0.1", "fd00::1"])
}

/// A received frame, and the answer of the switch.
struct Bench {
    umem: Umem,
    frame: Frame,
    packet: Packet,
    snapshot: Snapshot,
}

impl Bench {
    fn new(bytes: &[u8], snapshot: Snapshot) -> Bench {
        let (umem, mut frames) = Umem::in_memory(1);
        let mut frame = frames.pop().unwrap();
        umem.write(&mut frame, bytes).unwrap();
        let mut packet = Packet::default();
        assert_eq!(parse::parse_frame(bytes, bytes.len(), &mut packet), None);
        Bench { umem, frame, packet, snapshot }
    }

    fn arp(&mut self, port: PortId) -> Option<bool> {
        let port = self.snapshot.port(port).unwrap();
        arp(self.umem.data_mut(&mut self.frame), &self.packet, port, &self.snapshot)
    }

    fn link_local(&mut self, port: PortId) -> Option<bool> {
        let port = self.snapshot.port(port).unwrap();
        link_local(&self.umem, &mut self.frame, &self.packet, port, &self.snapshot)
    }

    fn echo(&mut self) -> bool {
        echo(self.umem.data_mut(&mut self.frame), &self.packet)
    }

    fn icmp_error(&mut self, what: IcmpError) -> bool {
        icmp_error(&self.umem, &mut self.frame, &self.packet, (&self.snapshot, PortId(0)), what)
    }

    fn bytes(&self) -> &[u8] {
        self.umem.data(&self.frame)
    }
}

fn arp_request(sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    frames::arp(1, (POD_MAC, sender), ([0; 6], target), [0xff; 6])
}

#[test]
fn arp_for_the_gateway_and_for_any_other_address_is_answered() {
    for target in [GATEWAY_V4, [10, 0, 0, 3], [192, 0, 2, 1], [169, 254, 1, 1]] {
        let mut bench = Bench::new(&arp_request(POD_V4, target), whole_snapshot());
        assert_eq!(bench.arp(POD), Some(true));
        let gateway = bench.snapshot.mac.0;
        assert_eq!(bench.bytes(), frames::arp(2, (gateway, target), (POD_MAC, POD_V4), POD_MAC));
    }
}

#[test]
fn arp_for_the_own_address_probes_replies_and_groups_are_consumed_and_not_answered() {
    let announcement = arp_request(POD_V4, POD_V4);
    let probe_of_own = arp_request(NOBODY, POD_V4);
    let probe = arp_request(NOBODY, [10, 0, 0, 7]);
    let broadcast = arp_request(POD_V4, [255; 4]);
    let reply = frames::arp(2, (POD_MAC, POD_V4), ([2; 6], GATEWAY_V4), [2; 6]);
    for frame in [announcement, probe_of_own, probe, broadcast, reply] {
        let mut bench = Bench::new(&frame, whole_snapshot());
        assert_eq!(bench.arp(POD), Some(false), "{}", crate::dataplane::frames::describe(&frame));
        assert_eq!(bench.bytes(), frame);
    }
}

#[test]
fn arp_in_the_name_of_an_address_that_is_not_the_pods_own_is_refused() {
    for operation in [1, 2] {
        let frame = frames::arp(operation, (POD_MAC, [10, 0, 0, 3]), ([0; 6], GATEWAY_V4), [0xff; 6]);
        assert_eq!(Bench::new(&frame, whole_snapshot()).arp(POD), None);
        assert!(
            Bench::new(&frame, whole_snapshot()).arp(HOST).is_some(),
            "others than pods may have any address"
        );
    }
}

#[test]
fn arp_that_is_short_or_of_another_kind_is_no_question() {
    let frame = arp_request(POD_V4, GATEWAY_V4);
    for len in 14..frame.len() {
        assert_eq!(Bench::new(&frame[..len], whole_snapshot()).arp(POD), Some(false));
    }
    let mut other = frame;
    other[15] = 6;
    assert_eq!(Bench::new(&other, whole_snapshot()).arp(POD), Some(false));
}

fn solicitation(src: &str, target: &str) -> Spec {
    let IpAddr::V6(target) = ip(target) else { panic!("not IPv6") };
    let mut payload = target.octets().to_vec();
    payload.extend([1, 1]);
    payload.extend(POD_MAC);
    let message = Transport::Icmp { kind: 135, code: 0, rest: [0; 4] };
    let group = icmp::solicited_node(target);
    let dst_mac = ethernet::ipv6_multicast(group).0;
    Spec { src_mac: POD_MAC, dst_mac, ttl: 255, payload, ..Spec::new(ip(src), group.into(), message) }
}

#[test]
fn solicitations_for_the_gateway_and_for_any_other_address_are_answered() {
    let of_the_link = icmp::link_local(Gateway::default().mac).to_string();
    for target in ["fd00::1", "fd00::3", "2001:db8::1", &of_the_link] {
        for (src, vlan) in [("fd00::2", None), ("fe80::2", Some(5))] {
            let spec = Spec { vlan, ..solicitation(src, target) };
            let mut bench = Bench::new(&spec.bytes(), whole_snapshot());
            assert_eq!(bench.link_local(POD), Some(true), "{target}");
            frames::check(bench.bytes()).unwrap();
            let gateway = bench.snapshot.mac.0;
            let mut payload = spec.payload[..16].to_vec();
            payload.extend([2, 1]);
            payload.extend(gateway);
            let message = Transport::Icmp { kind: 136, code: 0, rest: [0xe0, 0, 0, 0] };
            let answer = Spec {
                src_mac: gateway,
                dst_mac: POD_MAC,
                vlan,
                ttl: 255,
                payload,
                ..Spec::new(ip(target), ip(src), message)
            };
            assert_eq!(bench.bytes(), answer.bytes());
        }
    }
}

#[test]
fn solicitations_for_the_own_address_probes_groups_and_other_hosts_of_the_link_are_not_answered() {
    let forwarded = Spec { ttl: 254, ..solicitation("fd00::2", "fd00::1") };
    let advertisement = Spec {
        transport: Transport::Icmp { kind: 136, code: 0, rest: [0; 4] },
        ..solicitation("fd00::2", "fd00::2")
    };
    let specs = [
        solicitation("fd00::2", "fd00::2"),
        solicitation("::", "fd00::2"),
        solicitation("::", "fd00::1"),
        solicitation("fd00::2", "fe80::7"),
        solicitation("fd00::2", "ff02::1"),
        forwarded,
        advertisement,
    ];
    for spec in specs {
        let frame = spec.bytes();
        let mut bench = Bench::new(&frame, whole_snapshot());
        assert_eq!(bench.link_local(POD), Some(false), "{spec:?}");
        assert_eq!(bench.bytes(), frame);
    }
}

#[test]
fn solicitations_from_an_address_that_is_not_the_pods_own_are_refused() {
    let frame = solicitation("fd00::3", "fd00::1").bytes();
    assert_eq!(Bench::new(&frame, whole_snapshot()).link_local(POD), None);
    assert_eq!(Bench::new(&frame, whole_snapshot()).link_local(HOST), Some(true));
}

#[test]
fn solicitations_cut_short_or_with_senseless_options_are_not_answered() {
    let spec = solicitation("fd00::2", "fd00::1");
    let message = spec.ip()[40..].to_vec();
    let with = |message: &[u8]| {
        let ip = spec.raw(58, message);
        let frame = frames::ethernet(POD_MAC, spec.dst_mac, None, EtherType::IPV6, &ip);
        Bench::new(&frame, whole_snapshot()).link_local(POD)
    };
    assert_eq!(with(&message), Some(true));
    assert_eq!(with(&message[..24]), Some(true), "the option is not needed");
    for len in 8..24 {
        assert_eq!(with(&message[..len]), Some(false));
    }
    for length in [0, 2, 255] {
        let mut senseless = message.clone();
        senseless[25] = length;
        assert_eq!(with(&senseless), Some(false), "an option of {length}");
    }
}

#[test]
fn echoes_are_answered_with_what_they_carry() {
    for (src, dst) in [("10.0.0.2", "10.0.0.1"), ("fd00::2", "fd00::1")] {
        for payload_bytes in [0, 1, 56, 1001] {
            let payload: Vec<u8> = (0..payload_bytes).map(|i| i as u8).collect();
            let request = Spec {
                src_mac: POD_MAC,
                dst_mac: Gateway::default().mac.0,
                payload,
                ..Spec::new(ip(src), ip(dst), Transport::Echo { request: true, identifier: 77 })
            };
            let mut bench = Bench::new(&request.bytes(), whole_snapshot());
            assert!(bench.echo());
            frames::check(bench.bytes()).unwrap();
            let answer = Spec {
                src_mac: bench.snapshot.mac.0,
                dst_mac: POD_MAC,
                src: request.dst,
                dst: request.src,
                transport: Transport::Echo { request: false, identifier: 77 },
                ..request
            };
            let is = Bench::new(bench.bytes(), whole_snapshot()).packet;
            let should = Bench::new(&answer.bytes(), whole_snapshot()).packet;
            assert_eq!(
                (is.src, is.dst, is.src_port, is.flags),
                (should.src, should.dst, should.src_port, should.flags)
            );
            assert_eq!((is.src_mac(), is.dst_mac(), is.ttl), (should.src_mac(), should.dst_mac(), 64));
            assert_eq!(bench.bytes()[usize::from(is.l4)..], answer.bytes()[usize::from(is.l4)..]);
        }
    }
}

#[test]
fn nothing_but_an_echo_request_without_ip_options_is_answered() {
    for transport in [
        Transport::Echo { request: false, identifier: 1 },
        Transport::Icmp { kind: 13, code: 0, rest: [0; 4] },
        Transport::Udp { ports: [8, 8] },
        Transport::Other(8),
    ] {
        let spec = Spec::new(ip("10.0.0.2"), ip("10.0.0.1"), transport);
        assert!(!Bench::new(&spec.bytes(), whole_snapshot()).echo(), "{transport:?}");
    }
    let mut header = Ipv4Header::new(12, 64, IpNumber::ICMP, POD_V4, GATEWAY_V4).unwrap();
    header.options = [1, 1, 1, 0].into();
    header.header_checksum = header.calc_header_checksum();
    let echo =
        Spec::new(ip("10.0.0.2"), ip("10.0.0.1"), Transport::Echo { request: true, identifier: 1 }).ip();
    let ip = [header.to_bytes().to_vec(), echo[20..32].to_vec()].concat();
    let frame = frames::ethernet(POD_MAC, [2; 6], None, EtherType::IPV4, &ip);
    assert!(!Bench::new(&frame, whole_snapshot()).echo());
}

/// Checks an error about `spec`, and returns its quote.
fn check_problem(spec: &Spec, what: IcmpError, kind: u8, code: u8, rest: [u8; 4]) -> Vec<u8> {
    let mut bench = Bench::new(&spec.bytes(), whole_snapshot());
    assert!(bench.icmp_error(what), "{spec:?}");
    frames::check(bench.bytes()).unwrap();
    let gateway = ip(if spec.src.is_ipv4() { "10.0.0.1" } else { "fd00::1" });
    let is = Bench::new(bench.bytes(), whole_snapshot()).packet;
    assert_eq!((is.src_mac(), is.dst_mac()), (bench.snapshot.mac, Mac(spec.src_mac)));
    assert_eq!((unpack(is.src), unpack(is.dst), is.ttl), (gateway, spec.src, 64));
    assert_eq!((is.kind, is.vlan), (packet::Kind::IcmpError, spec.vlan.unwrap_or(0)));
    let message = &bench.bytes()[usize::from(is.l4)..];
    assert_eq!((message[0], message[1], &message[4..8]), (kind, code, &rest[..]));
    message[8..].to_vec()
}

#[test]
fn errors_quote_the_packet_that_they_are_about_as_far_as_they_may() {
    let too_big = IcmpError::TooBig(1400);
    let cases = [
        ("10.0.0.2", "10.0.0.3", IcmpError::TimeExceeded, 11, 0, [0; 4], 548),
        ("10.0.0.2", "10.0.0.3", too_big, 3, 4, [0, 0, 5, 120], 548),
        ("fd00::2", "fd00::3", IcmpError::TimeExceeded, 3, 0, [0; 4], 1232),
        ("fd00::2", "fd00::3", too_big, 2, 0, [0, 0, 5, 120], 1232),
        ("10.0.0.2", "10.0.0.3", IcmpError::Prohibited, 3, 13, [0; 4], 548),
        ("fd00::2", "fd00::3", IcmpError::Prohibited, 1, 1, [0; 4], 1232),
    ];
    for (src, dst, what, kind, code, rest, quote_bytes_max) in cases {
        for (payload_bytes, vlan) in [(0, None), (11, Some(5)), (1452, None), (3000, Some(4094))] {
            let transport = Transport::Udp { ports: [1, 2] };
            let payload = vec![0x5a; payload_bytes];
            let dst_mac = Gateway::default().mac.0;
            let spec =
                Spec { src_mac: POD_MAC, dst_mac, vlan, payload, ..Spec::new(ip(src), ip(dst), transport) };
            let quote = check_problem(&spec, what, kind, code, rest);
            let packet = spec.ip();
            assert_eq!(quote, packet[..packet.len().min(quote_bytes_max)]);
        }
    }
}

#[test]
fn errors_are_never_reported_about_errors() {
    let transport = Transport::Icmp { kind: 3, code: 1, rest: [0; 4] };
    let error = Spec::new(ip("10.0.0.2"), ip("10.0.0.3"), transport).bytes();
    assert!(!Bench::new(&error, whole_snapshot()).icmp_error(IcmpError::TimeExceeded));
}

#[test]
fn errors_come_from_an_address_that_leaves_its_link_where_there_is_one() {
    let link_local = crate::net::icmp::link_local(Gateway::default().mac).to_string();
    let default: &[&str] = &["169.254.1.1", "fe80::1"];
    for (gateway, node, expected) in [
        // "192.0.0.8" (RFC 7600, section 4.8).
        (&[][..], &[][..], ["192.0.0.8", &link_local]),
        (default, &[], ["192.0.0.8", &link_local]),
        (default, &["192.0.2.7", "2001:db8::7"], ["192.0.2.7", "2001:db8::7"]),
        (&["10.0.0.1", "fe80::1"], &["192.0.2.7", "2001:db8::7"], ["10.0.0.1", "2001:db8::7"]),
    ] {
        for ((src, dst), expected) in
            [("10.0.0.2", "10.0.0.3"), ("fd00::2", "fd00::3")].into_iter().zip(expected)
        {
            let packet = Spec::new(ip(src), ip(dst), Transport::Other(47)).bytes();
            let mut bench = Bench::new(&packet, snapshot_with_node(gateway, node));
            assert!(bench.icmp_error(IcmpError::TimeExceeded));
            frames::check(bench.bytes()).unwrap();
            let source = unpack(Bench::new(bench.bytes(), whole_snapshot()).packet.src);
            assert_eq!(source, ip(expected), "{gateway:?} {node:?}");
        }
    }
}

#[test]
fn neighbor_requests_are_arp_and_solicitations() {
    let snapshot = whole_snapshot();
    let mac = snapshot.mac.0;
    for vlan in [0, 5] {
        let mut bench = Bench::new(&arp_request(POD_V4, GATEWAY_V4), whole_snapshot());
        assert!(write_solicitation(
            &bench.umem,
            &mut bench.frame,
            address::pack(ip("10.0.0.2")),
            vlan,
            &snapshot
        ));
        let request = frames::arp(1, (mac, GATEWAY_V4), ([0; 6], POD_V4), [0xff; 6]);
        let tag = if vlan == 0 { &[][..] } else { &[0x81, 0, 0, 5][..] };
        assert_eq!(bench.bytes(), [&request[..12], tag, &request[12..]].concat());

        assert!(write_solicitation(
            &bench.umem,
            &mut bench.frame,
            address::pack(ip("fd00::2")),
            vlan,
            &snapshot
        ));
        frames::check(bench.bytes()).unwrap();
        let mut request = solicitation(&icmp::link_local(Mac(mac)).to_string(), "fd00::2");
        request.payload.truncate(18);
        request.payload.extend(mac);
        let request = Spec { src_mac: mac, vlan: (vlan != 0).then_some(vlan), ..request };
        assert_eq!(bench.bytes(), request.bytes());
    }
}

#[test]
fn a_reset_answers_a_segment_as_its_closed_port_would() {
    use crate::net::tcp::Flags;
    let cases = [
        // Control bits and payload of the segment, and the sequence, acknowledgement and control bits of the answer.
        (Flags::SYN, 0, (0, 8, Flags::RST | Flags::ACK)),
        (Flags::PSH, 100, (0, 107, Flags::RST | Flags::ACK)),
        (Flags::SYN | Flags::ACK, 0, (90, 0, Flags::RST)),
        (Flags::ACK | Flags::FIN, 1400, (90, 0, Flags::RST)),
    ];
    for (src, dst) in [("10.0.0.2", "10.0.0.3"), ("fd00::2", "fd00::3")] {
        for (flags, payload_bytes, expected) in cases {
            for vlan in [None, Some(5)] {
                let transport =
                    Transport::Tcp { ports: [1000, 80], flags, sequence: 7, acknowledgement: 90, window: 9 };
                let (dst_mac, payload) = (Gateway::default().mac.0, vec![0x5a; payload_bytes]);
                let spec = Spec {
                    src_mac: POD_MAC,
                    dst_mac,
                    vlan,
                    payload,
                    ..Spec::new(ip(src), ip(dst), transport)
                };
                let mut bench = Bench::new(&spec.bytes(), whole_snapshot());
                assert!(reject::reset(&bench.umem, &mut bench.frame, &bench.packet));
                frames::check(bench.bytes()).unwrap();
                let is = Bench::new(bench.bytes(), whole_snapshot()).packet;
                assert_eq!((is.src_mac(), is.dst_mac()), (bench.snapshot.mac, Mac(POD_MAC)));
                assert_eq!((unpack(is.src), unpack(is.dst), is.vlan), (ip(dst), ip(src), vlan.unwrap_or(0)));
                assert_eq!((is.src_port, is.dst_port), (80, 1000));
                assert_eq!((is.sequence, is.acknowledgement, is.flags), expected, "{spec:?}");
                assert_eq!(is.ip_bytes(), if is_v4(is.src) { 40 } else { 60 });
            }
        }
    }
}
