//! Answers to denied packets from tap ports and in several frames: each goes back to its sender, whole and no longer than its
//! headers say.

use palisade::dataplane::{ConntrackSettings, DesiredState, Settings};
use palisade::net::flow::Protocol;
use palisade::net::virtio_net::{GSO_TCPV4, GSO_TCPV6, NEEDS_CSUM, VirtioNet};

use crate::frames::{self, Spec, Transport};
use crate::rig::assertions::{A, B, C, mute, serves};
use crate::rig::{PODS, Rig, Setting, addressed, mac, outside_address, pod_address};
use crate::services::fixture;

const MTU: u16 = 65_000;

fn rig(taps: &[palisade::ids::PortId]) -> Rig {
    let settings = Settings {
        cores: vec![0],
        frames_per_worker: 8192,
        huge_pages: false,
        conntrack: ConntrackSettings { flows_max: 1024, tcp_pickup: true, ..ConntrackSettings::default() },
        ..Settings::default()
    };
    let setting = Setting::open().with(0, mute());
    let mut rig = Rig::open_with_taps(&settings, &setting, MTU, [1; PODS], taps);
    rig.sim.publish(DesiredState { rejects: true, ..setting.desired() });
    // Ports get more frames to receive into once they have received many.
    (0..40).for_each(|_| drop(rig.send_on(0, A, &vec![vec![0; 60]; 32])));
    rig
}

fn check_answer(spec: &Spec, answer: &[u8]) {
    frames::check(answer).unwrap();
    assert_eq!(answer[..6], mac(A), "back to the sender");
    let is_v4 = spec.src.is_ipv4();
    let (from, to, l4) = if is_v4 { (26..30, 30..34, 34) } else { (22..38, 38..54, 54) };
    let bytes = |address: std::net::IpAddr| match address {
        std::net::IpAddr::V4(address) => address.octets().to_vec(),
        std::net::IpAddr::V6(address) => address.octets().to_vec(),
    };
    assert_eq!(answer[to], bytes(spec.src));
    if let Transport::Tcp { .. } = spec.transport {
        assert_eq!((answer.len(), &answer[from]), (l4 + 20, bytes(spec.dst).as_slice()));
        assert_eq!(answer[l4 + 13] & 4, 4, "a reset");
    } else {
        let most = if is_v4 { 576 } else { 1280 };
        assert!(answer.len() <= 14 + most, "{} bytes", answer.len());
        assert_eq!(answer[l4], if is_v4 { 3 } else { 1 });
    }
}

fn specs() -> impl Iterator<Item = Spec> {
    let destinations = [pod_address(1), outside_address(1)];
    let tcp = Transport::Tcp { ports: [1000, 80], flags: 16, sequence: 7, acknowledgement: 9, window: 500 };
    let udp = Transport::Udp { ports: [1000, 53] };
    let sizes = [0, 10, 1400, 3700, 4096, 9000, 60_000];
    let each = destinations.into_iter().flat_map(|dst| [0, 1].map(|v6| (pod_address(0)[v6], dst[v6])));
    each.flat_map(move |(src, dst)| [tcp, udp].map(|transport| (src, dst, transport))).flat_map(
        move |(src, dst, transport)| {
            sizes.map(|size| Spec { payload: vec![0x5a; size], ..Spec::new(src, dst, transport) })
        },
    )
}

#[test]
fn an_answer_to_a_packet_of_many_frames_is_one_frame() {
    let mut rig = rig(&[]);
    for spec in specs() {
        let out = rig.send(A, &spec);
        assert_eq!(out.len(), 1, "{} bytes", spec.payload.len());
        assert_eq!(out[0].0, A);
        check_answer(&spec, &out[0].1);
        rig.wait(std::time::Duration::from_secs(2));
    }
}

#[test]
fn an_answer_to_a_packet_with_segments_is_a_packet_of_the_wire() {
    let mut rig = rig(&[A]);
    for spec in specs() {
        let mut frame = addressed(A, &spec).bytes();
        frames::unfinish(&mut frame);
        let (start, is_tcp) =
            (if spec.src.is_ipv4() { 34 } else { 54 }, matches!(spec.transport, Transport::Tcp { .. }));
        let gso_type = match (is_tcp && spec.payload.len() > 1400, spec.src.is_ipv4()) {
            (false, _) => 0,
            (true, true) => GSO_TCPV4,
            (true, false) => GSO_TCPV6,
        };
        let header = VirtioNet {
            flags: NEEDS_CSUM,
            gso_type,
            hdr_len: start + if is_tcp { 20 } else { 8 },
            gso_size: if gso_type == 0 { 0 } else { 1400 },
            csum_start: start,
            csum_offset: if is_tcp { 16 } else { 6 },
        };
        let peer = &rig.ports[A.index()].peers[0];
        assert!(peer.inject_with_header(header, &frame));
        rig.sim.step();
        rig.check();
        let out = rig.ports[A.index()].peers[0].collect_with_headers();
        assert_eq!(out.len(), 1, "{} bytes", spec.payload.len());
        assert_eq!((out[0].0.gso_type, out[0].0.flags & NEEDS_CSUM), (0, 0), "{:?}", out[0].0);
        check_answer(&spec, &out[0].1);
        rig.wait(std::time::Duration::from_secs(2));
    }
}

#[test]
fn answers_to_a_flood_of_denied_packets_are_limited_in_number_and_not_for_ever() {
    let mut rig = rig(&[]);
    for transport in [
        Transport::Udp { ports: [1000, 53] },
        Transport::Tcp { ports: [1000, 80], flags: 2, sequence: 7, acknowledgement: 0, window: 500 },
    ] {
        let spec = Spec::new(pod_address(0)[0], pod_address(1)[0], transport);
        let frame = addressed(A, &spec).bytes();
        let before = rig.counters(A);
        let mut flood = |packets: usize| -> usize {
            (0..packets).map(|_| rig.send_on(0, A, std::slice::from_ref(&frame)).len()).sum()
        };
        assert_eq!(flood(1300), 1100, "its own hundred, and all of the common thousand");
        assert_eq!(rig.drops_since(A, &before), [("policy-egress".to_owned(), 1300)].into());
        rig.wait(std::time::Duration::from_secs(2));
        assert_eq!(rig.send_on(0, A, std::slice::from_ref(&frame)).len(), 1);
        rig.wait(std::time::Duration::from_secs(2));
    }
}

/// Whether segments of no flow from A to `dst` are answered, by these flags.
fn answers_of_unknown(rig: &mut Rig, dst: std::net::IpAddr, flags: [u8; 6]) -> [bool; 6] {
    flags.map(|flags| {
        let transport =
            Transport::Tcp { ports: [1000, 80], flags, sequence: 7, acknowledgement: 9, window: 500 };
        let family = usize::from(dst.is_ipv6());
        let spec = Spec { payload: vec![1; 30], ..Spec::new(pod_address(0)[family], dst, transport) };
        let before = rig.counters(A);
        let out = rig.send(A, &spec);
        assert_eq!(rig.drops_since(A, &before), [("invalid-state".to_owned(), 1)].into());
        for (port, answer) in &out {
            assert_eq!(*port, A);
            check_answer(&spec, answer);
            let l4 = if family == 0 { 34 } else { 54 };
            assert_eq!(answer[l4 + 4..l4 + 8], 9_u32.to_be_bytes(), "the number that its sender expects");
        }
        assert!(out.len() <= 1);
        out.len() == 1
    })
}

const ACK: u8 = 0x10;
const SEGMENTS: [u8; 6] = [ACK, ACK | 8, ACK | 1, ACK | 2, 4, ACK | 4];

#[test]
fn segments_of_no_flow_are_reset_where_policy_allows_a_connection() {
    let setting = Setting::open().with(2, serves(Protocol::UDP, 80));
    for resets in [true, false] {
        let conntrack =
            ConntrackSettings { flows_max: 1024, tcp_reset_unknown: resets, ..ConntrackSettings::default() };
        let mut rig = Rig::with(1, conntrack, &setting);
        let services = Some(fixture::services(&fixture::port(&[1])));
        rig.sim.publish(DesiredState { services, ..setting.desired() });
        let but_resets = [resets, resets, resets, resets, false, false];
        for dst in pod_address(1).into_iter().chain(fixture::virtual_address()) {
            assert_eq!(answers_of_unknown(&mut rig, dst, SEGMENTS), but_resets, "{dst}");
        }
        for dst in pod_address(2) {
            assert_eq!(answers_of_unknown(&mut rig, dst, SEGMENTS), [false; 6], "policy denies {dst}");
        }
        assert_eq!((rig.counters(B).received, rig.counters(C).received), (0, 0));
    }
}

#[test]
fn a_segment_of_no_flow_with_a_wrong_checksum_has_no_answer() {
    let conntrack = ConntrackSettings { tcp_reset_unknown: true, ..ConntrackSettings::default() };
    let mut rig = Rig::with(1, conntrack, &Setting::open());
    let transport =
        Transport::Tcp { ports: [1000, 80], flags: ACK, sequence: 7, acknowledgement: 9, window: 500 };
    let spec = Spec::new(pod_address(0)[0], pod_address(1)[0], transport);
    let mut frame = addressed(A, &spec).bytes();
    assert_eq!(rig.send_on(0, A, std::slice::from_ref(&frame)).len(), 1, "its answer");
    *frame.last_mut().unwrap() ^= 1;
    assert_eq!(rig.send_on(0, A, std::slice::from_ref(&frame)), []);
}
