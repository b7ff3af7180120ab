//! Allocations on the packet path: there are none. A counting allocator of this binary tells, for each thread
//! by itself.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use palisade::dataplane::{
    Bandwidth, ConntrackSettings, DesiredState, Gateway, Mac, PodAttachment, PortKind, Settings,
    SimulatedPort, Simulation,
};
use palisade::ids::{AclId, AttachmentId, PortId, RowId, RuleId};
use palisade::net::flow::Protocol;
use palisade::tables::{
    Acl, Decision, Direction, PersistentMap, PodName, PodPolicy, PortSpan, Row, RuleOrigin, RuleTables,
    ServicePort, ServicePortName, ServiceSet, ServiceTable,
};

use crate::frames::{Spec, Transport, arp};

/// System allocator that counts the calls of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // The counter of a thread that ends is gone already, and nobody reads it.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: the pointer came from the system's allocator with this layout, as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as above; the caller keeps the contract of `GlobalAlloc::realloc`.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls of the allocator while `work` runs.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

const PODS: u16 = 2;

fn address(pod: u16, v6: bool) -> IpAddr {
    if v6 { format!("fd00::{}", pod + 2) } else { format!("10.0.0.{}", pod + 2) }.parse().unwrap()
}

/// Tables that allow everything but TCP port 9.
fn tables() -> RuleTables {
    let mut tables = RuleTables::default();
    for (rule, direction) in [(0, Direction::Ingress), (1, Direction::Egress)] {
        tables.rules.insert(RuleId(rule), RuleOrigin::NotIsolated { direction });
    }
    let span = PortSpan { first: 9, last: 9, decision: Decision::deny(RuleId(0)) };
    let row = Row { tcp: vec![span], ..Row::uniform(Decision::allow(RuleId(1))) };
    tables.rows.insert(RowId(0), row);
    tables.acls.insert(AclId(0), Acl { rows: PersistentMap::new(), default: RowId(0) });
    for pod in 0..PODS {
        let addresses = [false, true].map(|v6| address(pod, v6)).to_vec();
        let policy = PodPolicy { addresses, ingress: AclId(0), egress: AclId(0) };
        tables.pods.insert(PodName::new("default", pod.to_string()), policy);
    }
    tables
}

fn virtual_address(v6: bool) -> IpAddr {
    if v6 { "fd00:96::1" } else { "10.96.0.1" }.parse().unwrap()
}

struct Bench {
    sim: Simulation,
    desired: DesiredState,
    ports: Vec<SimulatedPort>,
}

impl Bench {
    fn new(workers: usize) -> Bench {
        Bench::with_queues(workers, workers)
    }

    /// Makes a switch with this number of queues of the second port.
    fn with_queues(workers: usize, queues: usize) -> Bench {
        let conntrack = ConntrackSettings { flows_max: 4096, ..ConntrackSettings::default() };
        let settings = Settings {
            cores: vec![0; workers],
            frames_per_worker: 2048,
            huge_pages: false,
            conntrack,
            ..Settings::default()
        };
        let mut sim = Simulation::new(&settings).unwrap();
        let queues = [workers, queues].into_iter();
        let ports =
            queues.map(|queues| sim.open_port_with(PortKind::Pod, None, 1500, queues).unwrap()).collect();
        let pods = (0..PODS).map(|pod| PodAttachment {
            id: AttachmentId(u32::from(pod) + 1),
            pod: PodName::new("default", pod.to_string()),
            port: PortId(pod),
            addresses: [false, true].map(|v6| address(pod, v6)).to_vec(),
            mac: Some(Mac([2, 0, 0, 0, 0, pod as u8])),
            bandwidth: Bandwidth::default(),
        });
        let gateway = Gateway {
            addresses: ["10.0.0.1", "fd00::1"].map(|text| text.parse().unwrap()).to_vec(),
            ..Gateway::default()
        };
        let desired = DesiredState {
            tables: Some(Arc::new(tables())),
            gateway,
            pods: pods.collect(),
            ..DesiredState::default()
        };
        sim.publish(desired.clone());
        sim.step();
        Bench { sim, desired, ports }
    }

    /// Loads a Service with these pods as backends, at [`virtual_address`].
    fn load_service(&mut self, backends: [bool; 2]) {
        let pods = (0..PODS).filter(|pod| backends[usize::from(*pod)]);
        let backends =
            pods.flat_map(|pod| [false, true].map(|v6| SocketAddr::new(address(pod, v6), 80))).collect();
        let port = ServicePort {
            cluster: [false, true].map(|v6| SocketAddr::new(virtual_address(v6), 80)).to_vec(),
            internal_backends: backends,
            affinity_seconds: Some(10),
            ..ServicePort::default()
        };
        let name = |protocol| ServicePortName {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            port: None,
            protocol,
        };
        let ports = [Protocol::TCP, Protocol::UDP].map(|protocol| (name(protocol), port.clone())).into();
        let set = ServiceSet::new(&ServiceTable { node_addresses: Vec::new(), ports }).unwrap();
        self.desired.services = Some(Arc::new(set));
        self.sim.publish(self.desired.clone());
        self.sim.step();
    }

    /// Allocations of the switch while it processes these frames, which arrive on the first port. The first
    /// round warms up.
    fn run(&mut self, rounds: usize, mut frame: impl FnMut(usize) -> Vec<u8>) -> u64 {
        let mut seen = 0;
        for round in 0..rounds {
            let frames: Vec<Vec<u8>> = (0..32).map(|number| frame(round * 32 + number)).collect();
            for (number, frame) in frames.iter().enumerate() {
                let peers = &self.ports[0].peers;
                assert!(peers[number % peers.len()].inject(frame));
            }
            self.sim.now += Duration::from_millis(7);
            let sim = &mut self.sim;
            let count = allocations(|| {
                sim.step();
                sim.step();
            });
            if round > 0 {
                seen += count;
            }
            for port in &self.ports {
                port.peers.iter().for_each(|peer| _ = peer.drain_with(|_| ()));
            }
        }
        seen
    }

    /// Opens the connection of [`tcp`] to port 80.
    fn open_connection(&mut self, v6: bool) {
        let ends = [address(0, v6), address(1, v6)];
        let segment = |[src, dst]: [IpAddr; 2], ports, flags, [sequence, acknowledgement]: [u32; 2]| {
            let transport = Transport::Tcp { ports, flags, sequence, acknowledgement, window: 1000 };
            to_gateway(Spec::new(src, dst, transport))
        };
        let [there, back] = [[40_000, 80], [80, 40_000]];
        let handshake = [
            (0, segment(ends, there, 2, [0, 0])),
            (1, segment([ends[1], ends[0]], back, 18, [0, 1])),
            (0, segment(ends, there, 16, [1, 1])),
        ];
        for (port, frame) in handshake {
            assert!(self.ports[port].peers[0].inject(&frame));
            self.sim.now += Duration::from_millis(7);
            self.sim.step();
            self.sim.step();
            for port in &self.ports {
                port.peers.iter().for_each(|peer| _ = peer.drain_with(|_| ()));
            }
        }
    }

    fn counter(&self, what: impl Fn(&palisade::dataplane::PortCounters) -> u64) -> u64 {
        what(&self.sim.counters().ports[&PortId(0)])
    }
}

/// Builds the frame of a packet to the switch.
fn to_gateway(spec: Spec) -> Vec<u8> {
    Spec { dst_mac: Gateway::default().mac.0, ..spec }.bytes()
}

fn packet(v6: bool, transport: Transport) -> Vec<u8> {
    to_gateway(Spec::new(address(0, v6), address(1, v6), transport))
}

fn tcp(flags: u8, port: u16) -> Transport {
    Transport::Tcp { ports: [40_000, port], flags, sequence: 1, acknowledgement: 1, window: 1000 }
}

#[test]
fn an_allocation_is_counted() {
    assert!(allocations(|| drop(std::hint::black_box(vec![1]))) >= 2);
}

#[test]
fn established_flows_allocate_nothing() {
    for (workers, v6) in [(1, false), (1, true), (2, false)] {
        let mut bench = Bench::new(workers);
        bench.open_connection(v6);
        assert_eq!(bench.run(20, |_| packet(v6, tcp(16, 80))), 0);
        assert_eq!(bench.counter(|port| port.forwarded), 2 + 20 * 32);
        assert_eq!(bench.sim.flows_len(), 1);
    }
}

#[test]
fn frames_handed_over_to_another_worker_allocate_nothing() {
    let mut bench = Bench::with_queues(3, 1);
    bench.open_connection(false);
    assert_eq!(bench.run(20, |_| packet(false, tcp(16, 80))), 0);
    assert_eq!(bench.counter(|port| port.forwarded), 2 + 20 * 32);
    assert_eq!(bench.sim.counters().ports[&PortId(1)].transmitted, 2 + 20 * 32);
}

#[test]
fn new_flows_and_flows_that_end_allocate_nothing() {
    for v6 in [false, true] {
        let mut bench = Bench::new(1);
        let udp = |number: usize| packet(v6, Transport::Udp { ports: [number as u16, 53] });
        assert_eq!(bench.run(60, udp), 0);
        assert_eq!(bench.counter(|port| port.forwarded), 60 * 32);
        bench.sim.now += Duration::from_secs(100);
        let sim = &mut bench.sim;
        // A batch sweeps 64 groups of 16 flows at most.
        assert_eq!(allocations(|| (0..8).for_each(|_| _ = sim.step())), 0, "the sweep");
        assert_eq!(bench.sim.flows_len(), 0);
        // The table is full, and new flows evict others.
        assert_eq!(bench.run(300, udp), 0);
        let workers = bench.sim.counters().workers;
        assert!(workers.values().map(|worker| worker.flows_evicted).sum::<u64>() > 0);
    }
}

#[test]
fn packets_to_services_allocate_nothing() {
    for v6 in [false, true] {
        let to = |spec: Transport| to_gateway(Spec::new(address(0, v6), virtual_address(v6), spec));
        let udp = |number: usize| to(Transport::Udp { ports: [number as u16 + 1, 80] });
        let mut bench = Bench::new(1);
        bench.load_service([false, true]);
        // New flows, then the same again; they evict bindings too.
        assert_eq!(bench.run(60, udp), 0);
        assert_eq!(bench.run(60, udp), 0);
        assert_eq!(bench.counter(|port| port.forwarded), 120 * 32);
        bench.load_service([true, false]);
        assert_eq!(bench.run(20, udp), 0, "to itself");
        assert_eq!(bench.counter(|port| port.forwarded), 140 * 32);
        bench.load_service([false, false]);
        let refused = |number: usize| {
            if number.is_multiple_of(2) { udp(number) } else { to(tcp(2, 80)) }
        };
        assert_eq!(bench.run(20, refused), 0);
        assert_eq!(bench.counter(|port| port.drops["service-no-backend"]), 20 * 32);
    }
}

#[test]
fn denied_and_senseless_packets_allocate_nothing() {
    let mut bench = Bench::new(1);
    let spoofed = Spec::new(address(1, false), address(0, false), Transport::Other(47));
    let mut frames =
        vec![packet(false, tcp(2, 9)), packet(false, tcp(4, 80)), to_gateway(spoofed), vec![0; 20]];
    frames.push(packet(true, tcp(2, 9)));
    assert_eq!(bench.run(20, |number| frames[number % frames.len()].clone()), 0);
    assert_eq!(bench.counter(|port| port.drops.values().sum()), 20 * 32);
    assert!(bench.counter(|port| port.drops["policy-egress"]) > 200);
}

#[test]
fn what_the_switch_says_itself_allocates_nothing() {
    let mut bench = Bench::new(1);
    let question = arp(1, ([2, 0, 0, 0, 0, 0], [10, 0, 0, 2]), ([0; 6], [10, 0, 0, 1]), [0xff; 6]);
    let echo = Spec::new(
        address(0, false),
        "10.0.0.1".parse().unwrap(),
        Transport::Echo { request: true, identifier: 1 },
    );
    let expiring = Spec { ttl: 1, ..Spec::new(address(0, true), address(1, true), Transport::Other(47)) };
    let large = Spec {
        payload: vec![0; 1600],
        ..Spec::new(address(0, false), address(1, false), Transport::Other(47))
    };
    let mut frames = vec![question];
    frames.extend([echo, expiring, large].map(to_gateway));
    assert_eq!(bench.run(20, |number| frames[number % frames.len()].clone()), 0);
    assert_eq!(bench.counter(|port| port.consumed), 20 * 16);
    assert_eq!(bench.counter(|port| port.transmitted), 20 * 32);
}
