//! `make soak`: random tests for hours. Parts take turns, each run with a fresh seed, until the time is over. A failure
//! is recorded with the command that repeats it, and the soak continues.
//!
//! docs/testing.md describes the record.

mod output;
mod part;
mod programs;
mod record;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

use part::{PARTS, Part};
use programs::{End, Programs, Root};
use record::{Finding, Record, Run, Totals};

/// Directory of the record and of the output of findings.
const DIRECTORY: &str = "target/soak";
/// Longest run of a part, so that many seeds are tried. A test without a number of inputs may take longer.
const RUN_MAX: Duration = Duration::from_mins(2);
const RUN_MIN: Duration = Duration::from_secs(4);

#[derive(Parser)]
struct Arguments {
    /// Hours to run for. A fraction is a trial: every part runs once at least.
    #[arg(long)]
    hours: f64,
}

/// Part, and the state of its turns.
struct Turns {
    part: &'static Part,
    totals: Totals,
    used: Duration,
    /// Number of inputs of the next run.
    inputs: u64,
}

impl Turns {
    fn new(part: &'static Part) -> Turns {
        Turns { part, totals: Totals::default(), used: Duration::ZERO, inputs: part.first_inputs }
    }

    /// Time that the part has had, in proportion to its share.
    fn weighted(&self) -> Duration {
        self.used / self.part.share
    }

    /// Sets the number of inputs so that the next run takes `wanted`.
    fn adapt(&mut self, took: Duration, wanted: Duration) {
        let factor = wanted.as_secs_f64() / took.as_secs_f64().max(0.01);
        self.inputs = ((self.inputs as f64 * factor.clamp(0.1, 10.0)) as u64).clamp(1, 1 << 31);
    }
}

fn main() -> ExitCode {
    let hours = Arguments::parse().hours;
    let whole = Duration::from_secs_f64(hours * 3600.0);
    let programs = Programs::build();
    let root = Root::find();
    let mut record = Record::open(Path::new(DIRECTORY), hours);
    let (parts, skipped): (Vec<_>, Vec<_>) =
        PARTS.iter().partition(|part| !part.needs_root || root != Root::Missing);
    for part in skipped {
        eprintln!(
            "\nSKIPPED: {} needs root: run as root, or with sudo that asks for no password\n",
            part.name
        );
        record.skip(part.name, "needs root");
    }
    let mut turns: Vec<Turns> = parts.into_iter().map(Turns::new).collect();
    let shares: u32 = turns.iter().map(|turn| turn.part.share).sum();
    let start = Instant::now();
    loop {
        let next =
            turns.iter_mut().min_by_key(|turn| (turn.totals.runs > 0, turn.weighted())).expect("some part");
        if start.elapsed() >= whole && next.totals.runs > 0 {
            break;
        }
        let share = whole * next.part.share / shares;
        let left = whole.saturating_sub(start.elapsed());
        let wanted = (share / 3).clamp(RUN_MIN, RUN_MAX).min(left.max(RUN_MIN));
        turn(next, &programs, root, wanted, &mut record);
    }
    let totals: Vec<_> = turns.iter().map(|turn| (turn.part.name, turn.totals)).collect();
    record.finish(&totals);
    if totals.iter().any(|(_, totals)| totals.findings > 0) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs a part once with a fresh seed.
fn turn(turns: &mut Turns, programs: &Programs, root: Root, wanted: Duration, record: &mut Record) {
    let part = turns.part;
    let seed = part::fresh_seed();
    let variables = part.variables(seed, turns.inputs, wanted);
    let filters = part.filters_of_run(turns.totals.runs);
    eprintln!("{}: seed {seed}, {}", part.name, programs::assignments(&variables));
    let log = Path::new(DIRECTORY).join(format!("{}.log", part.name));
    let begin = Instant::now();
    let end = programs.run(part, filters, &variables, root, &log);
    let took = begin.elapsed();
    let output = output::read(&log, part);
    let end = if end.is_success() && output.inputs == 0 { End::WithoutInput } else { end };
    let finding = (!end.is_success()).then(|| Finding {
        end: end.to_string(),
        repeat: part.repeat(filters, &variables, &output),
        tests: output.failed.clone(),
        log: record.keep(&log, part.name),
    });
    let run = Run { part: part.name, seed, inputs: output.inputs, seconds: took.as_secs_f64(), finding };
    turns.totals.add(&run);
    turns.used += took;
    // A run that ends early with a failure says nothing about the time of its inputs.
    if run.finding.is_none() {
        turns.adapt(took, wanted);
    }
    record.add(&run);
}
