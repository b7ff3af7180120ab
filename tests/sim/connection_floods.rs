//! Pods that fill the flow table with new flows, beside a client that opens a connection now and then: its
//! connections are established and survive. The rule is in `docs/decisions/conntrack-eviction.md`.

use std::collections::BTreeSet;
use std::time::Duration;

use palisade::dataplane::{
    Bandwidth, ConntrackSettings, DesiredState, Gateway, PodAttachment, PortKind, Settings, SimulatedPort,
    Simulation,
};
use palisade::ids::AttachmentId;
use palisade::net::mac::Mac;
use palisade::tables::PodName;

use crate::rig::model::{ACK, RST, SYN};

const FLOWS_MAX: usize = 1 << 15;
/// New flows of all hostile pods in one batch.
const FLOOD_PER_ROUND: usize = 64;
/// Rounds for one and a half times as many flows as the table has slots.
const ROUNDS: usize = 3 * FLOWS_MAX / 2 / FLOOD_PER_ROUND;
const SEED: u64 = 0x5eed_f100_d5ca_1e5e;
const CLIENT: usize = 0;
const SERVER: usize = 1;
const HOSTILE: usize = 2;
/// Connections that stay open to the end.
const KEPT: usize = 4;

/// Kinds of floods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flood {
    /// SYNs to the client, which sends no reply.
    Syn,
    /// UDP datagrams to the client.
    Udp,
    /// TCP segments of no connection, to the client.
    Middle,
    /// Established connections with another hostile pod. One pod after another begins.
    Handshakes,
}

/// Packet between two pods.
#[derive(Debug, Clone, Copy)]
struct Packet {
    from: usize,
    to: usize,
    ports: [u16; 2],
    /// Control bits, sequence and acknowledgement number of TCP; `None` for UDP.
    tcp: Option<(u8, u32, u32)>,
}

fn address(pod: usize) -> [u8; 4] {
    [10, 1, (pod >> 8) as u8, pod as u8]
}

fn mac(pod: usize) -> [u8; 6] {
    [2, 0, 0, 1, (pod >> 8) as u8, pod as u8]
}

/// Internet checksum of a whole number of words (RFC 1071).
fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let words = parts.iter().flat_map(|part| part.as_chunks::<2>().0);
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes()
}

impl Packet {
    fn frame(&self) -> Vec<u8> {
        let (protocol, mut segment) = match self.tcp {
            Some((flags, sequence, acknowledgement)) => {
                let numbers = [sequence.to_be_bytes(), acknowledgement.to_be_bytes()].concat();
                (6, [numbers, vec![0x50, flags, 0x40, 0, 0, 0, 0, 0]].concat())
            }
            None => (17, vec![0, 8, 0, 0]),
        };
        segment.splice(0..0, [self.ports[0].to_be_bytes(), self.ports[1].to_be_bytes()].concat());
        let (src, dst) = (address(self.from), address(self.to));
        let length = [0, segment.len() as u8];
        let sum = checksum(&[&src, &dst, &[0, protocol], &length, &segment]);
        let at = if protocol == 6 { 16 } else { 6 };
        segment[at..at + 2].copy_from_slice(&sum);
        let mut ip =
            [&[0x45, 0, 0, 20 + segment.len() as u8, 0, 0, 0x40, 0, 64, protocol, 0, 0], &src[..], &dst]
                .concat();
        let sum = checksum(&[&ip]);
        ip[10..12].copy_from_slice(&sum);
        [&Gateway::default().mac.0[..], &mac(self.from), &[8, 0], &ip, &segment].concat()
    }
}

/// Connection from client to server, and the number of its packets that have passed.
#[derive(Debug, Clone, Copy)]
struct Connection {
    port: u16,
    through: usize,
}

impl Connection {
    /// Packets of a handshake and of the server's data.
    const PACKETS: usize = 4;

    fn packet(&self, number: usize) -> Packet {
        let (from, tcp) = match number {
            0 => (CLIENT, (SYN, 100, 0)),
            1 => (SERVER, (SYN | ACK, 500, 101)),
            2 => (CLIENT, (ACK, 101, 501)),
            3 => (SERVER, (ACK, 501, 101)),
            _ => (CLIENT, (RST | ACK, 101, 501)),
        };
        let ports = if from == CLIENT { [self.port, 80] } else { [80, self.port] };
        Packet { from, to: CLIENT + SERVER - from, ports, tcp: Some(tcp) }
    }
}

struct Node {
    sim: Simulation,
    ports: Vec<SimulatedPort>,
    hostile: usize,
    /// Number of the next hostile flow.
    flows: u32,
}

impl Node {
    fn new(hostile: usize, tcp_pickup: bool) -> Node {
        let settings = Settings {
            frames_per_worker: 8192,
            huge_pages: false,
            conntrack: ConntrackSettings { flows_max: FLOWS_MAX, tcp_pickup, ..ConntrackSettings::default() },
            ..Settings::default()
        };
        let mut sim = Simulation::new(&settings).unwrap();
        let pods = HOSTILE + hostile;
        let ports: Vec<SimulatedPort> =
            (0..pods).map(|_| sim.open_port(PortKind::Pod, None, 1500).unwrap()).collect();
        let attachment = |pod: usize| PodAttachment {
            id: AttachmentId(pod as u32 + 1),
            pod: PodName::new("default", format!("pod{pod}")),
            port: ports[pod].id,
            addresses: vec![address(pod).into()],
            mac: Some(Mac(mac(pod))),
            bandwidth: Bandwidth::default(),
        };
        let pods = (0..pods).map(attachment).collect();
        sim.publish(DesiredState { fail_open: true, pods, ..DesiredState::default() });
        sim.step();
        Node { sim, ports, hostile, flows: 0 }
    }

    /// Injects packets in one batch; returns the ports of forwarded segments between client and server.
    fn send(&mut self, packets: &[Packet]) -> BTreeSet<[u16; 2]> {
        for packet in packets {
            assert!(
                self.ports[packet.from].peers[0].inject(&packet.frame()),
                "a frame is lost before the switch"
            );
        }
        while self.sim.step() {}
        let mut through = BTreeSet::new();
        for (pod, port) in self.ports.iter().enumerate() {
            for frame in port.peers[0].collect() {
                let port_at = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
                if pod < HOSTILE && frame[26..30] == address(CLIENT + SERVER - pod) {
                    through.insert([port_at(34), port_at(36)]);
                }
            }
        }
        through
    }

    /// Plays a round of a flood beside the packets of the client's connections.
    fn flood(&mut self, flood: Flood, round: usize, beside: &[Packet]) -> BTreeSet<[u16; 2]> {
        let active = match flood {
            Flood::Handshakes => (1 + 2 * self.hostile * round / ROUNDS).min(self.hostile),
            _ => self.hostile,
        };
        let first = |number: u32| {
            let from = HOSTILE + number as usize % active;
            let ports = [1024 + (number / active as u32 % 60_000) as u16, 443];
            // There are two hostile pods at least; each cooperates with its neighbour.
            let partner = HOSTILE + (number as usize % active + 1) % self.hostile;
            match flood {
                Flood::Syn => Packet { from, to: CLIENT, ports, tcp: Some((SYN, 7, 0)) },
                Flood::Udp => Packet { from, to: CLIENT, ports, tcp: None },
                Flood::Middle => Packet { from, to: CLIENT, ports, tcp: Some((ACK, 7, 7)) },
                Flood::Handshakes => Packet { from, to: partner, ports, tcp: Some((SYN, 7, 0)) },
            }
        };
        let firsts: Vec<Packet> = (self.flows..self.flows + FLOOD_PER_ROUND as u32).map(first).collect();
        self.flows += FLOOD_PER_ROUND as u32;
        let through = self.send(&[beside, &firsts].concat());
        if flood == Flood::Handshakes {
            let answer = |packet: &Packet| Packet {
                from: packet.to,
                to: packet.from,
                ports: [packet.ports[1], packet.ports[0]],
                tcp: Some((SYN | ACK, 9, 8)),
            };
            let last = |packet: &Packet| Packet { tcp: Some((ACK, 8, 10)), ..*packet };
            self.send(&firsts.iter().map(answer).collect::<Vec<_>>());
            self.send(&firsts.iter().map(last).collect::<Vec<_>>());
        }
        self.sim.now += Duration::from_millis(1);
        through
    }
}

impl Node {
    /// Checks what the flood costs: a flow of it that has no slot is evicted or refused, and nothing else is dropped but
    /// the answers of refused handshakes.
    fn assert_costs(&self, flood: Flood) {
        let counters = self.sim.counters();
        let (mut received, mut refused) = (0, 0);
        for port in &self.ports[HOSTILE..] {
            let port = &counters.ports[&port.id];
            let is_answer = |reason: &str| reason == "invalid-state" && flood == Flood::Handshakes;
            assert!(port.drops.keys().all(|reason| reason == "table-full" || is_answer(reason)), "{port:?}");
            received += port.received;
            refused += port.drops.get("table-full").copied().unwrap_or(0);
        }
        let evicted: u64 = counters.workers.values().map(|worker| worker.flows_evicted).sum();
        let opened = u64::from(self.flows);
        // Handshakes come again with the ports of flows that are there.
        let is_paid = flood == Flood::Handshakes || evicted + refused + FLOWS_MAX as u64 >= opened;
        assert!(is_paid, "{evicted} evicted, {refused} refused of {opened}");
        assert!(received >= opened, "{received} received of {opened}");
    }
}

/// Share of the client's connections that are established while the table is full and live until data has
/// passed.
fn set_up(flood: Flood, hostile: usize) -> f64 {
    let mut node = Node::new(hostile, flood == Flood::Middle);
    let (mut kept, mut open): (Vec<Connection>, Vec<Connection>) = (Vec::new(), Vec::new());
    let (mut tried, mut complete) = (0, 0);
    let mut random = SEED;
    for round in 0..ROUNDS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Each round has ports of its own, so that no connection meets one before it.
        let port = 1024 + (round * 80) as u16 + (random >> 58) as u16;
        open.push(Connection { port, through: 0 });
        let packets: Vec<Packet> =
            open.iter().map(|connection| connection.packet(connection.through)).collect();
        let through = node.flood(flood, round, &packets);
        let counts = round > ROUNDS / 2;
        let mut goes_on = Vec::new();
        for (mut connection, packet) in std::mem::take(&mut open).into_iter().zip(packets) {
            connection.through += usize::from(through.contains(&packet.ports));
            let is_over = !through.contains(&packet.ports) || connection.through > Connection::PACKETS;
            if connection.through == Connection::PACKETS && !is_over {
                complete += u32::from(counts);
                tried += u32::from(counts);
                if kept.len() < KEPT {
                    kept.push(connection);
                } else {
                    goes_on.push(connection); // Its next packet resets it.
                }
            } else if !is_over {
                goes_on.push(connection);
            } else if connection.through < Connection::PACKETS {
                tried += u32::from(counts);
            }
        }
        open = goes_on;
    }
    // The table is full.
    let flows = node.sim.flows_len();
    assert!(flows > FLOWS_MAX * 3 / 4, "{flows} flows");
    node.assert_costs(flood);
    let again: Vec<Packet> = kept.iter().map(|connection| connection.packet(3)).collect();
    assert_eq!(node.send(&again).len(), KEPT, "established connections live on");
    let part = f64::from(complete) / f64::from(tried);
    eprintln!(
        "{flood:?}, {hostile} hostile pods: {part:.3} of {tried} connections, {flows} flows (seed {SEED:#x})"
    );
    part
}

#[test]
fn connections_are_set_up_beside_floods_of_syns_at_the_same_pod() {
    for hostile in [2, 10, 250] {
        assert!(set_up(Flood::Syn, hostile) >= 0.9);
    }
}

#[test]
fn connections_are_set_up_beside_floods_of_datagrams_at_the_same_pod() {
    for hostile in [2, 10, 250] {
        assert!(set_up(Flood::Udp, hostile) >= 0.9);
    }
}

#[test]
fn connections_are_set_up_beside_pods_that_fill_the_table_with_established_ones() {
    for hostile in [2, 10, 250] {
        assert!(set_up(Flood::Handshakes, hostile) >= 0.9);
    }
}

#[test]
fn forged_segments_keep_nobody_from_opening_connections_where_connections_are_picked_up() {
    assert!(set_up(Flood::Middle, 2) >= 0.9);
}

#[test]
fn forged_segments_enter_no_flow_where_connections_are_not_picked_up() {
    let mut node = Node::new(2, false);
    (0..100).for_each(|round| _ = node.flood(Flood::Middle, round, &[]));
    assert_eq!(node.sim.flows_len(), 0);
    let drops: u64 = node.ports[HOSTILE..]
        .iter()
        .map(|port| node.sim.counters().ports[&port.id].drops["invalid-state"])
        .sum();
    assert_eq!(drops, 100 * FLOOD_PER_ROUND as u64);
}
