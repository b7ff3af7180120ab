//! Two workers, each with one direction of the same flows, beside one worker with both directions.
//!
//! The workers start their batches together, so that both work at the same time. The time of a batch is that
//! of the slower worker.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use palisade::dataplane::SimulatedPort;
use palisade::limits::BATCH_FRAMES_MAX;

use crate::common::compiled_rules::CompiledRules;
use crate::common::simulated_node::{SimulatedNode, slots_for};
use crate::common::statistics::median;
use crate::common::traffic::{Case, Traffic};
use crate::report::Report;

const BATCHES: usize = 128;

/// Measures `case` with one worker and with two, in turn.
pub(crate) fn compare(case: Case, tables: &CompiledRules, rounds: usize, report: &Report) {
    let mut measured = [1, 2].map(|workers| Measured::new(Case { workers, ..case }, tables));
    for _ in 0..=rounds {
        measured.iter_mut().for_each(Measured::round);
    }
    for Measured { case, mut ns, node, .. } in measured {
        // The first round warms the caches.
        ns.remove(0);
        let least = ns.iter().copied().fold(f64::INFINITY, f64::min);
        report.case(&case, median(&mut ns), least, node.bytes_per_flow(), &Vec::new());
    }
}

struct Measured {
    case: Case,
    node: SimulatedNode,
    /// Traffic of each worker, in turn by batch.
    traffic: Vec<[Traffic; 2]>,
    ns: Vec<f64>,
}

impl Measured {
    fn new(case: Case, tables: &CompiledRules) -> Measured {
        let mut node = SimulatedNode::with_workers(tables, slots_for(case.flows), case.workers);
        node.establish(&Traffic::established(&case, tables));
        let there = || Traffic::new(&case, tables);
        let back = || there().reversed();
        let traffic = if case.workers == 1 {
            vec![[there(), back()]]
        } else {
            vec![[there(), there()], [back(), back()]]
        };
        Measured { case, node, traffic, ns: Vec::new() }
    }

    fn round(&mut self) {
        let workers = self.case.workers;
        let barrier = SpinBarrier { arrived: AtomicUsize::new(0), workers };
        let (now, ports) = (self.node.simulation.now, &self.node.ports);
        let (_, steps) = self.node.simulation.apart();
        let times: Vec<Vec<Duration>> = thread::scope(|scope| {
            let barrier = &barrier;
            let run = |(worker, (step, traffic))| {
                scope.spawn(move || work(worker, step, traffic, ports, now, barrier))
            };
            let threads: Vec<_> = steps.zip(&mut self.traffic).enumerate().map(run).collect();
            threads.into_iter().map(|thread| thread.join().expect("a worker")).collect()
        });
        let slowest = |batch: usize| times.iter().map(|times| times[batch]).max().unwrap_or_default();
        let packets = (BATCH_FRAMES_MAX * workers) as f64;
        let mut ns: Vec<f64> = (0..BATCHES).map(|batch| slowest(batch).as_nanos() as f64 / packets).collect();
        self.node.simulation.now +=
            times.iter().map(|times| times.iter().sum::<Duration>()).max().unwrap_or_default();
        self.ns.push(median(&mut ns));
    }
}

/// Runs the batches of one worker, and returns their times.
fn work(
    worker: usize,
    mut step: impl FnMut(Duration) -> bool,
    traffic: &mut [Traffic; 2],
    ports: &[SimulatedPort],
    mut now: Duration,
    barrier: &SpinBarrier,
) -> Vec<Duration> {
    let mut times = Vec::with_capacity(BATCHES);
    for batch in 0..BATCHES {
        let traffic = &mut traffic[batch % 2];
        for _ in 0..BATCH_FRAMES_MAX {
            let (packet, _) = traffic.next();
            let peer = &ports[usize::from(packet.sender())].peers[worker];
            let took = peer.inject_with(traffic.frame_bytes, |frame| packet.write(traffic.family, frame));
            assert!(took, "a frame to receive into");
        }
        barrier.pass(batch + 1);
        let start = Instant::now();
        step(now);
        let took = start.elapsed();
        now += took;
        times.push(took);
        let passed: usize = ports.iter().map(|port| port.peers[worker].drain_with(|_| ())).sum();
        assert_eq!(passed, BATCH_FRAMES_MAX, "all packets pass");
    }
    times
}

/// Barrier that spins until all workers have come.
struct SpinBarrier {
    arrived: AtomicUsize,
    workers: usize,
}

impl SpinBarrier {
    fn pass(&self, turn: usize) {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        while self.arrived.load(Ordering::Acquire) < turn * self.workers {
            spin_loop();
        }
    }
}
