//! Command `palisade demo`: four pods and one policy on this machine, with real connections.

use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use clap::Args;
use comfy_table::{Cell, Color, Table, presets};

use super::output::terminal::spinner;
use super::signals::interruption;
use super::{CliError, Output, output, terminal};
use crate::lab::demo::{DemoSpec, Denied, Report, Step, play};
use crate::lab::traffic::Outcome;
use crate::lab::{Journal, LabError, PodPorts};

/// Play the classic scenario on this machine: four pods, one policy, real connections
///
/// Makes pods `db`, `frontend`, `backend1` and `backend2` as network namespaces, starts a switch between
/// them, and connects each pod to each other: without a policy, with one that lets only the back ends reach
/// the database, and without it again. Prints expected and actual results, and the switch's drops with their
/// reasons. Exit code 1 on a difference. Needs root; removes everything that it makes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sudo palisade demo
  sudo palisade demo --workers 2 --output json
  sudo palisade demo --keep                    then look around: palisade lab exec frontend -- ping -c1 10.77.0.2")]
pub(super) struct DemoArguments {
    /// Interfaces of the pods: one end of a veth pair, or a tap device of the switch
    #[arg(long, value_enum, default_value_t)]
    ports: PodPorts,
    /// Workers of the switch, and queues of every pod
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: u16,
    /// Form of the report
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Leave pods and switch running; `palisade lab clean` removes them
    #[arg(long)]
    keep: bool,
}

pub(super) fn demo(arguments: &DemoArguments) -> Result<ExitCode, CliError> {
    let interrupted = interruption()?;
    let program = std::env::current_exe()
        .map_err(|error| CliError::Message(format!("the program cannot find itself: {error}")))?;
    let DemoArguments { ports, workers, keep, .. } = *arguments;
    let spec = DemoSpec { program, ports, workers, keep };
    let spinner = spinner();
    let played = play(&spec, &interrupted, &mut |what| spinner.set_message(what.to_owned()));
    spinner.finish_and_clear();
    let played = played?;
    match arguments.output {
        Output::Json => output::json(&played.report)?,
        Output::Table | Output::Wide => output::styled(&render(&played.report))?,
    }
    if let Some(record) = played.kept {
        print_kept_lab(&record);
    }
    Ok(if played.report.mismatches == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_kept_lab(record: &Journal) {
    let socket = record.directory().join("control.sock");
    eprintln!("Lab {} stays. Look around, then remove it:", record.id);
    eprintln!("  palisade show counters --socket {}", socket.display());
    eprintln!("  palisade lab exec --lab {} frontend -- ping -c1 {}", record.id, record.pods[0].v4());
    eprintln!("  palisade lab clean {}", record.id);
}

fn render(report: &Report) -> String {
    let steps = report.steps.iter().enumerate().map(|(number, step)| render_step(number + 1, step));
    let (latency, throughput) = (&report.latency, &report.throughput);
    let measured = format!(
        "backend1 to db: {:.2} Gbit/s of TCP; round trips {:.0} us (half), {:.0} us (99 of 100), {} of them\n",
        throughput.gbit_per_s, latency.p50_us, latency.p99_us, latency.count
    );
    let frames = report
        .frames_by_worker
        .iter()
        .map(|(worker, frames)| format!("worker {worker} took {frames} frames"));
    let frames = frames.collect::<Vec<_>>().join(", ");
    let verdict = match report.mismatches {
        0 => paint(AnsiColor::Green, "everything as expected"),
        1 => paint(AnsiColor::Red, "1 connection was not as expected"),
        count => paint(AnsiColor::Red, &format!("{count} connections were not as expected")),
    };
    let end = format!("{frames}\n{verdict}, in {:.1} s\n", report.seconds);
    steps.chain([measured, end]).collect()
}

fn render_step(number: usize, step: &Step) -> String {
    let bold = if colours() { Style::new().bold() } else { Style::new() };
    let head = format!("{bold}Step {number}: {}{bold:#}\n{}\n", step.name, matrix(step));
    let line = |denied: &Denied| format!("  denied {} packets: {}\n", denied.packets, denied.by);
    let denied: Vec<String> = step.denied.iter().map(line).collect();
    head + &denied.concat() + "\n"
}

/// Table of sources (rows) and destinations (columns). A cell holds the result, and the expected one if it
/// differs.
fn matrix(step: &Step) -> Table {
    let mut columns: Vec<&String> = step.expected.values().flat_map(|row| row.keys()).collect();
    columns.sort();
    columns.dedup();
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    if !colours() {
        table.force_no_tty();
    }
    let header = columns.iter().map(|column| short(column));
    table.set_header(["from \\ to"].into_iter().chain(header));
    for (from, row) in &step.expected {
        let cells =
            columns.iter().map(|&to| cell(row.get(to), step.seen.get(from).and_then(|row| row.get(to))));
        table.add_row([Cell::new(short(from))].into_iter().chain(cells));
    }
    table
}

fn cell(expected: Option<&Outcome>, seen: Option<&Outcome>) -> Cell {
    let (text, color) = match (expected, seen) {
        (None, _) => return Cell::new(""),
        (Some(expected), Some(seen)) if expected == seen => match seen {
            Outcome::Allowed => (seen.to_string(), Color::Green),
            _ => (seen.to_string(), Color::Yellow),
        },
        (Some(expected), Some(seen)) => (format!("{seen}\nexpected: {expected}"), Color::Red),
        (Some(expected), None) => (format!("not tried\nexpected: {expected}"), Color::Red),
    };
    Cell::new(text).fg(color)
}

fn short(name: &str) -> &str {
    name.strip_prefix("default/").unwrap_or(name)
}

fn paint(color: AnsiColor, text: &str) -> String {
    let style = if colours() { color.on_default().bold() } else { Style::new() };
    format!("{style}{text}{style:#}")
}

fn colours() -> bool {
    terminal::has_colors(&std::io::stdout())
}

impl From<LabError> for CliError {
    fn from(error: LabError) -> CliError {
        CliError::Message(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_cell_names_what_was_seen_and_where_it_differs_what_was_expected() {
        let row = |outcome| BTreeMap::from([("default/db:6379".to_owned(), outcome)]);
        let step = Step {
            name: "closed".to_owned(),
            expected: BTreeMap::from([
                ("default/backend".to_owned(), row(Outcome::Allowed)),
                ("default/frontend".to_owned(), row(Outcome::TimedOut)),
            ]),
            seen: BTreeMap::from([
                ("default/backend".to_owned(), row(Outcome::Allowed)),
                ("default/frontend".to_owned(), row(Outcome::Refused)),
            ]),
            denied: vec![],
        };
        let text = render_step(2, &step);
        assert!(text.starts_with("Step 2: closed\n"), "{text}");
        let line =
            |start: &str| text.lines().find(|line| line.contains(start)).unwrap_or_default().to_owned();
        assert!(line("backend").contains("allowed") && line("frontend").contains("refused"), "{text}");
        assert_eq!(text.matches("expected: timed out").count(), 1, "{text}");
        assert_eq!(text.matches("expected:").count(), 1, "{text}");
    }
}
