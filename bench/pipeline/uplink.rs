//! Established flows by an uplink, in both directions: plain, masqueraded, and in a tunnel, beside flows between two pods.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use palisade::dataplane::{
    Bandwidth, ConntrackSettings, DesiredState, Gateway, Masquerade, MasqueradeSettings, NodeAttachment,
    PodAttachment, PortKind, Route, Settings, SimulatedPort, Simulation, TunnelMode, TunnelSettings,
};
use palisade::ids::AttachmentId;
use palisade::limits::PORT_BURST_FRAMES_MAX;
use palisade::net::flow::Protocol;
use palisade::net::mac::Mac;
use palisade::net::{ethernet, ipv4, ipv6, udp, vxlan};
use palisade::tables::PodName;
use serde_json::json;

use crate::common::frame::GATEWAY;
use crate::common::json_lines;
use crate::common::statistics::{median, rounded};

/// Frames of one batch: as many as a port gives at once.
const BATCH: usize = PORT_BURST_FRAMES_MAX;
/// Bytes of each packet's UDP payload: frames of 64 bytes over IPv4.
const PAYLOAD: usize = 22;
/// Flows to one port of the destination.
const SOURCE_PORTS: usize = 100;
const ROUTER: Mac = Mac([2, 0, 0, 0, 0, 9]);
const CARD: Mac = Mac([2, 0, 0, 0, 0, 8]);

/// Way of the flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Pods,
    Uplink,
    Masqueraded,
    Tunnel,
}

const WAYS: [(Way, &str); 4] = [
    (Way::Pods, "between-pods"),
    (Way::Uplink, "uplink"),
    (Way::Masqueraded, "masqueraded"),
    (Way::Tunnel, "tunnel"),
];

/// Compares the ways.
pub(crate) fn compare(flows: usize, rounds: usize) {
    for family in [4, 6] {
        let mut measured: Vec<Measured> =
            WAYS.iter().map(|(way, _)| Measured::new(*way, family, flows)).collect();
        for round in 0..=rounds {
            for measured in &mut measured {
                measured.round(round > 0);
            }
        }
        let mut plain = [0.0; 2];
        for (mut measured, (way, name)) in measured.into_iter().zip(WAYS) {
            for (at, direction) in ["out", "back"].into_iter().enumerate() {
                let ns = median(&mut measured.ns[at]);
                if way == Way::Pods {
                    plain[at] = ns;
                }
                json_lines::print(&json!({
                    "bench": "uplink",
                    "case": name,
                    "direction": direction,
                    "family": family,
                    "flows": flows,
                    "ns_per_packet": rounded(ns, 1),
                    "of_between_pods": rounded(ns / plain[at], 3),
                }));
            }
        }
    }
}

/// Node with the frames of its flows.
struct Measured {
    simulation: Simulation,
    /// Pods and the uplink.
    ports: [SimulatedPort; 3],
    /// Port, and frames, of each direction.
    directions: [(usize, Vec<Vec<u8>>); 2],
    at: [usize; 2],
    ns: [Vec<f64>; 2],
}

impl Measured {
    fn new(way: Way, family: u8, flows: usize) -> Measured {
        let ip = |v4: &str, v6: &str| -> IpAddr { if family == 4 { v4 } else { v6 }.parse().expect("one") };
        let (node, router) = (ip("192.0.2.1", "2001:db8::1"), ip("192.0.2.254", "2001:db8::fe"));
        let (pod, other) = (ip("10.0.0.2", "fd00::2"), ip("10.0.0.3", "fd00::3"));
        let (outside, far) = (ip("198.51.100.3", "2001:db8:1::3"), ip("10.7.0.3", "fd00:7::3"));
        let external = MasqueradeSettings { addresses: vec![node], ports: 61_000..=65_535 };
        let tunnel =
            TunnelSettings { mode: TunnelMode::Auto, port: vxlan::PORT, vni: 1, addresses: vec![node] };
        let conntrack = ConntrackSettings {
            // With two thirds of the slots taken, two full buckets of a flow are met now and then.
            flows_max: flows * 2,
            pod_quota_percent: 100,
            ..ConntrackSettings::default()
        };
        let mut simulation = Simulation::new(&Settings {
            frames_per_worker: 4096,
            conntrack,
            masquerade: (way == Way::Masqueraded).then(|| external.clone()),
            ..Settings::default()
        })
        .expect("memory for the switch");
        let mut open = |kind| simulation.open_port(kind, None, 1500).expect("a port");
        let pods = [open(PortKind::Pod), open(PortKind::Pod)];
        let host = open(PortKind::Pod);
        let uplink = simulation.open_uplink(CARD, None, 1500).expect("an uplink");
        let attach = |(number, address): (usize, IpAddr)| PodAttachment {
            id: AttachmentId(number as u32 + 1),
            pod: PodName::new("default", format!("pod{number}")),
            port: pods[number].id,
            addresses: vec![address],
            mac: Some(mac(number)),
            bandwidth: Bandwidth::default(),
        };
        let route = |prefix: IpAddr, length, next_hop, node| Route {
            prefix: ipnet::IpNet::new(prefix, length).expect("a length").trunc(),
            port: uplink.id,
            next_hop: Some(next_hop),
            node,
        };
        let peer_node = ip("203.0.113.7", "2001:db8:7::7");
        simulation.publish(DesiredState {
            fail_open: true,
            gateway: Gateway { mac: GATEWAY, ..Gateway::default() },
            pods: [pod, other].into_iter().enumerate().map(attach).collect(),
            node: Some(NodeAttachment { port: host.id, addresses: vec![node], mac: Some(mac(2)) }),
            routes: vec![route(outside, 0, router, false), route(far, 24, peer_node, true)],
            masquerade: (way == Way::Masqueraded).then(|| {
                Arc::new(Masquerade { external, except: [].into(), waits: false, serves_outside: false })
            }),
            tunnel: (way == Way::Tunnel).then_some(tunnel),
            ..DesiredState::default()
        });
        simulation.resolve(uplink.id, router, Some(ROUTER));
        simulation.step();
        let to = match way {
            Way::Pods => other,
            Way::Uplink | Way::Masqueraded => outside,
            Way::Tunnel => far,
        };
        let out = (0..flows).map(|flow| datagram(pod, to, flow)).collect();
        let [first, second] = pods;
        let back = if way == Way::Pods { 1 } else { 2 };
        let mut measured = Measured {
            simulation,
            ports: [first, second, uplink],
            directions: [(0, out), (back, Vec::new())],
            at: [0; 2],
            ns: Default::default(),
        };
        measured.establish(way);
        measured
    }

    /// Sends each packet, and the answer that its frame becomes.
    fn establish(&mut self, way: Way) {
        let out = self.directions[0].1.clone();
        let mut answers = Vec::new();
        for batch in out.chunks(BATCH) {
            batch.iter().for_each(|frame| assert!(self.ports[0].peers[0].inject(frame)));
            self.simulation.step_worker(0);
            let sent = self.ports[self.directions[1].0].peers[0].collect();
            assert_eq!(sent.len(), batch.len(), "{:?}", self.simulation.counters().ports);
            answers.extend(sent.into_iter().map(|frame| answer(frame, way == Way::Tunnel)));
        }
        self.directions[1].1 = answers;
        self.round(false);
    }

    /// Sends the packets of all flows once in each direction.
    fn round(&mut self, counts: bool) {
        for direction in [0, 1] {
            let (from, to) = (self.directions[direction].0, self.directions[1 - direction].0);
            let frames = &self.directions[direction].1;
            let mut times = Vec::with_capacity(frames.len().div_ceil(BATCH));
            for _ in 0..frames.len().div_ceil(BATCH) {
                for _ in 0..BATCH {
                    // Consecutive packets are of flows far from each other.
                    self.at[direction] = (self.at[direction] + 7919) % frames.len();
                    assert!(self.ports[from].peers[0].inject(&frames[self.at[direction]]));
                }
                let start = Instant::now();
                self.simulation.step_worker(0);
                let took = start.elapsed();
                self.simulation.now += took;
                times.push(took.as_nanos() as f64 / BATCH as f64);
                let passed = self.ports[to].peers[0].drain_with(|_| ());
                assert_eq!(passed, BATCH, "{:?}", self.simulation.counters().ports);
            }
            if counts {
                self.ns[direction].push(median(&mut times));
            }
        }
    }
}

fn mac(number: usize) -> Mac {
    Mac([2, 0, 0, 1, 0, number as u8])
}

/// Frame of the first pod with a datagram of a flow, without a checksum over IPv4.
fn datagram(src: IpAddr, dst: IpAddr, flow: usize) -> Vec<u8> {
    let ports = [1024 + flow % SOURCE_PORTS, 5000 + flow / SOURCE_PORTS].map(|port| port as u16);
    let bytes = udp::HEADER_BYTES + PAYLOAD;
    let mut frame = vec![0; ethernet::HEADER_BYTES];
    ethernet::set_addresses(&mut frame, GATEWAY, mac(0));
    let (ethertype, header) = match src {
        IpAddr::V4(_) => (ethernet::IPV4, ipv4::HEADER_BYTES),
        IpAddr::V6(_) => (ethernet::IPV6, ipv6::HEADER_BYTES),
    };
    frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
    let mut packet = vec![0; header + bytes];
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            ipv4::write(&mut packet, src.to_bits(), dst.to_bits(), Protocol::UDP, bytes, 64);
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            ipv6::write(&mut packet, src.to_bits(), dst.to_bits(), Protocol::UDP, bytes, 64);
        }
        _ => unreachable!("addresses of one family"),
    }
    packet[header..][..2].copy_from_slice(&ports[0].to_be_bytes());
    packet[header + 2..][..2].copy_from_slice(&ports[1].to_be_bytes());
    packet[header + 4..][..2].copy_from_slice(&(bytes as u16).to_be_bytes());
    if src.is_ipv6() {
        let sum = palisade::net::checksum::pseudo_header_of(src, dst, Protocol::UDP, bytes);
        let checksum = sum.add_bytes(&packet[header..]).finish();
        packet[header + udp::CHECKSUM_OFFSET..][..2].copy_from_slice(&checksum.to_be_bytes());
    }
    frame.extend(packet);
    frame
}

/// Frame that answers one which has left: its ends change places, which leaves all checksums as they are.
fn answer(mut frame: Vec<u8>, is_tunnelled: bool) -> Vec<u8> {
    let (to, from) = frame.split_at_mut(6);
    to.swap_with_slice(&mut from[..6]);
    let inner = swap_addresses(&mut frame, ethernet::HEADER_BYTES);
    let l4 = if is_tunnelled {
        swap_addresses(&mut frame, inner + udp::HEADER_BYTES + vxlan::HEADER_BYTES + ethernet::HEADER_BYTES)
    } else {
        inner
    };
    let (src, dst) = frame[l4..].split_at_mut(2);
    src.swap_with_slice(&mut dst[..2]);
    frame
}

/// Swaps the addresses of the IP header at an offset. Returns its end.
fn swap_addresses(frame: &mut [u8], l3: usize) -> usize {
    let (start, bytes, header) =
        if frame[l3] >> 4 == 4 { (12, 4, ipv4::HEADER_BYTES) } else { (8, 16, ipv6::HEADER_BYTES) };
    let (src, dst) = frame[l3 + start..].split_at_mut(bytes);
    src.swap_with_slice(&mut dst[..bytes]);
    l3 + header
}
