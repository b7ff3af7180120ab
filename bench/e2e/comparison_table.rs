//! Table of one scenario: a row for each system, with its ratios to the limit and to the best peer.

use comfy_table::{CellAlignment, Table, presets};

use crate::common::json_lines::Fields;
use crate::common::statistics::Summary;
use crate::results::{PEERS, Results, summary};
use crate::scenario::Scenario;
use crate::system::System;

/// Systems without policy that are the limits of AF_XDP and of tap devices on this machine.
const LIMITS: [&str; 2] = ["noop", "noop-tap"];
/// End of the names of systems with pods on tap devices.
const TAP: &str = "-tap";
/// Characters of a reason that the table shows. The file has all of it.
const REASON_MAX: usize = 100;

/// Row of one system.
struct Row {
    system: String,
    metric: Option<Summary>,
    of_limit: Option<f64>,
    of_best_peer: Option<f64>,
    cpu_s_per_mpkt: Option<f64>,
    process_s: Option<f64>,
    remarks: String,
}

/// Prints the results of a scenario so far.
pub(crate) fn print(results: &Results, scenario: &Scenario, systems: &[&dyn System]) {
    let rows = systems.iter().filter_map(|system| {
        let lines = results.lines_of(&scenario.name, system.name());
        (!lines.is_empty()).then(|| Row::of(system.name(), &lines, scenario.metric))
    });
    let mut rows: Vec<Row> = rows.collect();
    let median_of =
        |name: &str| rows.iter().find(|row| row.system == name)?.metric.map(|metric| metric.median);
    let limits = LIMITS.map(median_of);
    let peers = PEERS.iter().filter_map(|peer| median_of(peer));
    let best_peer = peers.reduce(if scenario.more_is_better { f64::max } else { f64::min });
    rows.iter_mut().for_each(|row| row.compare(limits[usize::from(row.system.ends_with(TAP))], best_peer));
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
    println!("\n{} ({} rules, {} pods)\n{table}", scenario.name, scenario.shape.rules, scenario.shape.pods);
}

impl Row {
    fn of(system: &str, lines: &[&Fields], metric: &str) -> Row {
        let text = |field: &str| lines.iter().find_map(|line| Some(line.get(field)?.as_str()?.to_owned()));
        let median = |field: &str| Some(summary(lines, field)?.median);
        let remarks = match text("not_run") {
            Some(reason) => format!("does not run: {}", reason.chars().take(REASON_MAX).collect::<String>()),
            None => text("note").unwrap_or_default(),
        };
        Row {
            system: system.to_owned(),
            metric: summary(lines, metric),
            of_limit: None,
            of_best_peer: None,
            cpu_s_per_mpkt: median("cpu_all_s_per_mpkt"),
            process_s: median("cpu_processes_s"),
            remarks,
        }
    }

    fn compare(&mut self, limit: Option<f64>, best_peer: Option<f64>) {
        let of = |other: Option<f64>| Some(self.metric?.median / other.filter(|other| *other > 0.0)?);
        (self.of_limit, self.of_best_peer) = (of(limit), of(best_peer));
    }

    fn cells(self) -> Vec<String> {
        let metric = |value: fn(Summary) -> f64| self.metric.map(value);
        let numbers = [
            metric(|metric| metric.median),
            metric(|metric| metric.least),
            metric(|metric| metric.most),
            self.of_limit,
            self.of_best_peer,
            self.cpu_s_per_mpkt,
            self.process_s,
        ];
        let numbers = numbers.map(|number| number.map_or_else(|| "-".to_owned(), formatted));
        [self.system].into_iter().chain(numbers).chain([self.remarks]).collect()
    }
}

/// Formats a number with two decimals, or without any from 100 on.
fn formatted(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}
