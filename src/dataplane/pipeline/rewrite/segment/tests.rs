use proptest::prelude::*;

use super::super::rewrite_frame;
use super::*;
use crate::dataplane::fib::next_hop::Adjacency;
use crate::dataplane::frames::{self, Spec, Transport};
use crate::dataplane::pipeline::parse::parse_frame;
use crate::dataplane::pipeline::parse::virtio_header::tests::{header, spec, unfinished};
use crate::dataplane::pipeline::parse::virtio_header::{HeaderCheck, check_header};
use crate::ids::PortId;
use crate::limits::PORT_SEGMENTS_MAX;
use crate::net::virtio_net::{GSO_ECN, GSO_TCPV4, VirtioNet};
use crate::xdp::PortQueue;

/// Segments of a packet that leaves by a port with this VLAN identifier, or 0.
fn segments_of(bytes: &[u8], header: VirtioNet, vlan: u16) -> Vec<Vec<u8>> {
    let (mut umem, mut free) = Umem::in_memory(400);
    let (mut queue, peer) = PortQueue::memory_tap(&umem.binder(), PortId(0)).unwrap();
    queue.refill(&mut umem, &mut free, 20);
    assert!(peer.inject_with_header(header, bytes));
    let mut frames = Vec::with_capacity(20);
    assert_eq!(queue.receive(&mut umem, &mut frames, 20), 1);
    let (mut frame, mut packet) = (frames.pop().unwrap(), Packet::default());
    assert_eq!(parse_frame(umem.data(&frame), frame.len(), &mut packet), None);
    let HeaderCheck::Segments(_) = check_header(&header, &packet, umem.data(&frame)) else {
        panic!("{header:?} contradicts the packet")
    };
    let adjacency = Adjacency { vlan, mtu: 9000, ..Adjacency::default() };
    assert!(rewrite_frame(&umem, &mut frame, &packet, adjacency, 0, &mut free));
    let before = free.len();
    let mut out = VecDeque::with_capacity(400);
    let needed = frames_of_segments(&packet, &frame, &umem, 0);
    let count = segment(&umem, &packet, &frame, &mut free, &mut out);
    assert_eq!(count, out.len());
    assert_eq!(before - free.len(), out.iter().map(Frame::frames).sum::<usize>());
    assert!(before - free.len() <= needed, "{} frames, and {needed} were counted", before - free.len());
    let whole = |frame: &Frame| {
        std::iter::once(umem.data(frame)).chain(umem.rest(frame)).collect::<Vec<_>>().concat()
    };
    out.iter().map(whole).collect()
}

/// Checks the segments of a packet against packets that etherparse builds.
fn check_segments_of(spec: &Spec, gso_size: u16, vlan: u16) {
    let segments = segments_of(&unfinished(spec), header(spec, gso_size), vlan);
    let chunks: Vec<&[u8]> = spec.payload.chunks(gso_size.into()).collect();
    assert_eq!(segments.len(), chunks.len());
    for (number, (segment, payload)) in segments.iter().zip(chunks).enumerate() {
        let transport = match spec.transport {
            Transport::Tcp { ports, flags, sequence, acknowledgement, window } => {
                let is_last = number + 1 == segments.len();
                let flags = if is_last { flags } else { flags & 0x10 };
                let sequence = sequence.wrapping_add(number as u32 * u32::from(gso_size));
                Transport::Tcp { ports, flags, sequence, acknowledgement, window }
            }
            other => other,
        };
        let vlan = (vlan != 0).then_some(vlan);
        let expected = Spec {
            src_mac: [0; 6],
            dst_mac: [0; 6],
            ttl: spec.ttl - 1,
            transport,
            vlan,
            payload: payload.to_vec(),
            ..spec.clone()
        };
        let (mut expected, mut segment) = (expected.bytes(), segment.clone());
        frames::check(&segment).unwrap();
        if spec.src.is_ipv4() {
            let l3 = if vlan.is_some() { 18 } else { 14 };
            assert_eq!(segment[l3 + 4..l3 + 6], (number as u16).to_be_bytes(), "identification");
            for at in [l3 + 4, l3 + 5, l3 + 10, l3 + 11] {
                (expected[at], segment[at]) = (0, 0);
            }
        }
        assert!(segment == expected, "segment {number} of {spec:?}");
    }
}

#[test]
fn segments_are_the_packets_that_the_sender_would_have_sent() {
    for (is_v4, is_tcp) in [(true, true), (true, false), (false, true), (false, false)] {
        for (payload, gso_size) in
            [(3000, 1000), (3001, 1000), (60_000, 1400), (65_000, 8900), (3, 1), (9000, 4000)]
        {
            for vlan in [0, 5] {
                check_segments_of(&spec(is_v4, is_tcp, payload), gso_size, vlan);
            }
        }
    }
}

#[test]
fn congestion_window_reduced_is_in_the_first_segment_only() {
    let spec = spec(true, true, 3000);
    let mut bytes = spec.bytes();
    bytes[47] |= CWR;
    frames::unfinish(&mut bytes);
    let header = VirtioNet { gso_type: GSO_TCPV4 | GSO_ECN, ..header(&spec, 1000) };
    let flags: Vec<u8> = segments_of(&bytes, header, 0).iter().map(|segment| segment[47] & CWR).collect();
    assert_eq!(flags, [CWR, 0, 0]);
}

#[test]
fn without_frames_nothing_is_cut() {
    let (umem, mut free) = Umem::in_memory(5);
    let spec = spec(true, true, 3000);
    let bytes = unfinished(&spec);
    let mut frame = free.pop().unwrap();
    umem.write(&mut frame, &bytes).unwrap();
    umem.set_virtio_header(&mut frame, header(&spec, 100));
    let mut packet = Packet::default();
    assert_eq!(parse_frame(&bytes, bytes.len(), &mut packet), None);
    let mut out = VecDeque::with_capacity(100);
    assert_eq!(segment(&umem, &packet, &frame, &mut free, &mut out), 0);
    assert_eq!((free.len(), out.len()), (4, 0));
}

proptest! {

    #![proptest_config(crate::random::cases(256))]

    #[test]
    fn any_payload_is_cut_without_loss(
        is_v4: bool,
        is_tcp: bool,
        (gso_size, segments, last) in (1u16..9000).prop_flat_map(|gso_size| {
            let most = PORT_SEGMENTS_MAX.min(20_000 / usize::from(gso_size));
            (Just(gso_size), 2..=most, 1..=usize::from(gso_size))
        }),
        is_tagged: bool,
    ) {
        let payload = (segments - 1) * usize::from(gso_size) + last;
        check_segments_of(&spec(is_v4, is_tcp, payload), gso_size, if is_tagged { 7 } else { 0 });
    }
}
