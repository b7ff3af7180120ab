//! Ageing: the time of a batch while the worker expires idle flows and forwards packets of a few others.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::common::compiled_rules::CompiledRules;
use crate::common::json_lines;
use crate::common::latency::Latencies;
use crate::common::simulated_node::{SimulatedNode, slots_for};
use crate::common::statistics::rounded;
use crate::common::traffic::{Case, Order, Traffic};

/// Time until all flows are idle for longer than their time-out.
const IDLE: Duration = Duration::from_mins(5);
/// Flows that stay in use.
const USED: usize = 16;

#[derive(Serialize)]
struct Line {
    bench: &'static str,
    case: &'static str,
    flows: usize,
    batches: u64,
    batch_us_p50: f64,
    batch_us_p99: f64,
    batch_us_max: f64,
}

/// Expires this many flows, and prints the time of the batches meanwhile.
pub(crate) fn measure(flows: usize) {
    let case = Case { name: "established", family: 4, rules: 1, flows, order: Order::Sequence, workers: 1 };
    let used = Case { flows: USED, ..case };
    let tables = CompiledRules::new(case.rules);
    let mut node = SimulatedNode::new(&tables, slots_for(flows));
    node.establish(&Traffic::established(&case, &tables));
    let mut traffic = Traffic::new(&used, &tables);
    node.simulation.now += IDLE;
    let mut batches = Latencies::default();
    while node.simulation.flows_len() > USED {
        for _ in 0..4_000 {
            node.load_forwarded(&mut traffic);
            let start = Instant::now();
            node.simulation.step_worker(0);
            let took = start.elapsed();
            node.simulation.now += took;
            batches.record(took);
            node.ports.iter().for_each(|port| _ = port.peers[0].drain_with(|_| ()));
        }
    }
    json_lines::print(&Line {
        bench: "update",
        case: "ageing",
        flows,
        batches: batches.len(),
        batch_us_p50: rounded(batches.us(0.5), 1),
        batch_us_p99: rounded(batches.us(0.99), 1),
        batch_us_max: rounded(batches.max_us(), 1),
    });
}
