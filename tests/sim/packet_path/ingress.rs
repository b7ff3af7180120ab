//! Frames that a port does not take: spoofed sources, other destinations and VLANs, source routes, fragments without a
//! first one.

use std::collections::BTreeMap;
use std::time::Duration;

use palisade::dataplane::DropReason;

use crate::frames::{Spec, Transport};
use crate::rig::assertions::{A, B, is_dropped, passes, udp, udp_of};
use crate::rig::{
    HOST, Rig, Setting, UPLINK, addressed, gateway_address, gateway_mac, ip, mac, node_address,
    outside_address, pod_address, switch_mac,
};

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
