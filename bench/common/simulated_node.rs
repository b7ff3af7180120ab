//! Node in memory: the dataplane with one port for each of sixteen pods, and rule tables of any size.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use palisade::dataplane::{
    Bandwidth, ConntrackSettings, DropReason, FlowMemory, Gateway, PodAttachment, PortKind, Settings,
    SimulatedPort,
};
use palisade::dataplane::{DesiredState, Simulation};
use palisade::ids::AttachmentId;
use palisade::limits::{BATCH_FRAMES_MAX, RING_SLOTS};
use palisade::tables::{PodName, ServiceSet};

use super::compiled_rules::{CompiledRules, PODS};
use super::frame::{GATEWAY, Packet, address, mac};
use super::statistics::median;
use super::traffic::Traffic;

/// Packets of one batch.
const BATCH: usize = BATCH_FRAMES_MAX;
/// Frames that a port receives at a time while the frames of the fill rings are evened out.
const SPREAD: usize = 64;
/// Slots of the flow table for flows that a case opens.
const NEW_FLOWS_MAX: usize = 1 << 18;

/// Most repetitions of the handshakes that establish the flows of a case.
const HANDSHAKES_MAX: usize = 4;

/// Directory of the flow tables. Unset, they are in the process's memory.
pub(crate) static FLOW_TABLE_DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

/// Memory for the flow table of one more node.
fn flow_memory() -> FlowMemory {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
    FLOW_TABLE_DIRECTORY.get().map_or(FlowMemory::Process, |directory| FlowMemory::Directory {
        path: directory.join(number),
        fallback: None,
    })
}

/// Slots of a flow table with room for half as many flows again, and for the new flows of a case.
pub(crate) fn slots_for(flows: usize) -> usize {
    flows * 3 / 2 + NEW_FLOWS_MAX
}

/// Dataplane, and the pods' ends of its ports.
pub(crate) struct SimulatedNode {
    pub(crate) simulation: Simulation,
    pub(crate) ports: Vec<SimulatedPort>,
    /// Published configuration.
    pub(crate) desired: DesiredState,
    slots: usize,
    /// Packets that the full flow table had refused at the last check.
    refused: u64,
}

impl SimulatedNode {
    /// Makes a node with one worker and a flow table of this size.
    pub(crate) fn new(tables: &CompiledRules, slots: usize) -> SimulatedNode {
        SimulatedNode::with_workers(tables, slots, 1)
    }

    /// Makes a node like [`SimulatedNode::new`], with this many workers.
    pub(crate) fn with_workers(tables: &CompiledRules, slots: usize, workers: usize) -> SimulatedNode {
        let conntrack = ConntrackSettings {
            flows_max: slots,
            pod_quota_percent: 100,
            memory: flow_memory(),
            ..ConntrackSettings::default()
        };
        let cores = (0..workers).collect();
        let settings = Settings { cores, frames_per_worker: 4096, conntrack, ..Settings::default() };
        let mut simulation = Simulation::new(&settings).expect("memory for the switch");
        let open = |_| simulation.open_port(PortKind::Pod, None, 1500).expect("a port");
        let ports: Vec<SimulatedPort> = (0..PODS).map(open).collect();
        let attach = |pod: u16| PodAttachment {
            id: AttachmentId(1 + u32::from(pod)),
            pod: PodName::new("default", format!("pod{pod}")),
            port: ports[usize::from(pod)].id,
            addresses: vec![address(pod, 4), address(pod, 6)],
            mac: Some(mac(pod)),
            bandwidth: Bandwidth::default(),
        };
        let desired = DesiredState {
            tables: Some(tables.document.clone()),
            gateway: Gateway { mac: GATEWAY, ..Gateway::default() },
            pods: (0..PODS).map(attach).collect(),
            ..DesiredState::default()
        };
        simulation.publish(desired.clone());
        let mut node = SimulatedNode { simulation, ports, desired, slots, refused: 0 };
        node.spread_frames();
        node
    }

    /// Loads Services.
    pub(crate) fn load_services(&mut self, services: &ServiceSet) {
        self.desired.services = Some(Arc::new(services.clone()));
        self.simulation.publish(self.desired.clone());
    }

    /// Evens out the fill rings. The first ports get more frames at first, and receive until the surplus is
    /// used up.
    fn spread_frames(&mut self) {
        for _ in 0..RING_SLOTS / SPREAD {
            for peer in self.ports.iter().flat_map(|port| &port.peers) {
                (0..SPREAD).for_each(|_| _ = peer.inject(&[0; 64]));
            }
            while self.simulation.step() {}
        }
    }

    /// Bytes of conntrack for each slot of the flow table.
    pub(crate) fn bytes_per_flow(&self) -> f64 {
        self.simulation.conntrack_bytes() as f64 / self.slots as f64
    }

    /// Establishes every flow of `traffic`: both directions forward. Of a million flows some are evicted for
    /// others before their answer comes; the handshake is repeated until every flow stays.
    pub(crate) fn establish(&mut self, traffic: &Traffic) {
        for _ in 0..HANDSHAKES_MAX {
            let mut lost = 0;
            for step in traffic.handshake() {
                for batch in step.chunks(BATCH) {
                    batch.iter().for_each(|packet| self.inject(packet, traffic));
                    self.step();
                    lost += batch.len() - self.collect();
                }
            }
            if lost == 0 {
                return;
            }
        }
        panic!("flows are lost in each of {HANDSHAKES_MAX} handshakes: {:?}", self.drops());
    }

    /// Opens twice as many flows as the table has slots.
    pub(crate) fn fill(&mut self, traffic: &mut Traffic) {
        for _ in 0..2 * self.slots / BATCH {
            let expected = self.load(traffic);
            self.step();
            self.check(expected);
        }
    }

    /// Runs one round of batches and returns nanoseconds a packet of its median batch. A batch takes some
    /// microseconds, so other threads of the machine interrupt few of them.
    pub(crate) fn round(&mut self, traffic: &mut Traffic) -> f64 {
        let batches = traffic.batches();
        let mut batch = || {
            let expected = self.load(traffic);
            let took = self.step();
            self.check(expected);
            took.as_nanos() as f64 / BATCH as f64
        };
        let mut times: Vec<f64> = (0..batches).map(|_| batch()).collect();
        median(&mut times)
    }

    /// Measures the stages of the worker's loop, in nanoseconds a packet.
    pub(crate) fn stages(&mut self, traffic: &mut Traffic, rounds: usize) -> Vec<(&'static str, f64)> {
        let mut samples: BTreeMap<usize, (&'static str, Vec<f64>)> = BTreeMap::new();
        for _ in 0..(rounds * traffic.batches()).min(256) {
            let expected = self.load(traffic);
            let start = Instant::now();
            let mut last = start;
            let mut place = 0;
            self.simulation.step_worker_timed(0, |stage| {
                let now = Instant::now();
                let sample = (now - last).as_nanos() as f64 / BATCH as f64;
                samples.entry(place).or_insert((stage, Vec::new())).1.push(sample);
                place += 1;
                last = Instant::now();
            });
            self.simulation.now += start.elapsed();
            self.check(expected);
        }
        let typical = |stage, samples: &mut [f64]| match stage {
            // It runs once a millisecond, so most batches have none of it.
            "age" => samples.iter().sum::<f64>() / samples.len() as f64,
            _ => median(samples),
        };
        samples.into_values().map(|(stage, mut samples)| (stage, typical(stage, &mut samples))).collect()
    }

    /// Injects a batch and returns how many of its packets the switch must forward.
    fn load(&mut self, traffic: &mut Traffic) -> usize {
        let mut expected = 0;
        for _ in 0..BATCH {
            let (packet, forwarded) = traffic.next();
            self.inject(&packet, traffic);
            expected += usize::from(forwarded);
        }
        expected
    }

    /// Injects a batch of packets, all of which the switch must forward.
    pub(crate) fn load_forwarded(&self, traffic: &mut Traffic) {
        load_forwarded(&self.ports, traffic);
    }

    fn inject(&self, packet: &Packet, traffic: &Traffic) {
        inject(&self.ports, packet, traffic);
    }

    /// Runs one step of the worker and returns its time, by which the clock of the dataplane advances.
    fn step(&mut self) -> Duration {
        let start = Instant::now();
        self.simulation.step_worker(0);
        let took = start.elapsed();
        self.simulation.now += took;
        took
    }

    /// Collects the transmitted frames; panics unless their number is `expected`, without the new flows that
    /// the full flow table has refused.
    fn check(&mut self, expected: usize) {
        let passed = self.collect();
        if passed == expected {
            return;
        }
        let refused: u64 = self
            .drops()
            .iter()
            .flatten()
            .filter(|drop| drop.0 == DropReason::TableFull.name())
            .map(|drop| drop.1)
            .sum();
        let refused_now = (refused - self.refused) as usize;
        self.refused = refused;
        assert!(
            passed + refused_now == expected,
            "{passed} packets passed and {expected} should: {:?}",
            self.drops()
        );
    }

    /// Collects the transmitted frames. Returns their number.
    fn collect(&self) -> usize {
        self.ports.iter().map(|port| port.peers[0].drain_with(|_| ())).sum()
    }

    /// Drop counters of every port.
    fn drops(&self) -> Vec<BTreeMap<String, u64>> {
        self.simulation.counters().ports.into_values().map(|port| port.drops).collect()
    }
}

/// Injects a batch of packets into the ports, all of which the switch must forward.
pub(crate) fn load_forwarded(ports: &[SimulatedPort], traffic: &mut Traffic) {
    for _ in 0..BATCH {
        let (packet, _) = traffic.next();
        inject(ports, &packet, traffic);
    }
}

fn inject(ports: &[SimulatedPort], packet: &Packet, traffic: &Traffic) {
    let peer = &ports[usize::from(packet.sender())].peers[0];
    let took = peer.inject_with(traffic.frame_bytes, |frame| packet.write(traffic.family, frame));
    assert!(took, "a frame to receive into");
}
