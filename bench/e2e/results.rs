//! Results: one flat JSON object a line for programs, one table a scenario for people.

use std::fs::{File, create_dir_all};
use std::io::{self, Write};
use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use palisade::pktgen::median;
use serde_json::{Map, Value, json};

use crate::scenarios::{Measures, Scenario};
use crate::systems::System;

/// The limit that others are compared with.
const LIMIT: &str = "noop";
/// The peers of which the best is compared with.
const PEERS: [&str; 3] = ["nftables", "iptables", "ovs"];

/// Characters of a reason that a table shows.
const REASON_MAX: usize = 100;

/// Where results go.
pub(crate) struct Results {
    file: File,
    lines: Vec<Map<String, Value>>,
}

impl Results {
    /// Begins a file anew.
    pub(crate) fn create(path: &Path) -> io::Result<Results> {
        if let Some(directory) = path.parent() {
            create_dir_all(directory)?;
        }
        Ok(Results { file: File::create(path)?, lines: vec![] })
    }

    /// Writes what the results come from.
    pub(crate) fn provenance(&mut self, facts: &Map<String, Value>) -> io::Result<()> {
        let mut line = fields(json!({"bench": "e2e", "scenario": "provenance"}));
        line.extend(facts.clone());
        writeln!(self.file, "{}", Value::Object(line))
    }

    /// Writes what a system did, or why it did nothing.
    pub(crate) fn add(
        &mut self,
        scenario: &Scenario,
        system: &dyn System,
        run: usize,
        outcome: Result<&Measures, &str>,
    ) -> io::Result<()> {
        let mut line = fields(json!({
            "bench": "e2e",
            "system": system.name(),
            "scenario": scenario.group,
            "case": scenario.name,
            "metric": scenario.metric,
            "better": if scenario.more_is_better { "more" } else { "less" },
            "rules": scenario.shape.rules,
            "pods": scenario.shape.pods,
            "mtu": scenario.mtu.for_system(system),
            "run": run,
            "seed": scenario.shape.seed,
        }));
        match outcome {
            Ok(measures) => line.extend(measures.clone()),
            Err(reason) => drop(line.insert("not_run".to_owned(), reason.into())),
        }
        writeln!(self.file, "{}", Value::Object(line.clone()))?;
        self.lines.push(line);
        Ok(())
    }

    /// Prints a scenario's results so far.
    pub(crate) fn print(&self, scenario: &Scenario, systems: &[Box<dyn System>]) {
        let mut rows: Vec<Row> =
            systems.iter().filter_map(|system| self.row(scenario, system.name())).collect();
        let value_of = |name: &str, rows: &[Row]| {
            rows.iter().find(|row| row.system == name).and_then(|row| row.spread.map(|(median, ..)| median))
        };
        let limit = value_of(LIMIT, &rows);
        let peers = PEERS.iter().filter_map(|peer| value_of(peer, &rows));
        let best = peers.reduce(if scenario.more_is_better { f64::max } else { f64::min });
        rows.iter_mut().for_each(|row| row.compare(limit, best));
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN);
        table.set_header([
            "system",
            scenario.metric,
            "least",
            "most",
            "of noop",
            "of best peer",
            "CPU s/Mpkt",
            "process s",
            "remarks",
        ]);
        table.add_rows(rows.into_iter().map(Row::cells));
        for column in table.column_iter_mut().skip(1).take(7) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        println!(
            "\n{} ({} rules, {} pods)\n{table}",
            scenario.name, scenario.shape.rules, scenario.shape.pods
        );
    }

    /// The median of a field in a scenario's lines of one system.
    pub(crate) fn median(&self, scenario: &str, system: &str, field: &str) -> Option<f64> {
        let is_of = |line: &&Map<String, Value>| line["case"] == scenario && line["system"] == system;
        let values = self.lines.iter().filter(is_of).filter_map(|line| line.get(field)?.as_f64()).collect();
        spread(values).map(|(median, ..)| median)
    }

    /// The least of the peers' medians.
    pub(crate) fn least_of_peers(&self, scenario: &str, field: &str) -> Option<f64> {
        PEERS.iter().filter_map(|peer| self.median(scenario, peer, field)).reduce(f64::min)
    }

    fn row(&self, scenario: &Scenario, system: &str) -> Option<Row> {
        let is_of = |line: &&Map<String, Value>| line["case"] == scenario.name && line["system"] == system;
        let lines: Vec<_> = self.lines.iter().filter(is_of).collect();
        let values =
            |field: &str| -> Vec<f64> { lines.iter().filter_map(|line| line.get(field)?.as_f64()).collect() };
        let text = |field: &str| lines.iter().find_map(|line| Some(line.get(field)?.as_str()?.to_owned()));
        let remarks = match text("not_run") {
            // Whole in the file.
            Some(reason) => format!("does not run: {}", reason.chars().take(REASON_MAX).collect::<String>()),
            None => text("note").unwrap_or_default(),
        };
        lines.first()?;
        Some(Row {
            system: system.to_owned(),
            spread: spread(values(scenario.metric)),
            of_limit: None,
            of_best: None,
            cpu: [values("cpu_all_s_per_mpkt"), values("cpu_processes_s")]
                .map(|of| spread(of).map(|of| of.0)),
            remarks,
        })
    }
}

/// A system's line of a table.
struct Row {
    system: String,
    spread: Option<(f64, f64, f64)>,
    of_limit: Option<f64>,
    of_best: Option<f64>,
    cpu: [Option<f64>; 2],
    remarks: String,
}

impl Row {
    fn compare(&mut self, limit: Option<f64>, best: Option<f64>) {
        let of = |other: Option<f64>| Some(self.spread?.0 / other.filter(|other| *other > 0.0)?);
        (self.of_limit, self.of_best) = (of(limit), of(best));
    }

    fn cells(self) -> Vec<String> {
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), short);
        let Row { system, spread, of_limit, of_best, cpu, remarks } = self;
        let of_runs = [spread.map(|of| of.0), spread.map(|of| of.1), spread.map(|of| of.2)];
        let numbers = of_runs.into_iter().chain([of_limit, of_best]).chain(cpu).map(number);
        std::iter::once(system).chain(numbers).chain([remarks]).collect()
    }
}

/// Median, least, most.
fn spread(mut values: Vec<f64>) -> Option<(f64, f64, f64)> {
    let median = (!values.is_empty()).then(|| median(&mut values))?;
    Some((median, *values.first()?, *values.last()?))
}

/// Three digits, or whole.
fn short(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// The fields of a literal object.
pub(crate) fn fields(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
