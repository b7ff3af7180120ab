//! Pods that fill the flow table with new flows, beside a client that opens a connection now and then, directly or by a Service:
//! its connections are established and survive. The rule is in `docs/decisions/conntrack-eviction.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use palisade::dataplane::{
    Bandwidth, ConntrackSettings, DesiredState, Gateway, PodAttachment, PortKind, Settings, SimulatedPort,
    Simulation,
};
use palisade::ids::AttachmentId;
use palisade::net::flow::Protocol;
use palisade::net::mac::Mac;
use palisade::tables::{PodName, ServicePort, ServicePortName, ServiceSet, ServiceTable};

use crate::frames::{Spec, Transport};
use crate::rig::model::{ACK, RST, SYN};

const SEED: u64 = 0x5eed_f100_d5ca_1e5e;
const CLIENT: usize = 0;
const SERVER: usize = 1;
const HOSTILE: usize = 2;
/// Port of all servers and Services.
const PORT: u16 = 80;
/// Connections that stay open to the end.
const KEPT: usize = 4;

/// Kinds of floods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flood {
    /// SYNs to the client, which sends no reply.
    Syn,
    /// SYNs to the client, each followed by a reset.
    Reset,
    /// UDP datagrams to the client.
    Udp,
    /// TCP segments of no connection, to the client.
    Middle,
    /// Established connections with another hostile pod. One pod after another begins.
    Handshakes,
}

/// Node with a flood.
#[derive(Debug, Clone, Copy)]
struct Scene {
    flood: Flood,
    /// Number of hostile pods, two at least.
    hostile: usize,
    /// Slots of the flow table.
    slots: usize,
    /// New flows of all hostile pods in one batch.
    batch: usize,
    workers: usize,
    ports: PortKind,
    is_v6: bool,
    /// Connections to servers go by Services, those of the flood too.
    by_service: bool,
    /// Rounds from a connection of the client to its next one.
    every: usize,
}

impl Scene {
    fn of(flood: Flood, hostile: usize) -> Scene {
        Scene {
            flood,
            hostile,
            slots: 1 << 14,
            batch: 64,
            workers: 1,
            ports: PortKind::Pod,
            is_v6: false,
            by_service: false,
            every: 1,
        }
    }

    /// Rounds for one and a half times as many flows as the table has slots.
    fn rounds(&self) -> usize {
        3 * self.slots / 2 / self.batch
    }

    fn address(&self, pod: usize) -> IpAddr {
        self.numbered(1, pod)
    }

    /// Virtual address of the Service of a pod.
    fn service(&self, pod: usize) -> IpAddr {
        self.numbered(96, pod)
    }

    fn numbered(&self, net: u8, pod: usize) -> IpAddr {
        if self.is_v6 {
            IpAddr::from([0xfd00, 0, 0, u16::from(net), 0, 0, 0, pod as u16])
        } else {
            IpAddr::from([10, net, (pod >> 8) as u8, pod as u8])
        }
    }

    /// Address that connections to a pod are opened to.
    fn front_end(&self, pod: usize) -> IpAddr {
        if self.by_service { self.service(pod) } else { self.address(pod) }
    }

    fn services(&self) -> Arc<ServiceSet> {
        let port = |pod: usize| {
            let backends = vec![SocketAddr::new(self.address(pod), PORT)];
            let name = ServicePortName {
                namespace: "default".to_owned(),
                name: format!("service{pod}"),
                port: None,
                protocol: Protocol::TCP,
            };
            let port = ServicePort {
                cluster: vec![SocketAddr::new(self.service(pod), PORT)],
                internal_backends: backends,
                ..ServicePort::default()
            };
            (name, port)
        };
        let ports = (0..HOSTILE + self.hostile).map(port).collect();
        Arc::new(ServiceSet::new(&ServiceTable { node_addresses: Vec::new(), ports }).unwrap())
    }

    fn settings(&self) -> Settings {
        let tcp_pickup = self.flood == Flood::Middle;
        Settings {
            cores: vec![0; self.workers],
            frames_per_worker: 16384,
            huge_pages: false,
            conntrack: ConntrackSettings {
                flows_max: self.slots,
                tcp_pickup,
                ..ConntrackSettings::default()
            },
            ..Settings::default()
        }
    }
}

fn mac(pod: usize) -> [u8; 6] {
    [2, 0, 0, 1, (pod >> 8) as u8, pod as u8]
}

/// Packet of a pod.
#[derive(Debug, Clone, Copy)]
struct Packet {
    from: usize,
    to: IpAddr,
    ports: [u16; 2],
    /// Control bits, sequence and acknowledgement number of TCP; `None` for UDP.
    tcp: Option<(u8, u32, u32)>,
}

impl Packet {
    fn frame(&self, scene: &Scene) -> Vec<u8> {
        let transport = match self.tcp {
            Some((flags, sequence, acknowledgement)) => {
                Transport::Tcp { ports: self.ports, flags, sequence, acknowledgement, window: 1000 }
            }
            None => Transport::Udp { ports: self.ports },
        };
        let spec = Spec::new(scene.address(self.from), self.to, transport);
        let (src_mac, dst_mac) = (mac(self.from), Gateway::default().mac.0);
        Spec { src_mac, dst_mac, payload: Vec::new(), ..spec }.bytes()
    }
}

/// TCP segment that has arrived at a pod.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    at: usize,
    from: IpAddr,
    ports: [u16; 2],
    flags: u8,
}

impl Arrival {
    fn of(at: usize, frame: &[u8]) -> Option<Arrival> {
        let is_v6 = frame[12..14] == [0x86, 0xdd];
        let l4 = if is_v6 { 54 } else { 34 };
        let protocol = if is_v6 { frame[20] } else { frame[23] };
        let from = if is_v6 {
            IpAddr::from(<[u8; 16]>::try_from(&frame[22..38]).unwrap())
        } else {
            IpAddr::from(<[u8; 4]>::try_from(&frame[26..30]).unwrap())
        };
        let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let ports = [word(l4), word(l4 + 2)];
        (protocol == 6).then(|| Arrival { at, from, ports, flags: frame[l4 + 13] })
    }
}

/// Connection from client to server.
#[derive(Debug, Clone, Copy)]
struct Connection {
    port: u16,
    /// Number of its packets that have passed.
    through: usize,
    /// Whether its first SYN was in vain.
    is_late: bool,
}

impl Connection {
    /// Packets of a handshake and of the server's data.
    const PACKETS: usize = 4;

    fn packet(&self, number: usize, scene: &Scene) -> Packet {
        let (from, numbers) = match number {
            0 => (CLIENT, (SYN, 100, 0)),
            1 => (SERVER, (SYN | ACK, 500, 101)),
            2 => (CLIENT, (ACK, 101, 501)),
            3 => (SERVER, (ACK, 501, 101)),
            _ => (CLIENT, (RST | ACK, 101, 501)),
        };
        if from == CLIENT {
            Packet { from, to: scene.front_end(SERVER), ports: [self.port, PORT], tcp: Some(numbers) }
        } else {
            Packet { from, to: scene.address(CLIENT), ports: [PORT, self.port], tcp: Some(numbers) }
        }
    }
}

struct Node {
    scene: Scene,
    sim: Simulation,
    ports: Vec<SimulatedPort>,
    /// Number of the next hostile flow.
    flows: u32,
}

impl Node {
    fn new(scene: Scene) -> Node {
        let mut sim = Simulation::new(&scene.settings()).unwrap();
        let pods = HOSTILE + scene.hostile;
        let ports: Vec<SimulatedPort> =
            (0..pods).map(|_| sim.open_port(scene.ports, None, 1500).unwrap()).collect();
        let attachment = |pod: usize| PodAttachment {
            id: AttachmentId(pod as u32 + 1),
            pod: PodName::new("default", format!("pod{pod}")),
            port: ports[pod].id,
            addresses: vec![scene.address(pod)],
            mac: Some(Mac(mac(pod))),
            bandwidth: Bandwidth::default(),
        };
        let pods = (0..pods).map(attachment).collect();
        let services = scene.by_service.then(|| scene.services());
        sim.publish(DesiredState { fail_open: true, pods, services, ..DesiredState::default() });
        sim.step();
        Node { scene, sim, ports, flows: 0 }
    }

    /// Injects packets in one batch; returns the segments that have arrived.
    fn send(&mut self, packets: &[Packet]) -> Vec<Arrival> {
        for packet in packets {
            let queue = usize::from(packet.ports[0].wrapping_add(packet.ports[1])) % self.scene.workers;
            let is_taken = self.ports[packet.from].peers[queue].inject(&packet.frame(&self.scene));
            // A hostile pod may have no frame to receive into.
            assert!(is_taken || packet.from >= HOSTILE, "a frame is lost before the switch");
        }
        while self.sim.step() {}
        let peers = self
            .ports
            .iter()
            .enumerate()
            .flat_map(|(pod, port)| port.peers.iter().map(move |peer| (pod, peer)));
        let frames = peers.flat_map(|(pod, peer)| peer.collect().into_iter().map(move |frame| (pod, frame)));
        frames.filter_map(|(pod, frame)| Arrival::of(pod, &frame)).collect()
    }

    /// Plays a round of a flood beside the packets of the client's connections. Returns the ports of those that have passed.
    fn flood(&mut self, round: usize, beside: &[Packet]) -> BTreeSet<[u16; 2]> {
        let scene = self.scene;
        let active = match scene.flood {
            Flood::Handshakes => (1 + 2 * scene.hostile * round / scene.rounds()).min(scene.hostile),
            _ => scene.hostile,
        };
        let first = |number: u32| {
            let from = HOSTILE + number as usize % active;
            let port = 1024 + (number / active as u32 % 60_000) as u16;
            // There are two hostile pods at least; each cooperates with its neighbour.
            let partner = HOSTILE + (number as usize % active + 1) % scene.hostile;
            let to = match scene.flood {
                Flood::Handshakes => scene.front_end(partner),
                _ => scene.address(CLIENT),
            };
            let tcp = match scene.flood {
                Flood::Syn | Flood::Reset | Flood::Handshakes => Some((SYN, 7, 0)),
                Flood::Udp => None,
                Flood::Middle => Some((ACK, 7, 7)),
            };
            Packet { from, to, ports: [port, PORT], tcp }
        };
        let firsts: Vec<Packet> = (self.flows..self.flows + scene.batch as u32).map(first).collect();
        self.flows += scene.batch as u32;
        let resets = |first: &Packet| Packet { tcp: Some((RST, 8, 0)), ..*first };
        let resets = firsts.iter().filter(|_| scene.flood == Flood::Reset).map(resets).collect::<Vec<_>>();
        let arrived = self.send(&[beside, &firsts, &resets].concat());
        let is_hostile =
            |address: IpAddr| (HOSTILE..HOSTILE + scene.hostile).any(|pod| scene.address(pod) == address);
        let passed = arrived.iter().filter(|arrival| arrival.at < HOSTILE && !is_hostile(arrival.from));
        let through = passed.map(|arrival| arrival.ports).collect();
        let mut arrived = arrived;
        while scene.flood == Flood::Handshakes && arrived.iter().any(|arrival| arrival.at >= HOSTILE) {
            let answer = |arrival: &Arrival| {
                let numbers = match arrival.flags {
                    SYN => (SYN | ACK, 9, 8),
                    flags if flags == SYN | ACK => (ACK, 8, 10),
                    _ => return None,
                };
                let [theirs, ours] = arrival.ports;
                let answer =
                    Packet { from: arrival.at, to: arrival.from, ports: [ours, theirs], tcp: Some(numbers) };
                (arrival.at >= HOSTILE).then_some(answer)
            };
            let answers: Vec<Packet> = arrived.iter().filter_map(answer).collect();
            arrived = self.send(&answers);
        }
        self.sim.now += Duration::from_millis(1);
        through
    }

    /// Drops of client and server.
    fn drops(&self) -> [BTreeMap<String, u64>; 2] {
        [CLIENT, SERVER].map(|pod| self.sim.counters().ports[&self.ports[pod].id].drops.clone())
    }

    /// Checks what the flood costs: a flow of it that has no slot is evicted or refused, and nothing else is dropped but
    /// other segments of these.
    fn assert_costs(&self) {
        let counters = self.sim.counters();
        let (mut received, mut refused) = (0, 0);
        for port in &self.ports[HOSTILE..] {
            let port = &counters.ports[&port.id];
            let has_more = matches!(self.scene.flood, Flood::Handshakes | Flood::Reset);
            let is_evicted = |reason: &str| reason == "invalid-state" && has_more;
            assert!(port.drops.keys().all(|reason| reason == "table-full" || is_evicted(reason)), "{port:?}");
            received += port.received;
            refused += port.drops.get("table-full").copied().unwrap_or(0);
        }
        let evicted: u64 = counters.workers.values().map(|worker| worker.flows_evicted).sum();
        let opened = u64::from(self.flows);
        // Handshakes come again with the ports of flows that are there.
        let is_paid =
            self.scene.flood == Flood::Handshakes || evicted + refused + self.scene.slots as u64 >= opened;
        assert!(is_paid, "{evicted} evicted, {refused} refused of {opened}");
        assert!(received >= opened / 2, "{received} received of {opened}");
    }
}

/// Asserts that each connection of the client is established, at the latest by its second SYN, lives until data has passed, and,
/// if it is kept, to the end. The table is full from two thirds of the rounds on.
#[track_caller]
fn assert_set_up(scene: Scene) {
    let mut node = Node::new(scene);
    let (mut kept, mut open): (Vec<Connection>, Vec<Connection>) = (Vec::new(), Vec::new());
    let (mut complete, mut late) = (0, 0);
    let mut random = SEED;
    // The last connections end in rounds without new ones.
    for round in 0..scene.rounds() + 2 * Connection::PACKETS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Each round has ports of its own, so that no connection meets one before it.
        let port = 1024 + (round * 80) as u16 + (random >> 58) as u16;
        if round % scene.every == 0 && round < scene.rounds() {
            open.push(Connection { port, through: 0, is_late: false });
        }
        let packets: Vec<Packet> =
            open.iter().map(|connection| connection.packet(connection.through, &scene)).collect();
        let through = node.flood(round.min(scene.rounds() - 1), &packets);
        for (mut connection, packet) in std::mem::take(&mut open).into_iter().zip(packets) {
            let has_passed = through.contains(&packet.ports);
            // A client without an answer sends its SYN again, once.
            let begins_again = !has_passed && connection.through < 2 && !connection.is_late;
            assert!(has_passed || begins_again, "{connection:?} is lost: {:?}, {scene:?}", node.drops());
            if begins_again {
                connection = Connection { through: 0, is_late: true, ..connection };
                late += 1;
            } else {
                connection.through += 1;
            }
            complete += usize::from(connection.through == Connection::PACKETS);
            match connection.through {
                Connection::PACKETS if kept.len() < KEPT && round > scene.rounds() / 2 => {
                    kept.push(connection);
                }
                // The packet behind the last one resets the connection.
                through if through <= Connection::PACKETS => open.push(connection),
                _ => {}
            }
        }
    }
    let flows = node.sim.flows_len();
    eprintln!("{complete} connections, {late} late, {flows} flows, {scene:?} (seed {SEED:#x})");
    assert!(flows > scene.slots * 3 / 4, "the table is full: {flows} flows");
    node.assert_costs();
    let again: Vec<Packet> = kept.iter().map(|connection| connection.packet(3, &scene)).collect();
    let arrived = node.send(&again).iter().filter(|arrival| arrival.at == CLIENT).count();
    assert_eq!(arrived, KEPT, "established connections live on: {scene:?}");
    assert!(open.is_empty() && complete == scene.rounds().div_ceil(scene.every), "{complete} connections");
    // The hash has another key in each run: hardly ever a first SYN finds no slot.
    assert!(late <= 1, "{late} of {complete}: {:?}, {scene:?}", node.drops());
}

/// Numbers of hostile pods, slots of the table, and flows of a batch.
const SIZES: [(usize, usize, usize); 4] =
    [(2, 1 << 12, 64), (10, 1 << 12, 64), (250, 1 << 12, 64), (10, 1 << 14, 252)];

/// Plays a flood in tables of several sizes. The client waits for one answer at a time where a share of the table is two flows.
#[track_caller]
fn assert_set_up_at_every_size(flood: Flood, by_service: bool) {
    for (hostile, slots, batch) in SIZES {
        let every = if slots / 8 / hostile > 2 { 1 } else { 4 };
        assert_set_up(Scene { slots, batch, by_service, every, ..Scene::of(flood, hostile) });
    }
}

/// Plays a flood with each kind of port, family and number of workers.
#[track_caller]
fn assert_set_up_everywhere(flood: Flood, by_service: bool) {
    for (ports, is_v6, workers) in [
        (PortKind::Pod, true, 2),
        (PortKind::Tap, false, 2),
        (PortKind::Tap, true, 1),
        (PortKind::Pod, false, 2),
    ] {
        assert_set_up(Scene { ports, is_v6, workers, slots: 1 << 12, by_service, ..Scene::of(flood, 10) });
    }
}

#[test]
fn connections_are_set_up_beside_floods_of_syns_at_the_same_pod() {
    assert_set_up_at_every_size(Flood::Syn, false);
}

#[test]
fn connections_are_set_up_beside_floods_of_syns_and_resets_at_the_same_pod() {
    assert_set_up_at_every_size(Flood::Reset, false);
}

#[test]
fn connections_are_set_up_beside_floods_of_datagrams_at_the_same_pod() {
    assert_set_up_at_every_size(Flood::Udp, false);
}

#[test]
fn connections_are_set_up_beside_pods_that_fill_the_table_with_established_ones() {
    assert_set_up_at_every_size(Flood::Handshakes, false);
}

#[test]
fn connections_to_services_are_set_up_beside_pods_that_fill_table_and_bindings() {
    assert_set_up_at_every_size(Flood::Handshakes, true);
}

#[test]
fn connections_are_set_up_beside_floods_on_taps_of_ipv6_and_with_two_workers() {
    for flood in [Flood::Syn, Flood::Udp, Flood::Handshakes] {
        assert_set_up_everywhere(flood, false);
    }
    assert_set_up_everywhere(Flood::Handshakes, true);
}

#[test]
fn forged_segments_keep_nobody_from_opening_connections_where_connections_are_picked_up() {
    assert_set_up(Scene::of(Flood::Middle, 2));
}

#[test]
fn forged_segments_enter_no_flow_where_connections_are_not_picked_up() {
    let scene = Scene::of(Flood::Syn, 2);
    let mut node = Node::new(scene);
    node.scene.flood = Flood::Middle;
    (0..100).for_each(|round| _ = node.flood(round, &[]));
    assert_eq!(node.sim.flows_len(), 0);
    let drops: u64 = node.ports[HOSTILE..]
        .iter()
        .map(|port| node.sim.counters().ports[&port.id].drops["invalid-state"])
        .sum();
    assert_eq!(drops, 100 * scene.batch as u64);
}
