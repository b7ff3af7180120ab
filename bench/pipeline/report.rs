//! Results: JSON lines for programs, tables for people.

use std::cell::RefCell;

use comfy_table::{CellAlignment, Table, presets};

pub(crate) use palisade::pktgen::median;

use crate::common::traffic::{Case, Order};

/// Collects what the tables show.
pub(crate) struct Report {
    tsc_ghz: f64,
    cases: RefCell<Vec<Vec<String>>>,
    stages: RefCell<Vec<Vec<String>>>,
    names: RefCell<Vec<&'static str>>,
    others: RefCell<Vec<Vec<String>>>,
}

impl Report {
    pub(crate) fn new(tsc_ghz: f64) -> Report {
        Report {
            tsc_ghz,
            cases: RefCell::default(),
            stages: RefCell::default(),
            names: RefCell::default(),
            others: RefCell::default(),
        }
    }

    /// Reports a case of the packet path.
    pub(crate) fn case(
        &self,
        case: &Case,
        ns: f64,
        least: f64,
        bytes: f64,
        stages: Vec<(&'static str, f64)>,
    ) {
        let Case { name, family, rules, flows, order, workers } = case;
        let order = if *order == Order::Sequence { "sequence" } else { "random" };
        let (cycles, mpps) = (ns * self.tsc_ghz, 1e3 / ns);
        let facts = format!(
            r#""case":"{name}","family":{family},"rules":{rules},"flows":{flows},"order":"{order}","workers":{workers},"frame_bytes":{}"#,
            case.frame_bytes()
        );
        println!(
            r#"{{"bench":"pipeline",{facts},"tsc_cycles_per_packet":{cycles:.1},"ns_per_packet":{ns:.2},"mpps":{mpps:.2},"bytes_per_flow":{bytes:.1}}}"#
        );
        let of_stages: Vec<String> =
            stages.iter().map(|(stage, ns)| format!(r#","{stage}":{:.1}"#, ns * self.tsc_ghz)).collect();
        if !stages.is_empty() {
            println!(r#"{{"bench":"pipeline-stages",{facts}{}}}"#, of_stages.concat());
        }
        let name = if *workers == 1 { (*name).into() } else { format!("{name}, {workers} workers") };
        let head = [name, family.to_string(), rules.to_string(), flows.to_string(), order.to_owned()];
        let numbers = [cycles, least * self.tsc_ghz, ns, mpps].map(|number| format!("{number:.1}"));
        self.cases.borrow_mut().push(head.iter().cloned().chain(numbers).collect());
        if stages.is_empty() {
            return;
        }
        let of_stages = stages.iter().map(|(_, ns)| format!("{:.1}", ns * self.tsc_ghz));
        self.stages.borrow_mut().push(head.into_iter().chain(of_stages).collect());
        *self.names.borrow_mut() = stages.into_iter().map(|(stage, _)| stage).collect();
    }

    /// Reports how a system did in a comparison.
    pub(crate) fn system(&self, case: &str, flows: usize, system: &str, ns: f64) {
        let cycles = ns * self.tsc_ghz;
        println!(
            r#"{{"bench":"pipeline","case":"{case}","flows":{flows},"order":"random","system":"{system}","tsc_cycles_per_packet":{cycles:.1},"ns_per_packet":{ns:.2}}}"#
        );
        let row = [case.into(), flows.to_string(), system.into(), format!("{cycles:.1}"), format!("{ns:.1}")];
        self.others.borrow_mut().push(row.into());
    }

    /// Prints the tables to standard error.
    pub(crate) fn print_tables(&self) {
        eprintln!("\nTime-stamp counter: {:.3} GHz. Cycles are its ticks per packet.", self.tsc_ghz);
        let head = ["case", "IP", "rules", "flows", "order"];
        let columns = head.into_iter().chain(["cycles", "least", "ns", "Mpps"]).collect();
        print("Whole path", columns, &self.cases.borrow());
        let columns = head.into_iter().chain(self.names.borrow().iter().copied()).collect();
        print("Cycles by stage", columns, &self.stages.borrow());
        print("Look-ups alone", vec!["case", "flows", "system", "cycles", "ns"], &self.others.borrow());
    }
}

fn print(title: &str, columns: Vec<&str>, rows: &[Vec<String>]) {
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
