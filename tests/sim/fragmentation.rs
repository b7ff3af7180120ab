//! IPv4 packets that a router may fragment, towards a smaller MTU.

use palisade::dataplane::Settings;
use palisade::ids::PortId;
use palisade::limits::MTU_MAX;
use palisade::net::virtio_net::{NEEDS_CSUM, VirtioNet};

use crate::frames::checksum::ones_sum;
use crate::frames::{self, Spec, Transport};
use crate::random::{Random, histories};
use crate::rig::{
    PODS, Rig, SMALL_MTU, Setting, UPLINK, addressed, forwarded, outside_address, pod_address, small_table,
};

const A: PortId = PortId(0);
const B: PortId = PortId(1);
const SMALL: PortId = PortId(2);

/// Bytes of the Ethernet header.
const ETHERNET: usize = 14;
/// Options: router alert, which each fragment has, and one that the first fragment alone has.
const OPTIONS: [u8; 8] = [148, 4, 0, 0, 94, 4, 5, 6];

fn rig_of(taps: &[PortId]) -> Rig {
    rig_with_uplink(MTU_MAX as u16, taps)
}

fn rig_with_uplink(mtu: u16, taps: &[PortId]) -> Rig {
    let settings = Settings {
        cores: vec![0],
        frames_per_worker: 16384,
        huge_pages: false,
        conntrack: small_table(),
        ..Settings::default()
    };
    let mtus = [MTU_MAX as u16, mtu];
    let mut rig = Rig::open_with_uplink(&settings, &Setting::open(), mtus, [1; PODS], taps);
    // Ports get more frames to receive into once they have received many.
    for port in [A, B, UPLINK] {
        (0..40).for_each(|_| drop(rig.send_on(0, port, &vec![vec![0; 60]; 32])));
    }
    rig
}

/// Datagram of a pod with so many bytes behind the IP header.
fn datagram(from: usize, to: std::net::IpAddr, bytes: usize) -> Spec {
    let payload = (0..bytes - 8).map(|at| (at % 251) as u8).collect();
    Spec { payload, ..Spec::new(pod_address(from)[0], to, Transport::Udp { ports: [1000, 53] }) }
}

/// Offset of the IP header of a frame.
fn l3(frame: &[u8]) -> usize {
    if frame[12..14] == [0x81, 0] { ETHERNET + 4 } else { ETHERNET }
}

/// Changes the IPv4 header of a frame, and its checksum.
fn change(frame: &mut Vec<u8>, change: impl FnOnce(&mut Vec<u8>, usize)) {
    let l3 = l3(frame);
    change(frame, l3);
    let end = l3 + usize::from(frame[l3] & 0xf) * 4;
    frame[l3 + 10..l3 + 12].fill(0);
    let checksum = !ones_sum(&frame[l3..end]);
    frame[l3 + 10..l3 + 12].copy_from_slice(&checksum.to_be_bytes());
}

/// Frame that a router may fragment.
fn fragmentable(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    change(&mut frame, |frame, l3| frame[l3 + 6] &= !0x40);
    frame
}

fn with_options(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    change(&mut frame, |frame, l3| {
        frame.splice(l3 + 20..l3 + 20, OPTIONS);
        frame[l3] += OPTIONS.len() as u8 / 4;
        let total = (frame.len() - l3) as u16;
        frame[l3 + 2..l3 + 4].copy_from_slice(&total.to_be_bytes());
    });
    frame
}

/// The packet that fragments make, which a receiver joins in any order; each is a valid packet of at most `mtu` bytes.
#[track_caller]
fn joined(fragments: &[Vec<u8>], mtu: u16) -> Vec<u8> {
    let l3 = l3(&fragments[0]);
    let mut first = None;
    let (mut parts, mut total) = (std::collections::BTreeMap::new(), None);
    for fragment in fragments {
        let header = &fragment[l3..l3 + usize::from(fragment[l3] & 0xf) * 4];
        assert_eq!(ones_sum(header), 0xffff, "header checksum");
        let word = |at: usize| usize::from(u16::from_be_bytes([header[at], header[at + 1]]));
        assert!(word(2) == fragment.len() - l3 && word(2) <= usize::from(mtu), "{} bytes", word(2));
        let (offset, body) = ((word(6) & 0x1fff) * 8, &fragment[l3 + header.len()..]);
        if offset == 0 {
            first = Some(fragment[..l3 + header.len()].to_vec());
        }
        if word(6) & 0x2000 == 0 {
            assert_eq!(total.replace(offset + body.len()), None, "one last fragment");
        } else {
            assert!(body.len() % 8 == 0, "whole units");
        }
        assert!(parts.insert(offset, body.to_vec()).is_none());
    }
    let mut packet = first.expect("a first fragment");
    for (offset, body) in parts {
        assert_eq!(offset, packet.len() - l3 - usize::from(packet[l3] & 0xf) * 4, "no gap, no overlap");
        packet.extend(body);
    }
    change(&mut packet, |packet, l3| {
        let bytes = (packet.len() - l3) as u16;
        packet[l3 + 2..l3 + 4].copy_from_slice(&bytes.to_be_bytes());
        packet[l3 + 6..l3 + 8].fill(0);
    });
    packet
}

/// Sends a frame, whose fragments leave by one port.
#[track_caller]
fn fragments_of(rig: &mut Rig, from: PortId, frame: &[u8], to: PortId) -> Vec<Vec<u8>> {
    let before = rig.counters(from);
    let out = rig.send_on(0, from, &[frame.to_vec()]);
    let drops = rig.drops_since(from, &before);
    assert!(!out.is_empty() && out.iter().all(|(port, _)| *port == to), "{drops:?}");
    out.into_iter().map(|(_, frame)| frame).collect()
}

#[test]
fn datagrams_arrive_in_fragments_of_the_mtu() {
    for taps in [&[][..], &[A], &[SMALL]] {
        let mut rig = rig_of(taps);
        for bytes in [581, 588, 1152, 1153, 3000, 9000, 30_001, 65_000] {
            let spec = datagram(0, pod_address(2)[0], bytes);
            let sent = fragmentable(&addressed(A, &spec).bytes());
            let seen = fragmentable(&forwarded(SMALL, &spec));
            let fragments = fragments_of(&mut rig, A, &sent, SMALL);
            assert_eq!(fragments.len(), bytes.div_ceil(576), "{bytes} bytes");
            assert!(joined(&fragments, SMALL_MTU) == seen, "{bytes} bytes");
            // The switch finishes a checksum that the sender has left to its interface.
            let mut unfinished = sent;
            frames::unfinish(&mut unfinished);
            let fragments = fragments_of(&mut rig, A, &unfinished, SMALL);
            assert!(joined(&fragments, SMALL_MTU) == seen, "{bytes} bytes, unfinished");
        }
        rig.check();
    }
}

#[test]
fn options_that_are_copied_are_in_each_fragment() {
    let mut rig = rig_of(&[]);
    let spec = datagram(0, pod_address(2)[0], 2000);
    let sent = with_options(&fragmentable(&addressed(A, &spec).bytes()));
    let fragments = fragments_of(&mut rig, A, &sent, SMALL);
    let options = |fragment: &Vec<u8>| {
        fragment[ETHERNET + 20..ETHERNET + usize::from(fragment[ETHERNET] & 0xf) * 4].to_vec()
    };
    let found: Vec<Vec<u8>> = fragments.iter().map(options).collect();
    assert_eq!(found[0], OPTIONS);
    assert!(found.len() > 3 && found[1..].iter().all(|options| *options == OPTIONS[..4]), "{found:?}");
    let seen = with_options(&fragmentable(&forwarded(SMALL, &spec)));
    assert!(joined(&fragments, SMALL_MTU) == seen);
}

#[test]
fn fragments_are_cut_again() {
    for seed in histories("fragments of fragments", 0..20, 10) {
        let mut random = Random(seed.number);
        let mut rig = rig_of(&[]);
        let bytes = 700 + random.below(30_000) as usize;
        let spec = datagram(0, pod_address(2)[0], bytes);
        let sent = fragmentable(&addressed(A, &spec).bytes());
        let (headers, body) = sent.split_at(ETHERNET + 20);
        let (mut at, mut fragments) = (0, Vec::new());
        while at < body.len() {
            let most = 8 * (1 + random.below(400) as usize);
            let end = (at + most).min(body.len());
            let mut fragment = [headers, &body[at..end]].concat();
            change(&mut fragment, |fragment, l3| {
                let total = (fragment.len() - l3) as u16;
                fragment[l3 + 2..l3 + 4].copy_from_slice(&total.to_be_bytes());
                let more = if end < body.len() { 0x2000 } else { 0 };
                fragment[l3 + 6..l3 + 8].copy_from_slice(&((at / 8) as u16 | more).to_be_bytes());
            });
            fragments.extend(fragments_of(&mut rig, A, &fragment, SMALL));
            at = end;
        }
        assert!(joined(&fragments, SMALL_MTU) == fragmentable(&forwarded(SMALL, &spec)));
        rig.check();
    }
}

#[test]
fn packets_that_no_router_may_fragment_are_reported() {
    let mut rig = rig_of(&[]);
    let spec = datagram(0, pod_address(2)[0], 2000);
    let before = rig.counters(A);
    // The frame of the specification has Don't Fragment.
    assert!(matches!(rig.send(A, &spec).as_slice(), [(A, _)]));
    assert_eq!(rig.drops_since(A, &before), [("too-big".to_owned(), 1)].into());
    let mut expiring = fragmentable(&addressed(A, &Spec { ttl: 1, ..spec }).bytes());
    assert!(matches!(rig.send_on(0, A, &[std::mem::take(&mut expiring)]).as_slice(), [(A, _)]));
    assert_eq!(rig.drops_since(A, &before)["ttl-exceeded"], 1);
}

#[test]
fn each_fragment_leaves_by_an_uplink_with_its_tag() {
    for taps in [&[][..], &[A]] {
        let mut rig = rig_with_uplink(SMALL_MTU, taps);
        for bytes in [581, 1153, 9000, 65_000] {
            let spec = datagram(0, outside_address(1)[0], bytes);
            let sent = fragmentable(&addressed(A, &spec).bytes());
            let fragments = fragments_of(&mut rig, A, &sent, UPLINK);
            assert!(fragments.len() > 1, "{bytes} bytes");
            let headers = &forwarded(UPLINK, &spec)[..ETHERNET + 4];
            assert!(fragments.iter().all(|fragment| fragment[..ETHERNET + 4] == *headers), "{bytes} bytes");
            let seen = fragmentable(&forwarded(UPLINK, &spec));
            assert!(joined(&fragments, SMALL_MTU) == seen, "{bytes} bytes");
        }
        rig.check();
    }
}

#[test]
fn datagrams_that_come_by_an_uplink_are_cut_for_their_pod() {
    let mut rig = rig_of(&[]);
    let outside = outside_address(1)[0];
    let spec = Spec { src: outside, dst: pod_address(2)[0], ..datagram(0, outside, 5000) };
    let sent = fragmentable(&addressed(UPLINK, &spec).bytes());
    let fragments = fragments_of(&mut rig, UPLINK, &sent, SMALL);
    assert!(joined(&fragments, SMALL_MTU) == fragmentable(&forwarded(SMALL, &spec)));
}

#[test]
fn many_large_datagrams_take_no_frame_from_other_ports() {
    let mut rig = rig_of(&[]);
    let large = fragmentable(&addressed(A, &datagram(0, pod_address(2)[0], 65_000)).bytes());
    let before = rig.counters(A);
    for _ in 0..30 {
        drop(rig.send_on(0, A, &vec![large.clone(); 8]));
        // Another pod's packets pass.
        let small = Spec::new(pod_address(1)[0], pod_address(0)[0], Transport::Udp { ports: [7, 8] });
        let mut out = rig.send(B, &small);
        // Fragments wait for the receiver.
        out.retain(|(port, _)| *port != SMALL);
        assert!(out == [(A, forwarded(A, &small))], "{} frames", out.len());
        rig.check();
    }
    let drops = rig.drops_since(A, &before);
    assert!(drops.keys().all(|reason| reason == "tx-full"), "{drops:?}");
    assert!(rig.counters(A).forwarded > before.forwarded);
    // Policy is asked once, about the datagram.
    let rig_flows = rig.sim.flows_len();
    assert_eq!(rig_flows, 2);
}

#[test]
fn a_datagram_of_a_tap_that_has_no_segments_is_cut() {
    let mut rig = rig_of(&[A, SMALL]);
    let spec = datagram(0, pod_address(2)[0], 4000);
    let mut sent = fragmentable(&addressed(A, &spec).bytes());
    frames::unfinish(&mut sent);
    let header = VirtioNet { flags: NEEDS_CSUM, csum_start: 34, csum_offset: 6, ..VirtioNet::default() };
    assert!(rig.ports[A.index()].peers[0].inject_with_header(header, &sent));
    rig.sim.step();
    let seen = fragmentable(&forwarded(SMALL, &spec));
    let fragments: Vec<Vec<u8>> = rig.collect().into_iter().map(|(_, frame)| frame).collect();
    assert!(joined(&fragments, SMALL_MTU) == seen);
}
