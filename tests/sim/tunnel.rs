//! Tunnels to the pods of other nodes.

use std::net::IpAddr;

use palisade::dataplane::{
    ConntrackSettings, DesiredState, DropReason, Settings, TunnelMode, TunnelSettings,
};
use palisade::ids::PortId;
use palisade::net::flow::Protocol;
use palisade::net::virtio_net::{GSO_TCPV4, GSO_TCPV6, NEEDS_CSUM, VirtioNet};

use crate::frames::checksum::ones_sum;
use crate::frames::{self, Spec, Transport};
use crate::random::{Random, histories};
use crate::rig::assertions::{A, CLIENT, flows, mute, serves};
use crate::rig::{
    HOST, MTU, PODS, Rig, Setting, UPLINK, addressed, forwarded, gateway_mac, ip, mac, node_address,
    outside_address, pod_address, switch_mac,
};
use crate::services::fixture::{PROTOCOLS, TARGET, becomes, packet, port, services_at, transport};

const PORT: u16 = 4789;
const VNI: u32 = 0x0001_0203;
/// Bytes of the Ethernet header with the tag of the uplink.
const L2: usize = 18;
/// Bytes that a tunnel adds, by family.
const ADDED: [usize; 2] = [50, 70];

/// Another node, behind the router of the uplink.
fn remote() -> [IpAddr; 2] {
    [ip("203.0.113.7"), ip("2001:db8:7::7")]
}

/// Pod of that node.
fn remote_pod(number: usize) -> [IpAddr; 2] {
    [ip(&format!("10.7.0.{number}")), ip(&format!("fd00:7::{number}"))]
}

fn setting(mode: TunnelMode) -> Setting {
    let tunnel = TunnelSettings { mode, port: PORT, vni: VNI, addresses: node_address().to_vec() };
    let prefixes = ["10.7.0.0/24", "fd00:7::/64"].map(|prefix| prefix.parse().unwrap());
    // A node on the link of the uplink, and one behind the same router as the first.
    let others = [("10.8.0.0/24", "192.0.2.8"), ("10.9.0.0/24", "203.0.113.9")];
    let others = others.map(|(prefix, node)| (prefix.parse().unwrap(), ip(node)));
    Setting {
        tunnel: Some(tunnel),
        nodes: prefixes.into_iter().zip(remote()).chain(others).collect(),
        ..Setting::open()
    }
}

fn settings() -> Settings {
    let conntrack = ConntrackSettings { flows_max: 4096, tcp_pickup: true, ..ConntrackSettings::default() };
    Settings { frames_per_worker: 8192, ..crate::rig::settings(1, conntrack) }
}

fn rig() -> Rig {
    Rig::with_settings(&settings(), &setting(TunnelMode::Auto))
}

/// Datagram that carries a packet in the frame of another node.
fn around(inner: &[u8], src: IpAddr, vni: u32, source_port: u16) -> Spec {
    let [_, a, b, c] = vni.to_be_bytes();
    let ethertype = if inner[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
    let ethernet = [&gateway_mac()[..], &[2, 0, 0, 0, 0xcc, 7], &ethertype].concat();
    let payload = [&[8, 0, 0, 0, a, b, c, 0], &ethernet[..], inner].concat();
    let own = node_address()[usize::from(src.is_ipv6())];
    Spec { payload, ..Spec::new(src, own, Transport::Udp { ports: [source_port, PORT] }) }
}

/// Frame of the other node with a packet.
fn from_remote(inner: &Spec) -> Spec {
    around(&inner.ip(), remote()[usize::from(inner.src.is_ipv6())], VNI, 50_000)
}

/// Checks a frame that has left by a tunnel to `to`, and returns its inner packet.
#[track_caller]
fn inner_of(frame: &[u8], to: IpAddr) -> Vec<u8> {
    let family = usize::from(to.is_ipv6());
    let (l4, inner) = (L2 + [20, 40][family], L2 + ADDED[family]);
    frames::check(frame).unwrap();
    let own = node_address()[family];
    // The header is the one that a builder of packets makes, but for the source port and the checksum of IPv4.
    let source_port = u16::from_be_bytes([frame[l4], frame[l4 + 1]]);
    assert!((49_152..61_000).contains(&source_port));
    let payload = frame[l4 + 8..].to_vec();
    let transport = Transport::Udp { ports: [source_port, PORT] };
    let spec = Spec { ttl: 65, payload: payload.clone(), ..Spec::new(own, to, transport) };
    let mut expected = forwarded(UPLINK, &spec);
    if family == 0 {
        expected[l4 + 6..l4 + 8].fill(0);
        assert_eq!(frame[l4 + 6..l4 + 8], [0, 0]);
    }
    assert_eq!(frame[..l4 + 8], expected[..l4 + 8]);
    assert_eq!(payload[..8], [8, 0, 0, 0, 1, 2, 3, 0]);
    assert_eq!(payload[8..14], gateway_mac());
    assert_eq!(payload[14..20], switch_mac(UPLINK));
    let ethertype = if frame[inner] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
    assert_eq!(payload[20..22], ethertype);
    frame[inner..].to_vec()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Sends a packet, which leaves by the tunnel.
#[track_caller]
fn leaves(rig: &mut Rig, from: PortId, sent: &Spec) {
    let before = rig.counters(from);
    let out = rig.send(from, sent);
    let drops = rig.drops_since(from, &before);
    let [(UPLINK, frame)] = out.as_slice() else { panic!("{out:?}, drops: {drops:?}") };
    let inner = inner_of(frame, remote()[usize::from(sent.src.is_ipv6())]);
    assert_eq!(inner, Spec { ttl: sent.ttl - 1, ..sent.clone() }.ip());
}

/// Sends a packet by the tunnel, which leaves by a port.
#[track_caller]
fn arrives(rig: &mut Rig, sent: &Spec, to: PortId) {
    let before = rig.counters(UPLINK);
    let out = rig.send(UPLINK, &from_remote(sent));
    assert_eq!(out, [(to, forwarded(to, sent))], "drops: {:?}", rig.drops_since(UPLINK, &before));
}

#[track_caller]
fn is_dropped(rig: &mut Rig, frame: Vec<u8>, reason: DropReason) {
    let before = rig.counters(UPLINK);
    assert_eq!(rig.send_on(0, UPLINK, &[frame]), []);
    let drops = rig.drops_since(UPLINK, &before);
    assert_eq!(drops, [(reason.name().to_owned(), 1)].into());
}

#[test]
fn pods_of_nodes_behind_a_router_are_reached_by_a_tunnel() {
    for family in [0, 1] {
        for by_pod in [true, false] {
            let mut rig = rig();
            let [own, other] = [pod_address(0)[family], remote_pod(2)[family]];
            for protocol in PROTOCOLS {
                for step in [0, 1, 2, 2, 1] {
                    let transport = transport(protocol, step, [CLIENT, TARGET]);
                    let is_out = (step == 1) != by_pod;
                    if is_out {
                        leaves(&mut rig, A, &packet(own, other, transport));
                    } else {
                        arrives(&mut rig, &packet(other, own, transport), A);
                    }
                }
            }
            assert_eq!(flows(&rig).len(), 3);
        }
        // A node on the link is reached without.
        if family == 0 {
            let mut rig = rig();
            let sent = packet(pod_address(0)[0], ip("10.8.0.2"), Transport::Udp { ports: [1, 2] });
            rig.sim.resolve(UPLINK, ip("192.0.2.8"), Some(palisade::net::mac::Mac(mac(UPLINK))));
            becomes(&mut rig, A, &sent, UPLINK, &sent);
            rig.publish(&setting(TunnelMode::Always));
            let out = rig.send(A, &sent);
            assert_eq!(inner_of(&out[0].1, ip("192.0.2.8")).len(), sent.ip().len());
        }
    }
}

#[test]
fn only_the_node_of_a_pod_may_send_from_it_and_only_by_the_tunnel() {
    for family in [0, 1] {
        let mut rig = rig();
        let [own, other, node] = [pod_address(0)[family], remote_pod(2)[family], remote()[family]];
        let datagram = |src, dst| packet(src, dst, Transport::Udp { ports: [CLIENT, TARGET] });
        let inner = datagram(other, own).ip();
        let sent = |spec: &Spec| addressed(UPLINK, spec).bytes();
        let is_refused = |rig: &mut Rig, spec: &Spec, reason| is_dropped(rig, sent(spec), reason);
        is_refused(&mut rig, &around(&inner, outside_address(5)[family], VNI, 1), DropReason::TunnelPeer);
        is_refused(&mut rig, &around(&inner, node, VNI + 1, 1), DropReason::TunnelPeer);
        // Pods of other nodes, of this one, the outside, other nodes, and this one.
        let strangers = [
            [ip("10.9.0.2"), ip("fd00:9::2")],
            pod_address(1),
            outside_address(5),
            [ip("203.0.113.9"), ip("2001:db8:7::9")],
            node_address(),
        ];
        for stranger in strangers {
            let spec = around(&datagram(stranger[family], own).ip(), node, VNI, 1);
            is_refused(&mut rig, &spec, DropReason::TunnelPeer);
        }
        is_refused(&mut rig, &datagram(other, own), DropReason::Spoofed);
        // No packet leaves a tunnel by an uplink.
        for dst in [remote_pod(3)[family], outside_address(5)[family], node] {
            is_refused(&mut rig, &around(&datagram(other, dst).ip(), node, VNI, 1), DropReason::NoRoute);
        }
        // Frames to others, and in other networks.
        let mut frame = sent(&from_remote(&datagram(other, own)));
        frame[5] ^= 1;
        is_dropped(&mut rig, frame.clone(), DropReason::NotForUs);
        frame[5] ^= 1;
        frame[15] ^= 1;
        is_dropped(&mut rig, frame, DropReason::Vlan);
        assert_eq!(flows(&rig), []);
        arrives(&mut rig, &datagram(other, own), A);
    }
}

#[test]
fn outer_headers_that_lie_are_refused() {
    for family in [0, 1] {
        let mut rig = rig();
        let inner =
            packet(remote_pod(2)[family], pod_address(0)[family], Transport::Udp { ports: [CLIENT, TARGET] });
        let whole = addressed(UPLINK, &from_remote(&inner)).bytes();
        let l4 = L2 + [20, 40][family];
        let changed = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut frame = whole.clone();
            change(&mut frame);
            if family == 0 {
                frame[L2 + 10..L2 + 12].fill(0);
                let checksum = !ones_sum(&frame[L2..l4]);
                frame[L2 + 10..L2 + 12].copy_from_slice(&checksum.to_be_bytes());
            }
            frame
        };
        let refused = |rig: &mut Rig, reason, change: &dyn Fn(&mut Vec<u8>)| {
            is_dropped(rig, changed(change), reason);
        };
        refused(&mut rig, DropReason::Malformed, &|frame| frame[l4 + 8] = 0);
        refused(&mut rig, DropReason::Malformed, &|frame| frame[l4 + 5] -= 1);
        refused(&mut rig, DropReason::UnknownEthertype, &|frame| frame[l4 + 16 + 12] = 0x88);
        refused(&mut rig, DropReason::UnknownEthertype, &|frame| {
            frame[l4 + 28..l4 + 30].copy_from_slice(&[0x81, 0]);
        });
        // The inner packet may not go on behind the outer one.
        refused(&mut rig, DropReason::Truncated, &|frame| {
            let at = if family == 0 { L2 + 3 } else { L2 + 5 };
            frame[at] -= 1;
            frame[l4 + 5] -= 1;
        });
        if family == 0 {
            refused(&mut rig, DropReason::Malformed, &|frame| frame[L2 + 6] = 0x20);
            let mut frame = whole.clone();
            frame[L2 + 10] ^= 1;
            is_dropped(&mut rig, frame, DropReason::BadIpChecksum);
        }
        for len in L2..whole.len() {
            assert_eq!(rig.send_on(0, UPLINK, &[whole[..len].to_vec()]), [], "{len}");
        }
        assert_eq!(flows(&rig), []);
        // Padding behind the outer packet, and a datagram without a checksum, as peers send it.
        let out = rig.send_on(
            0,
            UPLINK,
            &[changed(&|frame| {
                frame.extend([7; 9]);
                frame[l4 + 6..l4 + 8].fill(0);
            })],
        );
        assert_eq!(out, [(A, forwarded(A, &inner))]);
    }
}

/// Bytes of any kind: each frame has one verdict, and no memory is lost.
#[test]
fn random_frames_in_tunnels_have_one_verdict() {
    for seed in histories("tunnel", 0..20, 50) {
        let mut random = Random(seed.number);
        let mut rig = rig();
        for _ in 0..20 {
            let family = random.below(2) as usize;
            let inner = packet(
                remote_pod(random.below(4) as usize)[family],
                pod_address(random.below(3) as usize)[family],
                Transport::Udp { ports: [CLIENT, TARGET] },
            );
            let mut frame = addressed(UPLINK, &from_remote(&inner)).bytes();
            for _ in 0..random.below(4) {
                let at = random.below(frame.len() as u64) as usize;
                frame[at] = random.below(256) as u8;
            }
            frame.truncate(frame.len() - random.below(8) as usize);
            let before = rig.counters(UPLINK);
            let out = rig.send_on(0, UPLINK, &[frame]);
            // Nothing goes back but the error about a hop limit that has run out.
            let has_expired = rig.drops_since(UPLINK, &before).contains_key("ttl-exceeded");
            for (_, frame) in out.iter().filter(|(to, _)| *to == UPLINK) {
                assert!(has_expired, "seed {}: {frame:?} goes back", seed.number);
                inner_of(frame, remote()[family]);
            }
        }
    }
}

#[test]
fn a_hop_limit_that_runs_out_behind_a_tunnel_is_answered_by_the_tunnel() {
    for family in [0, 1] {
        let mut rig = rig();
        let [from, to] = [remote_pod(3)[family], pod_address(0)[family]];
        let inner = Spec { ttl: 1, ..packet(from, to, Transport::Udp { ports: [CLIENT, TARGET] }) };
        let out = rig.send(UPLINK, &from_remote(&inner));
        let [(UPLINK, frame)] = out.as_slice() else { panic!("{out:?}") };
        let answer = inner_of(frame, remote()[family]);
        let (icmp, time_exceeded) = if family == 0 { (20, 11) } else { (40, 3) };
        assert_eq!(answer[icmp..icmp + 2], [time_exceeded, 0]);
        assert!(answer.ends_with(&inner.ip()), "it quotes the packet");
    }
}

#[test]
fn a_pod_and_another_node_reach_each_other_by_the_tunnel_and_nodes_without() {
    for family in [0, 1] {
        let services = services_at(
            &palisade::tables::ServicePort { node_port: Some(30_080), ..port(&[0]) },
            &node_address(),
        );
        let mut rig = Rig::with_settings(
            &settings(),
            &Setting { services: Some(services), ..setting(TunnelMode::Auto) },
        );
        let [own, node, other, far] =
            [pod_address(0)[family], node_address()[family], remote_pod(2)[family], remote()[family]];
        let datagram = |src, dst, ports| packet(src, dst, Transport::Udp { ports });
        // A process of this node reaches a pod of the other one, which answers to the node.
        leaves(&mut rig, HOST, &datagram(node, other, [CLIENT, TARGET]));
        arrives(&mut rig, &datagram(other, node, [TARGET, CLIENT]), HOST);
        // A process of the other node reaches a pod here.
        arrives(&mut rig, &datagram(far, own, [CLIENT, TARGET]), A);
        leaves(&mut rig, A, &datagram(own, far, [TARGET, CLIENT]));
        leaves(&mut rig, A, &datagram(own, far, [CLIENT, TARGET]));
        arrives(&mut rig, &datagram(far, own, [TARGET, CLIENT]), A);
        // A Service of this node answers to the other node as it was asked.
        let asked = datagram(far, node, [CLIENT + 1, 30_080]);
        becomes(&mut rig, UPLINK, &asked, A, &datagram(far, own, [CLIENT + 1, TARGET]));
        let answer = datagram(own, far, [TARGET, CLIENT + 1]);
        becomes(&mut rig, A, &answer, UPLINK, &datagram(node, far, [30_080, CLIENT + 1]));
    }
}

#[test]
fn policy_sees_the_pods_and_answers_take_the_tunnel() {
    for family in [0, 1] {
        let mut rig = rig();
        let setting = setting(TunnelMode::Auto).with(0, serves(Protocol::UDP, TARGET)).with(1, mute());
        rig.sim.publish(DesiredState { rejects: true, ..setting.desired() });
        rig.sim.step();
        let [own, other] = [pod_address(0)[family], remote_pod(2)[family]];
        let datagram = |port| packet(other, own, Transport::Udp { ports: [CLIENT, port] });
        arrives(&mut rig, &datagram(TARGET), A);
        let sent = datagram(TARGET + 1);
        let out = rig.send(UPLINK, &from_remote(&sent));
        let [(UPLINK, frame)] = out.as_slice() else { panic!("{out:?}") };
        let answer = inner_of(frame, remote()[family]);
        // Destination unreachable, administratively prohibited.
        let l4 = [20, 40][family];
        assert_eq!(answer[l4..l4 + 2], [[3, 13], [1, 1]][family]);
        assert_eq!(answer[[16, 24][family]..l4], octets(other));
        // A pod that may open nothing.
        let before = rig.counters(PortId(1));
        let denied = packet(pod_address(1)[family], other, Transport::Udp { ports: [CLIENT, TARGET] });
        let out = rig.send(PortId(1), &denied);
        assert!(out.iter().all(|(to, _)| *to == PortId(1)), "{out:?}");
        assert_eq!(rig.drops_since(PortId(1), &before), [("policy-egress".to_owned(), 1)].into());
    }
}

#[test]
fn packets_that_do_not_fit_a_tunnel_are_reported_or_cut_into_fragments() {
    for family in [0, 1] {
        let mut rig = rig();
        let [own, other] = [pod_address(0)[family], remote_pod(2)[family]];
        let headers = [28, 48][family];
        let sized = |bytes: usize| Spec {
            payload: vec![5; bytes - headers],
            ..packet(own, other, Transport::Udp { ports: [CLIENT, TARGET] })
        };
        let mtu = usize::from(MTU) - ADDED[family];
        leaves(&mut rig, A, &sized(mtu));
        let out = rig.send(A, &sized(mtu + 1));
        let [(A, frame)] = out.as_slice() else { panic!("{out:?}") };
        let l4 = [34, 54][family];
        assert_eq!(frame[l4], [3, 2][family]);
        // The node takes no packet from its own address.
        let by_node = Spec { src: node_address()[family], ..sized(mtu + 1) };
        rig.sim.publish(DesiredState {
            gateway: palisade::dataplane::Gateway::default(),
            ..setting(TunnelMode::Auto).desired()
        });
        rig.sim.step();
        let out = rig.send(HOST, &by_node);
        let [(HOST, report)] = out.as_slice() else { panic!("{out:?}") };
        let src = if family == 0 { 26..30 } else { 22..38 };
        let sources = [octets(other), octets(ip("fe80::50:41ff:fe4c:1"))];
        assert!(sources.contains(&report[src.clone()].to_vec()), "{report:?}");
        assert_eq!(report[l4], [3, 2][family]);
        let told = u16::from_be_bytes([frame[l4 + 6], frame[l4 + 7]]);
        assert_eq!(usize::from(told), mtu);
        if family == 0 {
            let mut frame = addressed(A, &sized(mtu + 1)).bytes();
            frame[20] &= !0x40;
            frame[24..26].fill(0);
            let checksum = !ones_sum(&frame[14..34]);
            frame[24..26].copy_from_slice(&checksum.to_be_bytes());
            let out = rig.send_on(0, A, &[frame.clone()]);
            let inner: Vec<Vec<u8>> = out.iter().map(|(_, frame)| inner_of(frame, remote()[0])).collect();
            assert_eq!(inner.len(), 2);
            let carried: Vec<u8> = inner.iter().flat_map(|packet| packet[20..].to_vec()).collect();
            assert_eq!(carried, frame[34..]);
        }
    }
}

#[test]
fn packets_of_several_frames_take_a_tunnel_in_both_directions() {
    for family in [0, 1] {
        let mut rig = Rig::open(&settings(), &setting(TunnelMode::Auto), 9000, [1; PODS]);
        for port in [A, UPLINK] {
            (0..40).for_each(|_| drop(rig.send_on(0, port, &vec![vec![0; 60]; 32])));
        }
        let [own, other] = [pod_address(0)[family], remote_pod(2)[family]];
        let largest = 9000 - ADDED[family] - [28, 48][family];
        // Around the sizes that fill one frame, and two.
        let sizes = (3600..3860).step_by(7).chain((7500..7700).step_by(7)).chain([largest]);
        for bytes in sizes {
            let payload: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
            let of = |src, dst, ports| Spec {
                payload: payload.clone(),
                ..packet(src, dst, Transport::Udp { ports })
            };
            leaves(&mut rig, A, &of(own, other, [CLIENT, TARGET]));
            arrives(&mut rig, &of(other, own, [TARGET, CLIENT]), A);
        }
    }
}

#[test]
fn segments_of_taps_leave_each_with_outer_headers() {
    for family in [0, 1] {
        let mut rig = Rig::open_with_taps(&settings(), &setting(TunnelMode::Auto), MTU, [1; PODS], &[A]);
        (0..40).for_each(|_| drop(rig.send_on(0, A, &vec![vec![0; 60]; 32])));
        let (own, other) = (pod_address(0)[family], remote_pod(2)[family]);
        let flags = 16;
        let transport =
            Transport::Tcp { ports: [CLIENT, TARGET], flags, sequence: 7, acknowledgement: 9, window: 500 };
        let payload: Vec<u8> = (0..9000u32).map(|at| (at % 251) as u8).collect();
        let spec = Spec { payload: payload.clone(), ..Spec::new(own, other, transport) };
        let mut frame = addressed(A, &spec).bytes();
        frames::unfinish(&mut frame);
        let l4 = 14 + [20, 40][family];
        let gso_size = 1300;
        let header = VirtioNet {
            flags: NEEDS_CSUM,
            gso_type: [GSO_TCPV4, GSO_TCPV6][family],
            hdr_len: l4 as u16 + 20,
            gso_size,
            csum_start: l4 as u16,
            csum_offset: 16,
        };
        assert!(rig.ports[A.index()].peers[0].inject_with_header(header, &frame));
        rig.sim.step();
        rig.check();
        let out = rig.collect();
        let inner: Vec<Vec<u8>> = out.iter().map(|(_, frame)| inner_of(frame, remote()[family])).collect();
        let carried: Vec<u8> = inner.iter().flat_map(|packet| packet[[40, 60][family]..].to_vec()).collect();
        assert_eq!(inner.len(), payload.len().div_ceil(gso_size.into()));
        assert_eq!(carried, payload);
        // All of a flow have one source port, so that they stay in order.
        let at = L2 + [20, 40][family];
        assert!(out.iter().all(|(_, frame)| frame[at..at + 2] == out[0].1[at..at + 2]));
    }
}

#[test]
fn marks_of_congestion_pass_through_a_tunnel() {
    for family in [0, 1] {
        let mut rig = rig();
        let spec =
            packet(remote_pod(2)[family], pod_address(0)[family], Transport::Udp { ports: [CLIENT, TARGET] });
        let inner = L2 + ADDED[family];
        // Sets the field of an IP header, and the checksum of IPv4.
        let mark = |frame: &mut Vec<u8>, l3: usize, ecn: u8| {
            if family == 0 {
                frame[l3 + 1] |= ecn;
                frame[l3 + 10..l3 + 12].fill(0);
                let checksum = !ones_sum(&frame[l3..l3 + 20]);
                frame[l3 + 10..l3 + 12].copy_from_slice(&checksum.to_be_bytes());
            } else {
                frame[l3 + 1] |= ecn << 4;
            }
        };
        let field = |packet: &[u8]| if family == 0 { packet[1] & 3 } else { packet[1] >> 4 & 3 };
        for [sent, marked, seen] in [[2, 3, 3], [1, 3, 3], [2, 1, 1], [2, 2, 2], [0, 2, 0], [3, 2, 3]] {
            let mut frame = addressed(UPLINK, &from_remote(&spec)).bytes();
            mark(&mut frame, inner, sent);
            mark(&mut frame, L2, marked);
            let out = rig.send_on(0, UPLINK, &[frame]);
            let [(A, frame)] = out.as_slice() else { panic!("{out:?}") };
            frames::check(frame).unwrap();
            assert_eq!(field(&frame[14..]), seen, "{sent} {marked}");
        }
        let mut frame = addressed(UPLINK, &from_remote(&spec)).bytes();
        mark(&mut frame, L2, 3);
        is_dropped(&mut rig, frame, DropReason::TunnelCongestion);
        // The outer header of a packet that leaves has the field of the inner one.
        let reply =
            packet(pod_address(0)[family], remote_pod(2)[family], Transport::Udp { ports: [TARGET, CLIENT] });
        let mut frame = addressed(A, &reply).bytes();
        mark(&mut frame, 14, 2);
        let out = rig.send_on(0, A, &[frame]);
        assert_eq!([field(&out[0].1[L2..]), field(&out[0].1[inner..])], [2, 2]);
    }
}

/// Frames of the two fragments of a datagram of the other node's pod.
fn fragments_of(whole: &Spec) -> [Vec<u8>; 2] {
    let packet = whole.ip();
    let end = packet.len() - 20;
    [(0, 40, 0x2000), (40, end, 0)].map(|(from, to, more)| {
        let mut header = packet[..20].to_vec();
        header[2..4].copy_from_slice(&((20 + to - from) as u16).to_be_bytes());
        header[4..6].copy_from_slice(&[0, 9]);
        header[6..8].copy_from_slice(&((from / 8) as u16 | more).to_be_bytes());
        header[10..12].fill(0);
        let checksum = !ones_sum(&header);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        let inner = [header, packet[20 + from..20 + to].to_vec()].concat();
        addressed(UPLINK, &around(&inner, remote()[0], VNI, 50_000)).bytes()
    })
}

#[test]
fn fragments_of_a_datagram_arrive_by_a_tunnel_in_any_order() {
    let masqueraded = crate::masquerade::setting().masquerade;
    for (to, dst, masquerade) in [
        (A, pod_address(0)[0], None),
        (HOST, node_address()[0], None),
        // The address of the node is also that of masqueraded flows.
        (HOST, node_address()[0], masqueraded),
    ] {
        for first in [0, 1] {
            let settings = Settings { masquerade: Some(crate::masquerade::external()), ..settings() };
            let setting = Setting { masquerade: masquerade.clone(), ..setting(TunnelMode::Auto) };
            let mut rig = Rig::with_settings(&settings, &setting);
            let whole = Spec {
                payload: vec![7; 64],
                ..packet(remote_pod(2)[0], dst, Transport::Udp { ports: [CLIENT, TARGET] })
            };
            let fragments = fragments_of(&whole);
            let mut out = rig.send_on(0, UPLINK, &[fragments[first].clone()]);
            out.extend(rig.send_on(0, UPLINK, &[fragments[1 - first].clone()]));
            rig.sim.step();
            out.extend(rig.collect());
            assert_eq!(out.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [to, to]);
            let carried: Vec<u8> = out.iter().flat_map(|(_, frame)| frame[34..].to_vec()).collect();
            assert_eq!(carried, whole.ip()[20..]);
        }
    }
}
