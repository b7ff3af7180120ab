//! Tap ports: whole segments between them, segmentation towards other ports, coalescing from these.

use std::time::Duration;

use palisade::dataplane::{Bandwidth, Bits, ConntrackSettings, Settings};
use palisade::ids::PortId;
use palisade::net::virtio_net::{GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VirtioNet};
use proptest::prelude::*;

use crate::frames::{self, Spec, Transport};
use crate::random::{Random, histories};
use crate::rig::{MTU, PODS, Rig, SMALL_MTU, Setting, UPLINK, addressed, outside_address, pod_address};

const A: PortId = PortId(0);
const B: PortId = PortId(1);
const SMALL: PortId = PortId(2);

const ACK: u8 = 16;
const PSH: u8 = 8;

/// Switch with pods A and B on tap ports.
fn rig() -> Rig {
    rig_with(&[A, B], &[A, B, UPLINK])
}

/// Switch with tap ports, and with `receivers` that have frames to receive much into.
fn rig_with(taps: &[PortId], receivers: &[PortId]) -> Rig {
    let settings = Settings {
        cores: vec![0],
        frames_per_worker: 8192,
        huge_pages: false,
        conntrack: ConntrackSettings { flows_max: 1024, tcp_pickup: true, ..ConntrackSettings::default() },
        ..Settings::default()
    };
    let mut rig = Rig::open_with_taps(&settings, &Setting::open(), MTU, [1; PODS], taps);
    // Ports get more frames to receive into once they have received many.
    for port in receivers.iter().copied() {
        (0..40).for_each(|_| drop(rig.send_on(0, port, &vec![vec![0; 60]; 32])));
    }
    rig
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

fn tcp(v6: usize, to: PortId, sequence: u32, flags: u8, payload: &[u8]) -> Spec {
    let transport = Transport::Tcp { ports: [1000, 80], flags, sequence, acknowledgement: 9, window: 500 };
    let dst = if to == UPLINK { outside_address(1) } else { pod_address(to.index()) };
    Spec { payload: payload.to_vec(), ..Spec::new(pod_address(0)[v6], dst[v6], transport) }
}

fn udp(v6: usize, to: PortId, payload: &[u8]) -> Spec {
    Spec { transport: Transport::Udp { ports: [1000, 53] }, ..tcp(v6, to, 0, 0, payload) }
}

fn header(spec: &Spec, gso_size: u16) -> VirtioNet {
    let (gso_type, csum_offset) = match (spec.transport, spec.src.is_ipv4()) {
        (Transport::Tcp { .. }, true) => (GSO_TCPV4, 16),
        (Transport::Tcp { .. }, false) => (GSO_TCPV6, 16),
        _ => (GSO_UDP_L4, 6),
    };
    let csum_start = if spec.src.is_ipv4() { 34 } else { 54 };
    let hdr_len = csum_start + if csum_offset == 16 { 20 } else { 8 };
    VirtioNet { flags: NEEDS_CSUM, gso_type, hdr_len, gso_size, csum_start, csum_offset }
}

/// Frame of a pod whose network stack leaves the checksum to its interface.
fn unfinished(port: PortId, spec: &Spec) -> Vec<u8> {
    let mut frame = addressed(port, spec).bytes();
    frames::unfinish(&mut frame);
    frame
}

fn inject(rig: &Rig, port: PortId, header: VirtioNet, frame: &[u8]) {
    assert!(rig.ports[port.index()].peers[0].inject_with_header(header, frame));
}

fn step(rig: &mut Rig) {
    rig.sim.step();
    rig.check();
}

fn collected(rig: &Rig, port: PortId) -> Vec<(VirtioNet, Vec<u8>)> {
    rig.ports[port.index()].peers[0].collect_with_headers()
}

#[test]
fn the_bandwidth_of_a_pod_counts_the_headers_of_each_segment() {
    let mut rig = rig();
    let spec = udp(0, UPLINK, &bytes(100));
    let frame = unfinished(A, &spec);
    let mut setting = Setting::open();
    // A hundred segments of a byte are as many frames of 43 bytes.
    setting.bandwidths[0] = Bandwidth {
        egress_rate: Some(Bits(8 * 43 * 100)),
        egress_burst: Some(Bits(0)),
        ..Bandwidth::default()
    };
    rig.publish(&setting);
    rig.know_router(true);
    let mut passed = || {
        rig.sim.now += Duration::from_millis(500);
        inject(&rig, A, header(&spec, 1), &frame);
        step(&mut rig);
        collected(&rig, UPLINK).len()
    };
    let counts: Vec<usize> = (0..7).map(|_| passed()).collect();
    assert_eq!(counts, [100, 0, 100, 0, 100, 0, 100]);
}

#[test]
fn a_packet_with_segments_crosses_from_tap_to_tap_as_it_is() {
    let mut rig = rig();
    for v6 in [0, 1] {
        for (spec, gso_size) in
            [(tcp(v6, B, 1, ACK | PSH, &bytes(60_000)), 1400), (udp(v6, B, &bytes(9000)), 1000)]
        {
            let before = rig.counters(A);
            inject(&rig, A, header(&spec, gso_size), &unfinished(A, &spec));
            step(&mut rig);
            let out = collected(&rig, B);
            assert_eq!(out.len(), 1);
            assert_eq!(out[0].0, header(&spec, gso_size));
            let forwarded = Spec { ttl: 63, ..spec.clone() };
            assert!(out[0].1[14..] == unfinished(A, &forwarded)[14..]);
            let after = rig.counters(A);
            assert_eq!(after.forwarded, before.forwarded + 1);
            assert_eq!(after.received_bytes - before.received_bytes, unfinished(A, &spec).len() as u64);
        }
    }
}

#[test]
fn an_unfinished_checksum_stays_unfinished_on_the_way_to_a_tap() {
    let mut rig = rig();
    let spec = udp(0, B, b"small");
    let header = VirtioNet { gso_type: 0, gso_size: 0, hdr_len: 0, ..header(&spec, 0) };
    inject(&rig, A, header, &unfinished(A, &spec));
    step(&mut rig);
    let out = collected(&rig, B);
    assert_eq!((out.len(), out[0].0), (1, header));
    // Towards another port it is finished.
    let spec = udp(0, SMALL, b"small");
    inject(&rig, A, header, &unfinished(A, &spec));
    step(&mut rig);
    frames::check(&collected(&rig, SMALL)[0].1).unwrap();
}

#[test]
fn segments_are_cut_for_other_ports_and_have_the_mtu_of_the_way() {
    let mut rig = rig();
    for v6 in [0, 1] {
        for spec in [tcp(v6, UPLINK, 1, ACK | PSH, &bytes(40_000)), udp(v6, UPLINK, &bytes(40_000))] {
            inject(&rig, A, header(&spec, 1400), &unfinished(A, &spec));
            step(&mut rig);
            let out = collected(&rig, UPLINK);
            assert_eq!(out.len(), 29);
            let mut payload = Vec::new();
            for (_, segment) in &out {
                frames::check(segment).unwrap();
                assert!(segment.len() <= usize::from(MTU) + 18, "{} bytes", segment.len());
                payload.extend_from_slice(
                    &segment[segment.len() - if payload.len() < 39_200 { 1400 } else { 800 }..],
                );
            }
            assert!(payload == spec.payload);
        }
    }
    // The transmitted frames are those of the wire, the received one is one.
    assert_eq!(rig.counters(UPLINK).transmitted, 4 * 29);
    let before = rig.counters(A);
    let spec = tcp(0, SMALL, 1, ACK, &bytes(4000));
    inject(&rig, A, header(&spec, 1400), &unfinished(A, &spec));
    step(&mut rig);
    assert_eq!(rig.drops_since(A, &before), [("too-big".to_owned(), 1)].into());
    let error = collected(&rig, A);
    assert_eq!((error.len(), error[0].0), (1, VirtioNet::default()), "an ICMP error has no segments");
    inject(&rig, A, header(&spec, SMALL_MTU - 40), &unfinished(A, &spec));
    step(&mut rig);
    assert_eq!(collected(&rig, SMALL).len(), 8);
}

#[test]
fn segments_that_a_router_may_fragment_get_the_mtu_of_the_next_link() {
    let mut rig = rig();
    let sent = |dont_fragment: bool| {
        let spec = tcp(0, SMALL, 1, ACK | PSH, &bytes(6000));
        let mut frame = unfinished(A, &spec);
        if !dont_fragment {
            frame[20] &= !0x40;
            let checksum = frames::checksum::ones_sum(&[&frame[14..24], &[0; 2], &frame[26..34]].concat());
            frame[24..26].copy_from_slice(&(!checksum).to_be_bytes());
        }
        (spec, frame)
    };
    for dont_fragment in [false, true] {
        let (spec, frame) = sent(dont_fragment);
        let before = rig.counters(A);
        inject(&rig, A, header(&spec, 1400), &frame);
        step(&mut rig);
        let out = collected(&rig, SMALL);
        if dont_fragment {
            assert_eq!(rig.drops_since(A, &before), [("too-big".to_owned(), 1)].into());
            continue;
        }
        let mut payload = Vec::new();
        for (_, segment) in &out {
            frames::check(segment).unwrap();
            assert!(segment.len() <= usize::from(SMALL_MTU) + 14, "{} bytes", segment.len());
            payload.extend_from_slice(&segment[14 + 40..]);
        }
        assert!(out.len() > 6 && payload == spec.payload, "{} segments", out.len());
    }
}

#[test]
fn a_header_that_contradicts_its_packet_is_malformed() {
    let mut rig = rig();
    let spec = tcp(0, B, 1, ACK, &bytes(3000));
    let right = header(&spec, 1000);
    for wrong in [
        VirtioNet { gso_size: 0, ..right },
        VirtioNet { gso_size: 20, ..right },
        VirtioNet { gso_type: GSO_TCPV6, ..right },
        VirtioNet { gso_type: 3, ..right },
        VirtioNet { flags: 0, ..right },
        VirtioNet { csum_start: 3000, csum_offset: 100, ..right },
        VirtioNet { gso_type: 0, csum_start: 30, ..right },
    ] {
        let before = rig.counters(A);
        inject(&rig, A, wrong, &unfinished(A, &spec));
        step(&mut rig);
        assert_eq!(rig.drops_since(A, &before), [("malformed".to_owned(), 1)].into(), "{wrong:?}");
        assert!(collected(&rig, B).is_empty());
    }
}

/// Packets that arrive on a port in one batch leave by the tap port of pod B as these: payload, and segment size.
fn arrived(rig: &mut Rig, port: PortId, specs: &[Spec]) -> Vec<(Vec<u8>, u16)> {
    for spec in specs {
        assert!(rig.ports[port.index()].peers[0].inject(&addressed(port, spec).bytes()));
    }
    step(rig);
    let whole = |(header, packet): (VirtioNet, Vec<u8>)| {
        let l4 = if packet[12] == 8 { 34 } else { 54 };
        let payload = packet[l4 + 20..].to_vec();
        let mut finished = packet;
        if header.needs_checksum() {
            assert_eq!((header.csum_start, header.csum_offset), (l4 as u16, 16));
            let sum = frames::checksum::ones_sum(&finished[l4..]);
            finished[l4 + 16..l4 + 18].copy_from_slice(&(!sum).to_be_bytes());
        }
        frames::check(&finished).unwrap();
        (payload, header.gso_size)
    };
    collected(rig, B).into_iter().map(whole).collect()
}

/// Segments of one connection from a host behind the uplink to pod B.
fn stream(v6: usize, sizes: &[usize]) -> Vec<Spec> {
    let mut at = 0;
    let segment = |size: &usize| {
        let payload = bytes(at + size)[at..].to_vec();
        let spec = tcp(v6, B, at as u32, ACK, &payload);
        at += size;
        Spec { src: outside_address(1)[v6], ..spec }
    };
    sizes.iter().map(segment).collect()
}

#[test]
fn segments_of_a_flow_that_follow_each_other_leave_by_a_tap_as_one_packet() {
    let mut rig = rig();
    for v6 in [0, 1] {
        let out = arrived(&mut rig, UPLINK, &stream(v6, &[1000; 10]));
        assert_eq!(out, [(bytes(10_000), 1000)]);
        // A shorter one is the last; the next begins another packet.
        let out = arrived(&mut rig, UPLINK, &stream(v6, &[1000, 1000, 400, 1000, 1000]));
        assert_eq!(out.iter().map(|(payload, _)| payload.len()).collect::<Vec<_>>(), [2400, 2000]);
        // A larger one does not fit.
        let out = arrived(&mut rig, UPLINK, &stream(v6, &[1000, 1001, 1001]));
        assert_eq!(out.iter().map(|(payload, _)| payload.len()).collect::<Vec<_>>(), [1000, 2002]);
    }
}

#[test]
fn nothing_is_merged_over_a_gap_a_flag_or_another_field() {
    let mut rig = rig();
    let alone = |rig: &mut Rig, edit: &dyn Fn(&mut Spec)| {
        let mut segments = stream(0, &[1000; 3]);
        edit(&mut segments[1]);
        let lengths: Vec<usize> =
            arrived(rig, UPLINK, &segments).iter().map(|(payload, _)| payload.len()).collect();
        assert_eq!(lengths, [1000, 1000, 1000]);
    };
    let set = |edit: fn(&mut u8, &mut u32, &mut u32, &mut u16)| {
        move |spec: &mut Spec| {
            if let Transport::Tcp { flags, sequence, acknowledgement, window, .. } = &mut spec.transport {
                edit(flags, sequence, acknowledgement, window);
            }
        }
    };
    alone(&mut rig, &set(|_, sequence, _, _| *sequence += 1));
    alone(&mut rig, &set(|_, _, acknowledgement, _| *acknowledgement += 1));
    alone(&mut rig, &set(|_, _, _, window| *window += 1));
    alone(&mut rig, &set(|flags, _, _, _| *flags |= 1));
    alone(&mut rig, &|spec| spec.ttl = 50);
    // PSH ends a packet, and is kept.
    let mut segments = stream(0, &[1000; 4]);
    set(|flags, _, _, _| *flags |= PSH)(&mut segments[1]);
    let lengths: Vec<usize> =
        arrived(&mut rig, UPLINK, &segments).iter().map(|(payload, _)| payload.len()).collect();
    assert_eq!(lengths, [2000, 2000]);
}

#[test]
fn a_segment_with_a_wrong_checksum_is_passed_on_as_it_is() {
    let mut rig = rig();
    arrived(&mut rig, UPLINK, &stream(0, &[1000; 2]));
    let mut segments = stream(0, &[1000; 4]);
    segments[1].broken = true;
    for spec in &segments {
        assert!(rig.ports[UPLINK.index()].peers[0].inject(&addressed(UPLINK, spec).bytes()));
    }
    step(&mut rig);
    let out = collected(&rig, B);
    assert_eq!(out.len(), 3);
    assert!(
        !out[1].0.needs_checksum() && frames::check(&out[1].1).is_err(),
        "the receiver finds the mistake"
    );
}

#[test]
fn flows_that_interleave_are_merged_apart() {
    let mut rig = rig();
    let (one, other) = (stream(0, &[1000; 5]), stream(1, &[900; 5]));
    let both: Vec<Spec> = one.into_iter().zip(other).flat_map(|(one, other)| [one, other]).collect();
    let out = arrived(&mut rig, UPLINK, &both);
    assert_eq!(out, [(bytes(5000), 1000), (bytes(4500), 900)]);
}

#[test]
fn a_port_of_the_wire_gets_no_larger_packets() {
    let mut rig = rig_with(&[], &[UPLINK]);
    let segments = stream(0, &[1000; 10]);
    for spec in &segments {
        assert!(rig.ports[UPLINK.index()].peers[0].inject(&addressed(UPLINK, spec).bytes()));
    }
    step(&mut rig);
    assert_eq!(collected(&rig, B).len(), 10);
}

/// Number of headers of a history.
const HEADERS: u64 = 5_000;

#[test]
fn headers_of_a_stranger_have_one_verdict_each_and_lose_no_frame() {
    for seed in histories("headers", 0..1, 1) {
        inject_headers(&mut Random(seed.number));
    }
}

fn inject_headers(random: &mut Random) {
    let mut rig = rig();
    let frames: Vec<Vec<u8>> = [B, SMALL, UPLINK]
        .into_iter()
        .flat_map(|to| [0, 1].map(|v6| (to, v6)))
        .flat_map(|(to, v6)| {
            let len = |len| (tcp(v6, to, 1, ACK, &bytes(len)), udp(v6, to, &bytes(len)));
            let [(one, two), (three, four)] = [len(10), len(4500)];
            let whole = [&one, &two, &three, &four].map(|spec| addressed(A, spec).bytes());
            [one, two, three, four].map(|spec| unfinished(A, &spec)).into_iter().chain(whole)
        })
        .collect();
    let near = |value: u16, random: u64| match random % 4 {
        0 => (random >> 8) as u16,
        _ => value.wrapping_add((random >> 8) as u16 % 5).wrapping_sub(2),
    };
    for number in 0..HEADERS {
        let frame = &frames[(random.next() % frames.len() as u64) as usize];
        let is_v4 = frame[12] == 8;
        let is_tcp = frame[if is_v4 { 23 } else { 20 }] == 6;
        let header = VirtioNet {
            flags: (random.next() % 4) as u8,
            gso_type: [0, 1, 3, 4, 5, 0x81, 0x84, random.next() as u8][(random.next() % 8) as usize],
            hdr_len: random.next() as u16,
            gso_size: near([0, 40, 100, 1400][(random.next() % 4) as usize], random.next()),
            csum_start: near(if is_v4 { 34 } else { 54 }, random.next()),
            csum_offset: near(if is_tcp { 16 } else { 6 }, random.next()),
        };
        inject(&rig, A, header, frame);
        rig.sim.step();
        for port in [A, B, SMALL, UPLINK] {
            rig.ports[port.index()].peers[0].collect_with_headers();
        }
        if number % 256 == 0 {
            rig.check();
        }
    }
    rig.check();
    let counters = rig.counters(A);
    assert!(
        counters.forwarded > HEADERS / 100 && counters.drops["malformed"] > HEADERS / 100,
        "{counters:?}"
    );
}

proptest! {

    #![proptest_config(crate::random::cases(40))]

    #[test]
    fn a_stream_arrives_as_it_was_sent_however_it_is_cut(
        sizes in prop::collection::vec(1usize..1440, 1..30),
        v6 in 0usize..2,
    ) {
        let mut rig = rig_with(&[A, B], &[UPLINK]);
        let out = arrived(&mut rig, UPLINK, &stream(v6, &sizes));
        let payload: Vec<u8> = out.iter().flat_map(|(payload, _)| payload.clone()).collect();
        prop_assert!(payload == bytes(sizes.iter().sum()));
        prop_assert!(out.iter().all(|(payload, size)| *size == 0 || payload.len() > usize::from(*size)));
    }

    #[test]
    fn any_header_on_any_packet_has_one_verdict_and_loses_no_frame(
        header: [u8; 10],
        is_tcp: bool,
        v6 in 0usize..2,
        to in 1u16..5,
        len in 0usize..5000,
        is_unfinished: bool,
    ) {
        let mut rig = rig_with(&[A, B], &[]);
        let to = if to == 3 { UPLINK } else { PortId(to) };
        let spec = if is_tcp { tcp(v6, to, 1, ACK, &bytes(len)) } else { udp(v6, to, &bytes(len)) };
        let frame = if is_unfinished { unfinished(A, &spec) } else { addressed(A, &spec).bytes() };
        inject(&rig, A, VirtioNet::from_bytes(&header), &frame);
        step(&mut rig);
    }
}

#[test]
fn a_checksum_is_never_written_into_a_header_that_policy_has_read() {
    let mut rig = rig();
    for spec in [tcp(0, B, 1, ACK, &bytes(100)), udp(0, B, &bytes(100))] {
        let parsed = if matches!(spec.transport, Transport::Tcp { .. }) { 20 } else { 8 };
        for start in 15..34 + parsed {
            for offset in [0, 2, 12] {
                let header = VirtioNet {
                    gso_type: 0,
                    gso_size: 0,
                    csum_start: start,
                    csum_offset: offset,
                    ..header(&spec, 0)
                };
                let before = rig.counters(A);
                inject(&rig, A, header, &addressed(A, &spec).bytes());
                step(&mut rig);
                assert_eq!(rig.drops_since(A, &before), [("malformed".to_owned(), 1)].into(), "{header:?}");
            }
        }
        // Behind it, it is that of a packet in a tunnel. The outer checksum does not cover the finished one here.
        let header = VirtioNet {
            gso_type: 0,
            gso_size: 0,
            csum_start: 34 + parsed,
            csum_offset: 0,
            ..header(&spec, 0)
        };
        let before = rig.counters(A);
        inject(&rig, A, header, &addressed(A, &spec).bytes());
        step(&mut rig);
        assert_eq!(rig.drops_since(A, &before), [("bad-checksum".to_owned(), 1)].into());
    }
}

#[test]
fn a_header_of_a_frame_that_is_not_parsed_is_not_compared_with_the_packet_before() {
    let mut rig = rig();
    let spec = tcp(0, B, 1, ACK, &bytes(3000));
    for len in 14..18 {
        inject(&rig, A, header(&spec, 1000), &unfinished(A, &spec));
        step(&mut rig);
        let before = rig.counters(A);
        let mut short = unfinished(A, &spec)[..len].to_vec();
        short[12..14].copy_from_slice(&[0x81, 0]);
        inject(&rig, A, header(&spec, 1000), &short);
        step(&mut rig);
        assert_eq!(rig.drops_since(A, &before), [("truncated".to_owned(), 1)].into());
        assert_eq!(collected(&rig, B).len(), 1);
    }
}
