//! Packets longer than a UMEM frame: each is one packet with one verdict.

use std::net::IpAddr;

use palisade::dataplane::Settings;
use palisade::ids::PortId;
use palisade::limits::{MTU_MAX, RING_SLOTS};
use proptest::prelude::*;

use crate::frames::{self, Spec, Transport};
use crate::rig::{
    PODS, PORTS, Rig, SMALL_MTU, Setting, UPLINK, addressed, forwarded, gateway_address, mac,
    outside_address, pod_address, small_table,
};

const A: PortId = PortId(0);
const B: PortId = PortId(1);
const SMALL: PortId = PortId(2);

fn rig() -> Rig {
    rig_of(1, [1; PODS])
}

/// Starts a switch with these numbers of workers and of queues of the pods' ports.
fn rig_of(workers: usize, queues: [usize; PODS]) -> Rig {
    let settings = Settings {
        cores: vec![0; workers],
        frames_per_worker: 16384,
        huge_pages: false,
        conntrack: small_table(),
        ..Settings::default()
    };
    let mut rig = Rig::open(&settings, &Setting::open(), MTU_MAX as u16, queues);
    // Ports get more frames to receive into once they have received long packets.
    for port in [A, B, UPLINK] {
        for worker in (0..40).flat_map(|_| 0..workers) {
            let frames = vec![vec![0; 60]; 32];
            rig.send_on(worker, port, &frames);
        }
    }
    rig
}

fn transports() -> [Transport; 4] {
    [
        Transport::Tcp { ports: [1000, 80], flags: 2, sequence: 7, acknowledgement: 0, window: 9 },
        Transport::Udp { ports: [1000, 53] },
        Transport::Sctp { ports: [1000, 9], chunk: 1 },
        Transport::Echo { request: true, identifier: 5 },
    ]
}

/// Packet of this many bytes, including the IP header.
fn sized(src: IpAddr, dst: IpAddr, transport: Transport, ip_bytes: usize) -> Spec {
    let spec = Spec::new(src, dst, transport);
    let headers = spec.ip().len() - spec.payload.len();
    let payload = (0..ip_bytes - headers).map(|at| (at % 251) as u8).collect();
    Spec { payload, ..spec }
}

#[test]
fn the_checksum_of_a_packet_that_opens_a_flow_is_verified_to_its_last_byte() {
    let mut rig = rig();
    for (number, ip_bytes) in [3826, 3827, 9000, 30_001, MTU_MAX].into_iter().enumerate() {
        for (family, transport) in (0..2).flat_map(|family| transports().map(|transport| (family, transport)))
        {
            let spec = sized(pod_address(0)[family], pod_address(1)[family], transport, ip_bytes);
            let mut frame = addressed(A, &spec).bytes();
            *frame.last_mut().unwrap() ^= 1;
            let before = rig.counters(A);
            assert_eq!(rig.send_on(0, A, &[frame]), [], "{ip_bytes} bytes");
            assert_eq!(rig.drops_since(A, &before), [("bad-checksum".to_owned(), 1)].into());
        }
        assert_eq!(rig.sim.flows_len(), 0, "after size {number}");
    }
}

#[test]
fn packets_up_to_the_largest_mtu_cross_intact_and_longer_ones_do_not() {
    let mut rig = rig();
    for family in 0..2 {
        for transport in transports() {
            for ip_bytes in [3826, 3827, 9000, 30_001, MTU_MAX - 1, MTU_MAX] {
                let spec = sized(pod_address(0)[family], pod_address(1)[family], transport, ip_bytes);
                assert_eq!(rig.send(A, &spec), [(B, forwarded(B, &spec))], "{ip_bytes} bytes");
            }
            let before = rig.counters(A);
            let spec = sized(pod_address(0)[family], pod_address(1)[family], transport, MTU_MAX + 1);
            // No router may fragment it: the switch sends an ICMP error.
            let told = rig.send(A, &spec);
            assert!(matches!(told.as_slice(), [(A, _)]), "{}", told.len());
            assert_eq!(rig.drops_since(A, &before), [("too-big".to_owned(), 1)].into());
        }
    }
    let (received, sent) = (rig.counters(A), rig.counters(B));
    assert!(received.received_bytes > 900_000 && sent.transmitted_bytes > 900_000, "{received:?} {sent:?}");
}

#[test]
fn checksums_that_the_sender_has_left_unfinished_are_finished() {
    let mut rig = rig();
    for (family, transport) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for ip_bytes in [1500, 9001, 65_000] {
            let transport = transports()[transport];
            let spec = sized(pod_address(0)[family], pod_address(1)[family], transport, ip_bytes);
            let mut frame = addressed(A, &spec).bytes();
            frames::unfinish(&mut frame);
            assert_eq!(rig.send_on(0, A, &[frame]), [(B, forwarded(B, &spec))], "{ip_bytes} bytes");
        }
    }
}

#[test]
fn tags_are_pushed_and_popped() {
    let mut rig = rig();
    for family in 0..2 {
        let (pod, outside) = (pod_address(0)[family], outside_address(1)[family]);
        // If a frame ends within the tag or before it, the packet continues in one more frame.
        for ip_bytes in [4000, 9000, 65_000, 3823, 3826, 7663, 7666] {
            let out = sized(pod, outside, transports()[1], ip_bytes);
            // The next hop of the uplink is resolved to the rig's own address.
            assert_eq!(rig.send(A, &out), [(UPLINK, forwarded(UPLINK, &out))], "{ip_bytes} bytes");
            let back = sized(outside, pod, Transport::Udp { ports: [53, 1000] }, ip_bytes);
            assert_eq!(rig.send(UPLINK, &back), [(A, forwarded(A, &back))], "{ip_bytes} bytes");
        }
    }
}

#[test]
fn a_packet_too_big_for_where_it_goes_is_answered_with_the_mtu_that_works() {
    let mut rig = rig();
    for family in 0..2 {
        let spec = sized(pod_address(0)[family], pod_address(2)[family], transports()[1], 9000);
        let before = rig.counters(A);
        let out = rig.send(A, &spec);
        let [(A, answer)] = out.as_slice() else { panic!("{} frames", out.len()) };
        frames::check(answer).unwrap();
        let (l4, most) = if family == 0 { (34, 576) } else { (54, 1280) };
        assert!(answer.len() <= 14 + most);
        assert_eq!(answer[l4], if family == 0 { 3 } else { 2 });
        assert_eq!(answer[l4 + 6..l4 + 8], SMALL_MTU.to_be_bytes());
        assert_eq!(rig.drops_since(A, &before), [("too-big".to_owned(), 1)].into());
    }
    assert_eq!(rig.counters(SMALL).transmitted, 0);
}

#[test]
fn the_gateway_answers_a_large_echo_with_all_that_it_carries() {
    let mut rig = rig();
    for family in 0..2 {
        let (pod, gateway) = (pod_address(0)[family], gateway_address()[family]);
        let request = sized(pod, gateway, transports()[3], 9000);
        let reply = Transport::Echo { request: false, identifier: 5 };
        let reply = Spec { src: gateway, dst: pod, transport: reply, ttl: 65, ..request.clone() };
        assert_eq!(rig.send(A, &request), [(A, forwarded(A, &reply))]);
    }
}

#[test]
fn what_is_longer_than_any_packet_is_dropped_by_name() {
    let mut rig = rig();
    let spec = sized(pod_address(0)[0], pod_address(1)[0], transports()[1], 60_000);
    let before = rig.counters(A);
    for len in [65_536, 70_000, 76_800] {
        let mut frame = addressed(A, &spec).bytes();
        frame.resize(len, 0);
        assert!(rig.send_on(0, A, &[frame]).is_empty());
    }
    // A packet longer than the received bytes.
    let mut frame = addressed(A, &spec).bytes();
    frame.truncate(50_000);
    assert!(rig.send_on(0, A, &[frame]).is_empty());
    let drops = [("oversized".to_owned(), 3), ("truncated".to_owned(), 1)];
    assert_eq!(rig.drops_since(A, &before), drops.into());
}

#[test]
fn a_full_ring_drops_packets_as_a_whole_and_a_closed_port_gives_their_frames_back() {
    let mut rig = rig();
    let spec = sized(pod_address(0)[0], pod_address(1)[0], transports()[1], 9000);
    let frame = addressed(A, &spec).bytes();
    let before = rig.counters(A);
    let sent = RING_SLOTS / 3 + 50;
    for _ in 0..sent {
        assert!(rig.ports[A.index()].peers[0].inject(&frame));
        rig.sim.step();
        rig.check();
    }
    let fit = RING_SLOTS / 3;
    assert_eq!(rig.drops_since(A, &before), [("tx-full".to_owned(), (sent - fit) as u64)].into());
    rig.sim.close_port(B).unwrap();
    rig.check();
    let (total, lent, held) = rig.sim.frames(0);
    assert_eq!(lent + held, total);
}

#[test]
fn a_fragment_longer_than_a_frame_waits_for_the_first_and_goes_with_it() {
    let mut rig = rig();
    let spec = sized(pod_address(0)[0], pod_address(1)[0], transports()[1], 60_000);
    let whole = spec.ip();
    let cut = 20 + 40_000;
    let fragment = |bytes: &[u8], offset: usize, more: bool, ttl: u8| {
        let mut ip = whole[..20].to_vec();
        ip[2..4].copy_from_slice(&(20 + bytes.len() as u16).to_be_bytes());
        ip[4..6].copy_from_slice(&[0, 7]);
        ip[6..8].copy_from_slice(&(offset as u16 / 8 | u16::from(more) << 13).to_be_bytes());
        ip[8] = ttl;
        ip[10..12].fill(0);
        let words = ip.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
        let sum = words.fold(0, |sum, word| (sum + word) % 0xffff);
        ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        ip.extend_from_slice(bytes);
        ip
    };
    let framed = |ip: &[u8], src: [u8; 6], dst: [u8; 6]| {
        frames::ethernet(src, dst, None, frames::ether_type(spec.src), ip)
    };
    let (first, later) = ((&whole[20..cut], 0, true), (&whole[cut..], 40_000, false));
    let come =
        |(bytes, offset, more)| framed(&fragment(bytes, offset, more, 64), mac(A), crate::rig::gateway_mac());
    let gone =
        |(bytes, offset, more)| framed(&fragment(bytes, offset, more, 63), crate::rig::gateway_mac(), mac(B));
    assert!(rig.send_on(0, A, &[come(later)]).is_empty());
    assert_eq!(rig.sim.counters().workers.values().next().unwrap().fragments_waiting, 1);
    let mut out = rig.send_on(0, A, &[come(first)]);
    rig.sim.step();
    rig.check();
    out.extend(rig.collect());
    assert!(out == [(B, gone(first)), (B, gone(later))], "both, intact, in order");
    // A packet that waits for its last frame while its port closes.
    assert!(rig.send_on(0, A, &[come(later)]).is_empty());
    rig.sim.close_port(A).unwrap();
    rig.check();
}

#[test]
fn packets_of_several_frames_are_handed_over_to_a_port_with_fewer_queues_whole_and_in_order() {
    let mut rig = rig_of(2, [2, 1, 1]);
    let before = rig.counters(A);
    for family in 0..2 {
        let spec =
            |ip_bytes| sized(pod_address(0)[family], pod_address(1)[family], transports()[1], ip_bytes);
        let sizes = [3826, 100, 3827, 9000, 30_001, MTU_MAX];
        for ip_bytes in sizes {
            assert!(rig.ports[A.index()].peers[1].inject(&addressed(A, &spec(ip_bytes)).bytes()));
        }
        rig.sim.step_worker(1);
        rig.check();
        assert!(rig.collect().is_empty(), "only the owner touches its rings");
        rig.sim.step();
        rig.check();
        let expected: Vec<_> = sizes.iter().map(|ip_bytes| (B, forwarded(B, &spec(*ip_bytes)))).collect();
        assert!(rig.collect() == expected, "each intact, in order");
    }
    assert!(rig.drops_since(A, &before).is_empty());
}

#[test]
fn of_what_the_owner_does_not_take_in_time_no_packet_of_several_frames_goes_in_part() {
    let mut rig = rig_of(2, [2, 1, 1]);
    let spec = sized(pod_address(0)[0], pod_address(1)[0], transports()[1], 60_000);
    let frame = addressed(A, &spec).bytes();
    let before = rig.counters(A);
    let (parcels, frames) = (512, frame.len().div_ceil(3840));
    let sent = 2 * parcels / frames;
    for _ in 0..sent {
        assert!(rig.ports[A.index()].peers[1].inject(&frame));
        rig.sim.step_worker(1);
        rig.check();
    }
    let dropped = rig.drops_since(A, &before)["tx-full"] as usize;
    assert_eq!(sent - dropped, parcels / frames);
    let mut out = Vec::new();
    for _ in 0..sent {
        rig.sim.step_worker(0);
        rig.check();
        out.extend(rig.collect());
    }
    assert!(out == vec![(B, forwarded(B, &spec)); sent - dropped]);
    // Packets in a handoff queue are released with the port.
    assert!(rig.ports[A.index()].peers[1].inject(&frame));
    rig.sim.step_worker(1);
    rig.sim.close_port(B).unwrap();
    rig.check();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..crate::random::cases(6) })]
    #[test]
    fn no_frame_is_lost_and_every_packet_has_one_verdict_whatever_the_sizes(
        packets in prop::collection::vec((0usize..PORTS, 0usize..3, 0usize..70_000, any::<bool>()), 1..60),
        one_queue in any::<bool>(),
    ) {
        let mut rig = if one_queue { rig_of(2, [2, 1, 1]) } else { rig() };
        for (port, to, bytes, take) in packets {
            let port = PortId(port as u16);
            let src = if port.index() < 3 { pod_address(port.index())[0] } else { outside_address(1)[0] };
            let spec = Spec::new(src, pod_address(to)[0], transports()[1]);
            let spec = Spec { payload: vec![7; bytes.min(65_400)], ..spec };
            let mut frame = addressed(port, &spec).bytes();
            frame.resize(bytes.max(14), 0);
            let peers = &rig.ports[port.index()].peers;
            peers[bytes % peers.len()].inject(&frame);
            rig.sim.step();
            rig.check();
            if take {
                for (_, frame) in rig.collect() {
                    prop_assert!(frame.len() <= MTU_MAX + 18);
                }
            }
        }
    }
}
