use std::net::IpAddr;

use super::super::parse;
use super::*;
use crate::dataplane::frames::{self, Spec, Transport};
use crate::ids::PortId;
use crate::net::mac::Mac;
use crate::xdp::PortQueue;

const NEXT: Mac = Mac([2, 0, 0, 0, 0, 77]);
const SWITCH: Mac = Mac([2, 0, 0, 0, 0, 78]);

fn specs() -> Vec<Spec> {
    let transports = [
        Transport::Tcp { ports: [1000, 80], flags: 16, sequence: 7, acknowledgement: 8, window: 9 },
        Transport::Udp { ports: [1000, 53] },
        Transport::Sctp { ports: [1000, 9], chunk: 1 },
        Transport::Echo { request: true, identifier: 5 },
        Transport::Other(47),
    ];
    let pairs = [["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]];
    let pairs = pairs.map(|pair| pair.map(|text| text.parse::<IpAddr>().unwrap()));
    let all =
        pairs.into_iter().flat_map(|[src, dst]| transports.map(|transport| Spec::new(src, dst, transport)));
    all.collect()
}

fn adjacency(vlan: u16) -> Adjacency {
    Adjacency { vlan, mac: NEXT.to_bits(), ..Adjacency::default() }
}

/// The transmitted frame with the tag `vlan`: the fast path gives the same result as the slow one, where it
/// takes the packet.
fn rewritten(frame: &[u8], vlan: u16) -> Vec<u8> {
    let (any, _) = rewritten_by(frame, adjacency(vlan), false);
    let (plain, _) = rewritten_by(frame, adjacency(vlan), true);
    assert!(plain == any, "the two ways differ");
    any
}

/// The transmitted frame, and whether the fast path took it, which is tried first with `plain`.
fn rewritten_by(frame: &[u8], adjacency: Adjacency, plain: bool) -> (Vec<u8>, bool) {
    // Through a port, so that a packet longer than a frame of memory comes in several.
    let (mut umem, mut free) = Umem::in_memory(20);
    let (mut queue, peer) = PortQueue::memory(&umem.binder(), PortId(0)).unwrap();
    queue.refill(&mut umem, &mut free, 20);
    assert!(peer.inject(frame));
    let mut frames = Vec::with_capacity(20);
    queue.receive(&mut umem, &mut frames, 20);
    let mut packet = Packet::default();
    assert_eq!(parse::parse_frame(umem.data(&frames[0]), frame.len(), &mut packet), None);
    let src = SWITCH.to_bits();
    let is_plain = plain && rewrite_fast(&umem, &mut frames[0], &packet, &adjacency, src);
    assert!(is_plain || rewrite_frame(&umem, &mut frames[0], &packet, adjacency, src, &mut free));
    umem.trim(&mut frames[0], &mut free);
    let parts = std::iter::once(umem.data(&frames[0])).chain(umem.rest(&frames[0])).collect::<Vec<_>>();
    (parts.concat(), is_plain)
}

/// The expected frame.
fn expected(spec: &Spec, vlan: u16) -> Vec<u8> {
    let vlan = (vlan != 0).then_some(vlan);
    Spec { src_mac: SWITCH.0, dst_mac: NEXT.0, ttl: spec.ttl - 1, vlan, ..spec.clone() }.bytes()
}

#[test]
fn a_forwarded_packet_differs_in_addresses_and_ttl_alone() {
    for spec in specs() {
        for ttl in [2, 64, 255] {
            let spec = Spec { ttl, ..spec.clone() };
            let frame = rewritten(&spec.bytes(), 0);
            assert_eq!(frame, expected(&spec, 0));
            frames::check(&frame).unwrap();
        }
    }
}

#[test]
fn the_short_way_takes_what_needs_no_more_than_addresses_and_ttl() {
    for spec in specs() {
        let takes = |spec: &Spec, adjacency| rewritten_by(&spec.bytes(), adjacency, true).1;
        assert!(takes(&spec, adjacency(0)));
        assert!(!takes(&spec, adjacency(5)));
        assert!(
            !takes(&spec, Adjacency { egress: Egress::Uplink, ..adjacency(0) }),
            "it leaves from another address"
        );
        for vlan in [0, 5] {
            assert!(!takes(&Spec { vlan: Some(vlan), ..spec.clone() }, adjacency(0)));
        }
        let long = Spec { payload: vec![1; 9000], ..spec.clone() };
        assert!(!takes(&long, adjacency(0)), "it takes more room than a frame");
    }
}

#[test]
fn tags_are_pushed_popped_and_replaced() {
    for spec in specs() {
        for (before, after) in [(None, 5), (Some(5), 0), (Some(5), 5), (Some(5), 4094), (Some(4094), 5)] {
            let spec = Spec { vlan: before, ..spec.clone() };
            assert_eq!(rewritten(&spec.bytes(), after), expected(&spec, after), "{before:?} to {after}");
        }
    }
}

#[test]
fn packets_of_several_frames_are_rewritten_as_others_are() {
    for spec in specs() {
        for payload_bytes in [3800, 9001, 60_000] {
            let spec = Spec { payload: (0..payload_bytes).map(|i| i as u8).collect(), ..spec.clone() };
            for (before, after) in [(None, 0), (None, 5), (Some(5), 0), (Some(5), 6)] {
                let spec = Spec { vlan: before, ..spec.clone() };
                let padded = [spec.bytes(), vec![0xee; 4000]].concat();
                for frame in [&spec.bytes(), &padded] {
                    let is_right = rewritten(frame, after) == expected(&spec, after);
                    assert!(is_right, "{payload_bytes} bytes, {before:?} to {after}: {:?}", spec.transport);
                }
            }
        }
    }
}

#[test]
fn a_priority_tag_is_popped() {
    for spec in specs() {
        let tagged = Spec { vlan: Some(0), ..spec.clone() };
        assert_eq!(rewritten(&tagged.bytes(), 0), expected(&spec, 0));
        assert_eq!(rewritten(&tagged.bytes(), 5), expected(&spec, 5));
    }
}

#[test]
fn padding_does_not_travel_on() {
    for spec in specs() {
        let padded = [spec.bytes(), vec![0xee; 40]].concat();
        assert_eq!(rewritten(&padded, 5), expected(&spec, 5));
    }
}

#[test]
fn an_unfinished_checksum_is_completed() {
    for spec in specs() {
        for payload_bytes in [0, 1, 7, 1400, 3806, 3807, 9001, 60_000] {
            let payload = (0..payload_bytes).map(|i| i as u8).collect();
            let spec = Spec { payload, ..spec.clone() };
            let mut frame = spec.bytes();
            match spec.transport {
                Transport::Tcp { .. } | Transport::Udp { .. } => frames::unfinish(&mut frame),
                Transport::Sctp { .. } => {
                    let l4 = if spec.src.is_ipv4() { 34 } else { 54 };
                    frame[l4 + 8..l4 + 12].fill(0);
                }
                _ => continue,
            }
            assert_ne!(frame, spec.bytes(), "the test takes the checksum away");
            assert_eq!(rewritten(&frame, 0), expected(&spec, 0));
        }
    }
}

#[test]
fn a_wrong_checksum_stays_wrong() {
    for spec in specs() {
        let offset = match spec.transport {
            Transport::Tcp { .. } => 17,
            Transport::Udp { .. } => 7,
            _ => continue,
        };
        let mut frame = spec.bytes();
        let l4 = if spec.src.is_ipv4() { 34 } else { 54 };
        frame[l4 + offset] ^= 1;
        assert!(frames::check(&rewritten(&frame, 0)).is_err());
    }
}

#[test]
fn a_udp_checksum_of_zero_says_that_there_is_none_and_stays() {
    let spec = specs().into_iter().find(|spec| matches!(spec.transport, Transport::Udp { .. })).unwrap();
    let mut frame = spec.bytes();
    frame[40..42].fill(0);
    assert_eq!(rewritten(&frame, 0)[40..42], [0, 0]);
}

#[test]
fn a_udp_checksum_that_comes_out_as_zero_is_written_as_all_ones() {
    let mut spec = specs().into_iter().find(|spec| matches!(spec.transport, Transport::Udp { .. })).unwrap();
    // The last word of the payload makes up for the checksum.
    spec.payload = vec![0; 10];
    let frame = spec.bytes();
    spec.payload[8..].copy_from_slice(&frame[40..42]);
    let mut frame = spec.bytes();
    assert_eq!(frame[40..42], [0xff, 0xff], "etherparse writes it so too");
    frames::unfinish(&mut frame);
    assert_eq!(rewritten(&frame, 0)[40..42], [0xff, 0xff]);
}

#[test]
fn the_checksum_of_a_datagram_shorter_than_its_packet_is_left_alone() {
    let spec = specs().into_iter().find(|spec| matches!(spec.transport, Transport::Udp { .. })).unwrap();
    let datagram = spec.ip()[20..].to_vec();
    let ip = spec.raw(17, &[&datagram[..], &[1, 2, 3]].concat());
    let mut frame = frames::ethernet([2; 6], [2; 6], None, frames::ether_type(spec.src), &ip);
    frames::unfinish(&mut frame);
    assert_eq!(rewritten(&frame, 0)[34..], frame[34..]);
}

#[test]
fn fragments_keep_their_checksums() {
    let spec = specs().into_iter().find(|spec| matches!(spec.transport, Transport::Udp { .. })).unwrap();
    let mut frame = spec.bytes();
    frames::unfinish(&mut frame);
    frame[20] |= 0x20;
    frame[24..26].fill(0);
    let sum = crate::net::checksum::Sum::default().add_bytes(&frame[14..34]).finish();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(rewritten(&frame, 0)[34..], frame[34..]);
}
