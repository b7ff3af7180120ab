//! A switch in memory: sixteen pods of a node, policed by tables of some number of rules.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use palisade::dataplane::{
    ConntrackSettings, FlowMemory, Gateway, PodAttachment, PortKind, Settings, SimulatedPort,
};
use palisade::dataplane::{DesiredState, Simulation};
use palisade::ids::AttachmentId;
use palisade::limits::RING_SLOTS;
use palisade::tables::{Classifier, PodName, RuleTables};

use super::report::median;
use super::traffic::{GATEWAY, Packet, Traffic, address, mac};
use crate::common::Random;
use crate::common::rules::rule_tables;

/// Pods, each behind a port of its own.
pub(crate) const PODS: u16 = 16;
/// Ports that rule 0 opens to everyone.
pub(crate) const EVERYONE: RangeInclusive<u16> = 40_000..=49_999;
const BATCH: usize = 256;
const SPREAD: usize = 64;
/// Slots for flows that are opened while a case is measured.
const OPENED_MAX: usize = 1 << 18;
const SEED: u64 = 0x9a11_5ade;

/// Rules, as a document and compiled.
pub(crate) struct Tables {
    pub(crate) document: Arc<RuleTables>,
    /// What the traffic's flows are asked of beforehand.
    pub(crate) classifier: Classifier,
}

impl Tables {
    pub(crate) fn new(rules: usize) -> Tables {
        let document = Arc::new(rule_tables(rules, Some(&EVERYONE), &mut Random(SEED)));
        let classifier = Classifier::new(&document).expect("the tables are whole");
        Tables { document, classifier }
    }
}

/// Directory in which flow tables lie; in the process's memory where it is not set.
pub(crate) static FLOWS_IN: OnceLock<PathBuf> = OnceLock::new();

/// A directory for the flow table of one more switch.
fn flow_memory() -> FlowMemory {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
    FLOWS_IN.get().map_or(FlowMemory::Process, |directory| FlowMemory::Directory {
        path: directory.join(number),
        fallback: None,
    })
}

/// The switch, and the other ends of its ports.
pub(crate) struct Rig {
    pub(crate) simulation: Simulation,
    pub(crate) ports: Vec<SimulatedPort>,
    /// What was published.
    pub(crate) world: DesiredState,
    slots: usize,
}

impl Rig {
    /// A switch with room for half as many flows again as there are at first, and for those that a case opens.
    pub(crate) fn new(tables: &Tables, flows: usize) -> Rig {
        Rig::with_workers(tables, flows, 1)
    }

    /// [`Rig::new`] with this many workers.
    pub(crate) fn with_workers(tables: &Tables, flows: usize, workers: usize) -> Rig {
        let slots = flows * 3 / 2 + OPENED_MAX;
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
        };
        let world = DesiredState {
            tables: Some(tables.document.clone()),
            gateway: Gateway { mac: GATEWAY, ..Gateway::default() },
            pods: (0..PODS).map(attach).collect(),
            ..DesiredState::default()
        };
        simulation.publish(world.clone());
        let mut rig = Rig { simulation, ports, world, slots };
        rig.spread_frames();
        rig
    }

    /// The first ports got more frames to receive into than the later ones: lets them use the surplus up.
    fn spread_frames(&mut self) {
        for _ in 0..RING_SLOTS / SPREAD {
            for peer in self.ports.iter().flat_map(|port| &port.peers) {
                (0..SPREAD).for_each(|_| _ = peer.inject(&[0; 64]));
            }
            while self.simulation.step() {}
        }
    }

    /// Bytes of conntrack for each flow that it has room for.
    pub(crate) fn bytes_per_flow(&self) -> f64 {
        self.simulation.conntrack_bytes() as f64 / self.slots as f64
    }

    /// Lets every flow of `traffic` be opened and answered.
    pub(crate) fn enter(&mut self, traffic: &Traffic) {
        for step in traffic.opening() {
            for batch in step.chunks(BATCH) {
                batch.iter().for_each(|packet| self.inject(packet, traffic));
                self.step();
                self.check(batch.len());
            }
        }
    }

    /// One round of batches: nanoseconds per packet of its median batch. A batch takes some microseconds, so that most
    /// are not interrupted by whatever else the machine does.
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

    /// Nanoseconds per packet of each part of the worker's loop.
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
            // Done once a millisecond.
            "age" => samples.iter().sum::<f64>() / samples.len() as f64,
            _ => median(samples),
        };
        samples.into_values().map(|(stage, mut samples)| (stage, typical(stage, &mut samples))).collect()
    }

    /// Injects a batch; how many of its packets are to be forwarded.
    fn load(&mut self, traffic: &mut Traffic) -> usize {
        let mut expected = 0;
        for _ in 0..BATCH {
            let (packet, forwarded) = traffic.next();
            self.inject(&packet, traffic);
            expected += usize::from(forwarded);
        }
        expected
    }

    fn inject(&self, packet: &Packet, traffic: &Traffic) {
        let peer = &self.ports[usize::from(packet.sender())].peers[0];
        let took = peer.inject_with(traffic.frame_bytes, |frame| packet.write(traffic.family, frame));
        assert!(took, "a frame to receive into");
    }

    /// One step of the worker; the switch's clock goes on by as much as it took.
    fn step(&mut self) -> Duration {
        let start = Instant::now();
        self.simulation.step_worker(0);
        let took = start.elapsed();
        self.simulation.now += took;
        took
    }

    /// Takes what was transmitted; panics if it is not as much as expected.
    fn check(&self, expected: usize) {
        let passed: usize = self.ports.iter().map(|port| port.peers[0].drain_with(|_| ())).sum();
        let drops =
            || self.simulation.counters().ports.into_values().map(|port| port.drops).collect::<Vec<_>>();
        assert!(passed == expected, "{passed} packets passed and {expected} should: {:?}", drops());
    }
}
