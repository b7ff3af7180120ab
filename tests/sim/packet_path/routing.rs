//! Gateway, routes and neighbours.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use palisade::dataplane::{DropReason, PortKind};

use crate::frames::{Spec, Transport, arp, check};
use crate::rig::assertions::{A, is_dropped, passes};
use crate::rig::{
    HOST, Rig, Setting, UPLINK, addressed, gateway_address, gateway_mac, ip, mac, node_address,
    outside_address, pod_address, router_address, switch_mac,
};

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
fn link_local_packets_do_not_leave_their_link() {
    let mut rig = Rig::new(1, &Setting::open());
    let transport = Transport::Udp { ports: [1, 2] };
    let to_link = Spec::new(pod_address(0)[1], ip("fe80::9"), transport);
    is_dropped(&mut rig, A, &to_link, DropReason::NoRoute);
    let of_link = Spec::new(ip("fe80::1"), ip("fe80::9"), transport);
    is_dropped(&mut rig, A, &of_link, DropReason::NoRoute);
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
