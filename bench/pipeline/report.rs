//! Results of the packet path: JSON lines on standard output, and tables on standard error.

use std::cell::RefCell;
use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::common::json_lines;
use crate::common::statistics::rounded;
use crate::common::traffic::{Case, Order};

/// Time of each stage, in the order of the worker's loop: name and nanoseconds a packet.
pub(crate) type Stages = Vec<(&'static str, f64)>;

/// Writer of JSON lines, and collector of the rows of the tables.
pub(crate) struct Report {
    tsc_ghz: f64,
    cases: RefCell<Vec<Vec<String>>>,
    stages: RefCell<Vec<Vec<String>>>,
    stage_names: RefCell<Vec<&'static str>>,
    comparisons: RefCell<Vec<Vec<String>>>,
}

/// Parameters of a case, as they stand in its lines.
#[derive(Serialize)]
struct Parameters {
    case: &'static str,
    family: u8,
    rules: usize,
    flows: usize,
    order: &'static str,
    workers: usize,
    frame_bytes: usize,
}

/// Line of a case: the whole path.
#[derive(Serialize)]
struct CaseLine<'a> {
    bench: &'static str,
    #[serde(flatten)]
    parameters: &'a Parameters,
    tsc_cycles_per_packet: f64,
    ns_per_packet: f64,
    mpps: f64,
    bytes_per_flow: f64,
}

/// Line of a case: ticks of the time-stamp counter in each stage.
#[derive(Serialize)]
struct StagesLine<'a> {
    bench: &'static str,
    #[serde(flatten)]
    parameters: &'a Parameters,
    #[serde(flatten)]
    tsc_cycles: BTreeMap<&'static str, f64>,
}

/// Line of one system in a comparison.
#[derive(Serialize)]
struct ComparisonLine<'a> {
    bench: &'static str,
    case: &'a str,
    flows: usize,
    order: &'static str,
    system: &'a str,
    tsc_cycles_per_packet: f64,
    ns_per_packet: f64,
}

impl Report {
    /// Makes an empty report, for a time-stamp counter of this rate.
    pub(crate) fn new(tsc_ghz: f64) -> Report {
        Report {
            tsc_ghz,
            cases: RefCell::default(),
            stages: RefCell::default(),
            stage_names: RefCell::default(),
            comparisons: RefCell::default(),
        }
    }

    /// Reports a case: nanoseconds a packet as the median and the least of all rounds, bytes of conntrack a
    /// flow, and the time of each stage, which may be missing.
    pub(crate) fn case(&self, case: &Case, ns: f64, least_ns: f64, bytes_per_flow: f64, stages: &Stages) {
        let parameters = Parameters::of(case);
        let (cycles, mpps) = (ns * self.tsc_ghz, 1e3 / ns);
        json_lines::print(&CaseLine {
            bench: "pipeline",
            parameters: &parameters,
            tsc_cycles_per_packet: rounded(cycles, 1),
            ns_per_packet: rounded(ns, 2),
            mpps: rounded(mpps, 2),
            bytes_per_flow: rounded(bytes_per_flow, 1),
        });
        let head = parameters.cells();
        let numbers = [cycles, least_ns * self.tsc_ghz, ns, mpps].map(|number| format!("{number:.1}"));
        self.cases.borrow_mut().push(head.iter().cloned().chain(numbers).collect());
        if stages.is_empty() {
            return;
        }
        let cycles = || stages.iter().map(|(stage, ns)| (*stage, ns * self.tsc_ghz));
        json_lines::print(&StagesLine {
            bench: "pipeline-stages",
            parameters: &parameters,
            tsc_cycles: cycles().map(|(stage, cycles)| (stage, rounded(cycles, 1))).collect(),
        });
        let numbers = cycles().map(|(_, cycles)| format!("{cycles:.1}"));
        self.stages.borrow_mut().push(head.into_iter().chain(numbers).collect());
        *self.stage_names.borrow_mut() = stages.iter().map(|(stage, _)| *stage).collect();
    }

    /// Reports one system of a comparison: nanoseconds a look-up.
    pub(crate) fn comparison(&self, case: &str, flows: usize, system: &str, ns: f64) {
        let cycles = ns * self.tsc_ghz;
        json_lines::print(&ComparisonLine {
            bench: "pipeline",
            case,
            flows,
            order: "random",
            system,
            tsc_cycles_per_packet: rounded(cycles, 1),
            ns_per_packet: rounded(ns, 2),
        });
        let row = [case.into(), flows.to_string(), system.into(), format!("{cycles:.1}"), format!("{ns:.1}")];
        self.comparisons.borrow_mut().push(row.into());
    }

    /// Prints the tables to standard error.
    pub(crate) fn print_tables(&self) {
        eprintln!("\nTime-stamp counter: {:.3} GHz. Cycles are its ticks per packet.", self.tsc_ghz);
        let head = ["case", "IP", "rules", "flows", "order"];
        let columns = head.into_iter().chain(["cycles", "least", "ns", "Mpps"]).collect();
        print_table("Whole path", columns, &self.cases.borrow());
        let columns = head.into_iter().chain(self.stage_names.borrow().iter().copied()).collect();
        print_table("Cycles by stage", columns, &self.stages.borrow());
        let columns = vec!["case", "flows", "system", "cycles", "ns"];
        print_table("Look-ups alone", columns, &self.comparisons.borrow());
    }
}

impl Parameters {
    fn of(case: &Case) -> Parameters {
        Parameters {
            case: case.name,
            family: case.family,
            rules: case.rules,
            flows: case.flows,
            order: if case.order == Order::Sequence { "sequence" } else { "random" },
            workers: case.workers,
            frame_bytes: case.frame_bytes(),
        }
    }

    /// First cells of a table's row.
    fn cells(&self) -> Vec<String> {
        let Parameters { case, workers, .. } = self;
        let name = if *workers == 1 { (*case).into() } else { format!("{case}, {workers} workers") };
        vec![
            name,
            self.family.to_string(),
            self.rules.to_string(),
            self.flows.to_string(),
            self.order.to_owned(),
        ]
    }
}

fn print_table(title: &str, columns: Vec<&str>, rows: &[Vec<String>]) {
    if rows.is_empty() {
        return;
    }
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header(columns);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    eprintln!("\n{title}\n{table}");
}
