//! Benchmark of the packet path in memory, from `receive` to `transmit`, with one worker or two. Generator
//! and collector of the frames are not in the measured time.
//!
//! Prints one JSON object a line on standard output, and tables on standard error. The cases of a group run
//! in turn for many rounds. The result is the median over the rounds of their median batch; the tables have
//! the least too. Ageing runs once a millisecond, so the median batch has none of it, and the table of stages
//! has its mean. `tsc_cycles_per_packet` is time in ticks of the time-stamp counter, which runs at a constant
//! rate, not at that of the core.
//!
//! `--smoke` takes about a second. `--flows-max=N`, `--rules-max=N` and `--rounds=N` choose; a word runs only
//! the cases that contain it. `--flows-in=DIRECTORY` puts flow tables into files there, as `palisade run`
//! does; the directory must be empty, and in memory.

#[path = "../common/mod.rs"]
mod common;
mod conntrack;
mod report;
mod services;
mod two_workers;
mod uplink;

use std::collections::BTreeMap;

use common::compiled_rules::CompiledRules;
use common::simulated_node::{FLOW_TABLE_DIRECTORY, SimulatedNode, slots_for};
use common::statistics::median;
use common::time_stamp_counter::tsc_ghz;
use common::traffic::{Case, Order, Traffic};
use report::Report;

/// Case with its node, traffic and results.
struct Measured {
    case: Case,
    traffic: Traffic,
    node: usize,
    ns: Vec<f64>,
}

/// Size of the run, and tables by number of rules.
struct Run {
    rounds: usize,
    flows_max: usize,
    rules_max: usize,
    only: Option<String>,
    report: Report,
    tables: BTreeMap<usize, CompiledRules>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let smoke = arguments.iter().any(|argument| argument == "--smoke");
    let only = arguments.iter().find(|argument| !argument.starts_with('-')).cloned();
    let option_text = |name: &str| arguments.iter().find_map(|argument| argument.strip_prefix(name));
    let option = |name: &str| option_text(name)?.parse().ok();
    let (rounds, most) = if smoke { (3, [10_000, 1_000]) } else { (31, [usize::MAX; 2]) };
    let rounds = option("--rounds=").unwrap_or(rounds);
    let flows_max = option("--flows-max=").unwrap_or(most[0]);
    let rules_max = option("--rules-max=").unwrap_or(most[1]);
    if let Some(directory) = option_text("--flows-in=") {
        FLOW_TABLE_DIRECTORY.set(directory.into()).expect("set once");
    }
    let report = Report::new(tsc_ghz());
    let mut run = Run { rounds, flows_max, rules_max, only, report, tables: BTreeMap::new() };
    for group in groups() {
        run.group(&group);
    }
    if run.wanted("workers") {
        run.pairs();
    }
    if run.wanted("uplink") {
        uplink::compare(run.flows_max.min(10_000), run.rounds);
    }
    if run.wanted("conntrack") {
        for flows in [10_000, 1_000_000].into_iter().filter(|&flows| flows <= run.flows_max) {
            conntrack::compare(flows, run.rounds, &run.report);
        }
    }
    if run.wanted("service-change") {
        services::change(if smoke { 200 } else { services::SERVICES }, run.rounds);
    }
    run.report.print_tables();
}

/// Returns the cases, in groups of those that are compared.
fn groups() -> Vec<Vec<Case>> {
    const RULES: [usize; 5] = [1, 50, 1_000, 10_000, 100_000];
    let orders = |case: Case| [Order::Sequence, Order::Random].map(|order| Case { order, ..case });
    let case = Case {
        name: "established",
        family: 4,
        rules: 10_000,
        flows: 10_000,
        order: Order::Random,
        workers: 1,
    };
    let established = |family| [100, 10_000, 100_000, 1_000_000].map(|flows| Case { family, flows, ..case });
    let by_rules = |name, flows| RULES.map(|rules| Case { name, rules, flows, ..case });
    let protocols = |family| {
        const NAMES: [&str; 4] = ["established", "tcp-established", "exchange", "tcp-exchange"];
        let both = |flows| NAMES.map(|name| Case { name, family, flows, rules: 1_000, ..case });
        [100, 10_000, 1_000_000].into_iter().flat_map(both).collect()
    };
    let families = |name, flows| [4, 6].map(|family| Case { name, family, flows, ..case });
    let services = |without, with| {
        let both = [without, with].into_iter().flat_map(|name| families(name, 10_000));
        both.map(|case| Case { rules: 1_000, ..case }).collect()
    };
    vec![
        established(4).into_iter().flat_map(orders).collect(),
        established(6).into_iter().flat_map(orders).collect(),
        protocols(4),
        protocols(6),
        by_rules("established", 10_000).into(),
        by_rules("new-flow", 100_000).into(),
        [1 << 14, 1 << 18].map(|flows| Case { name: "full-table", rules: 1_000, flows, ..case }).into(),
        families("new-flow", 10_000).into_iter().chain(families("new-flow", 1_000_000)).collect(),
        by_rules("denied", 10_000).into_iter().chain([Case { name: "denied", family: 6, ..case }]).collect(),
        services("established", "service-established"),
        services("reply", "service-reply"),
        services("service-established", "service-tcp-established"),
        services("service-reply", "service-tcp-reply"),
        services("service-exchange", "service-tcp-exchange"),
        services("new-flow", "service-new-flow"),
        families("mixed", 100_000).into(),
        families("fragments", 10_000).into(),
    ]
}

impl Run {
    fn wanted(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|only| name.contains(only))
    }

    /// Compares two workers with one.
    fn pairs(&mut self) {
        let rules = self.rules_max.min(10_000);
        let tables = self.tables.entry(rules).or_insert_with(|| CompiledRules::new(rules));
        for flows in [10_000, 1_000_000].into_iter().filter(|&flows| flows <= self.flows_max) {
            let case =
                Case { name: "established", family: 4, rules, flows, order: Order::Random, workers: 1 };
            two_workers::compare(case, tables, self.rounds, &self.report);
        }
    }

    /// Measures the cases of a group in turn.
    fn group(&mut self, cases: &[Case]) {
        let fits = |case: &&Case| case.flows <= self.flows_max && case.rules <= self.rules_max;
        let cases: Vec<Case> =
            cases.iter().filter(|case| self.wanted(case.name)).filter(fits).copied().collect();
        let mut nodes: Vec<(Case, SimulatedNode)> = Vec::new();
        let mut measured = Vec::new();
        for case in cases {
            let tables = self.tables.entry(case.rules).or_insert_with(|| CompiledRules::new(case.rules));
            let known = nodes.iter().position(|(of, _)| Case { order: case.order, ..*of } == case);
            let node = known.unwrap_or_else(|| {
                let slots = if case.fills_table() { case.flows } else { slots_for(case.flows) };
                let mut node = SimulatedNode::new(tables, slots);
                if case.by_service() {
                    let (services, _) = services::table(services::SERVICES, case.protocol());
                    node.load_services(&services);
                }
                node.establish(&Traffic::established(&case, tables));
                nodes.push((case, node));
                nodes.len() - 1
            });
            let mut traffic = Traffic::new(&case, tables);
            if case.fills_table() {
                nodes[node].1.fill(&mut traffic);
            }
            measured.push(Measured { case, traffic, node, ns: Vec::new() });
        }
        for _ in 0..=self.rounds {
            for measured in &mut measured {
                let ns = nodes[measured.node].1.round(&mut measured.traffic);
                measured.ns.push(ns);
            }
        }
        for mut measured in measured {
            let node = &mut nodes[measured.node].1;
            let stages = node.stages(&mut measured.traffic, self.rounds);
            // The first round warms the caches.
            measured.ns.remove(0);
            let least = measured.ns.iter().copied().fold(f64::INFINITY, f64::min);
            self.report.case(&measured.case, median(&mut measured.ns), least, node.bytes_per_flow(), &stages);
        }
    }
}
