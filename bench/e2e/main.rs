//! End-to-end benchmark: the switch, the limit of its AF_XDP layer, and alternatives, on one machine, under
//! one policy and the same traffic, in one run. It needs root.
//!
//! Each trial sets up the pods and their node, starts one system, verifies that it enforces the policy,
//! measures, and tears everything down. Systems take turns (A B C A B C …), because the machines are noisy. A
//! system that does not run is reported with the reason. Results go to a file of JSON lines, and tables to
//! standard output.
//!
//! `e2e --list` shows systems and scenarios. A scenario is one `Scenario` in `scenarios/`, a system one
//! `System` in `systems/`.

mod bpf_loader;
#[path = "../common/mod.rs"]
mod common;
mod comparison_table;
mod cpu_time;
mod disturbance;
mod environment;
mod error;
mod manifests;
#[path = "../../tests/common/open_vswitch.rs"]
mod open_vswitch;
mod outside;
mod policy_check;
mod process;
mod receiver;
mod results;
mod rig;
mod scenario;
mod scenarios;
mod system;
mod systems;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use disturbance::BusyThreads;
use error::BenchError;
use palisade::lab::require_root;
use results::Results;
use rig::Rig;
use scenario::{Measures, Scenario, Trial};
use scenarios::NO_DROP;
use system::{Running, System};

/// File of results, from the root of the repository.
const RESULTS: &str = "bench/results/e2e.jsonl";
/// Systems that a smoke run leaves out unless they are named: limits besides `noop`, and settings of others.
const LONG_ONLY: [&str; 3] = ["bridge", "dpdk", "palisade-offload-rps"];
/// Systems of a smoke run after its first scenario, unless others are named: the first one in each scenario, the others in
/// those that a system is set up for in its own way.
const SMOKE_SYSTEMS: [&str; 3] = ["palisade", "palisade-offload", "nftables"];
/// Scenarios that a system is set up for in its own way: translation, and a card.
const WITH_SET_UP: [&str; 3] = ["tcp-bulk-service", "tcp-bulk-outside", "tcp-bulk-from-outside"];
/// Systems that a run leaves out unless they are named: the switch with workers under a real-time policy.
const IF_NAMED: [&str; 2] = ["palisade-real-time", "palisade-tap-real-time"];
/// File of results of smoke size.
const SMOKE_RESULTS: &str = "bench/results/e2e-smoke.jsonl";

/// Measures systems under one policy, side by side.
#[derive(Parser)]
#[command(name = "e2e")]
struct Options {
    /// One short trial of each system in one scenario, and of one to three in each other one, in small sizes
    #[arg(long)]
    smoke: bool,
    /// Length of the measurement of each trial, in seconds
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Number of runs of each system
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Begin no further run of a scenario when its share of this many minutes is over; each has one run
    #[arg(long, default_value_t = 25)]
    minutes: u32,
    /// Only these systems, separated by commas
    #[arg(long, value_delimiter = ',')]
    systems: Vec<String>,
    /// Only scenarios whose names contain one of these words
    #[arg(long, value_delimiter = ',')]
    scenarios: Vec<String>,
    /// Threads that never sleep, beside the system on its core
    #[arg(long, default_value_t = 0)]
    busy_threads: usize,
    /// Number of rules, in place of the scenario's
    #[arg(long)]
    rules: Option<usize>,
    /// Number of pods, in place of the scenario's
    #[arg(long)]
    pods: Option<usize>,
    /// The file for results
    #[arg(long)]
    out: Option<PathBuf>,
    /// Show systems and scenarios, and measure nothing
    #[arg(long)]
    list: bool,
    /// Forward between these interfaces, as the system `noop` does
    #[arg(long, hide = true, num_args = 1..)]
    forward: Vec<String>,
    /// Forward between the tap devices of these network namespaces, as the system `noop-tap` does
    #[arg(long, hide = true, num_args = 1..)]
    forward_taps: Vec<String>,
    /// Flag that cargo adds
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match (options.forward.as_slice(), options.forward_taps.as_slice()) {
        ([], []) => measure(&options),
        (interfaces, []) => systems::forward(interfaces),
        (_, namespaces) => systems::forward_taps(namespaces),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            eprintln!("e2e: {trouble}");
            ExitCode::from(2)
        }
    }
}

fn measure(options: &Options) -> Result<(), BenchError> {
    let systems = options.chosen_systems()?;
    let scenarios = options.chosen_scenarios()?;
    if options.list {
        systems.iter().for_each(|system| println!("system    {}", system.name()));
        scenarios.iter().for_each(|scenario| println!("scenario  {}", scenario.name));
        return Ok(());
    }
    require_root()?;
    let start = Instant::now();
    let default = if options.smoke { SMOKE_RESULTS } else { RESULTS };
    let path = options
        .out
        .clone()
        .unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/")).join(default));
    let mut results = Results::create(&path)?;
    results.add_environment(&environment::of(&systems, options.busy_threads))?;
    let _busy = BusyThreads::start(options.busy_threads)?;
    let share = Duration::from_mins(1) * options.minutes / scenarios.len() as u32;
    let in_smoke = |scenario: &Scenario| {
        let last = if WITH_SET_UP.contains(&scenario.name.as_str()) { SMOKE_SYSTEMS.len() } else { 1 };
        if scenario.name == scenarios[0].name { None } else { Some(&SMOKE_SYSTEMS[..last]) }
    };
    for (number, scenario) in (1..).zip(&scenarios) {
        let some = in_smoke(scenario).filter(|_| options.smoke && options.systems.is_empty());
        let is_in = |system: &&dyn System| some.is_none_or(|some| some.contains(&system.name()));
        let systems: Vec<&dyn System> = systems.iter().map(|system| &**system).filter(is_in).collect();
        take_turns(options, scenario, &systems, &mut results, start + share * number)?;
        comparison_table::print(&results, scenario, &systems);
    }
    println!("\n{:.0} s; lines in {}", start.elapsed().as_secs_f64(), path.display());
    Ok(())
}

/// Runs a scenario on all systems in turn. A system that has failed once is not tried again.
fn take_turns(
    options: &Options,
    scenario: &Scenario,
    systems: &[&dyn System],
    results: &mut Results,
    deadline: Instant,
) -> Result<(), BenchError> {
    let (runs, seconds) = if options.smoke { (1, 1) } else { (options.runs, options.seconds) };
    let mut out = BTreeSet::new();
    for run in 0..if scenario.once { 1 } else { runs } {
        if run > 0 && Instant::now() > deadline {
            eprintln!("{}: its time is over after {run} of {runs} runs", scenario.name);
            break;
        }
        for system in systems {
            let applies = (scenario.is_for)(system.kind()) && (system.leads_outside() || !scenario.outside);
            if out.contains(system.name()) || !applies {
                continue;
            }
            eprintln!("{} run {run}: {}", scenario.name, system.name());
            match trial(scenario, *system, seconds, results) {
                Ok(measures) => results.add(scenario, *system, run, Ok(&measures))?,
                Err(trouble) => {
                    out.insert(system.name());
                    results.add(scenario, *system, run, Err(&trouble.to_string()))?;
                }
            }
        }
    }
    Ok(())
}

/// Runs one trial from set-up to tear-down.
fn trial(
    scenario: &Scenario,
    system: &dyn System,
    seconds: u64,
    results: &Results,
) -> Result<Measures, BenchError> {
    let mtu = scenario.mtu.for_system(system);
    let mut rig = Rig::up(scenario.shape.pods, mtu, system.ports(), scenario.outside)?;
    let started = system.start(&mut rig, &scenario.shape);
    let measured =
        started.and_then(|running| measure_one(scenario, system, &rig, &*running, seconds, results));
    let left = rig.down();
    if !left.is_empty() {
        eprintln!("{}: left behind: {}", system.name(), left.join("; "));
    }
    measured
}

fn measure_one(
    scenario: &Scenario,
    system: &dyn System,
    rig: &Rig,
    running: &dyn Running,
    seconds: u64,
    results: &Results,
) -> Result<Measures, BenchError> {
    policy_check::verify(rig, system.kind())?;
    let mut measures = (scenario.measure)(&Trial {
        rig,
        running,
        shape: &scenario.shape,
        mtu: scenario.mtu.for_system(system),
        seconds,
        no_drop_mpps: results.median(NO_DROP, system.name(), "mpps"),
        peers_no_drop_mpps: results.least_of_peers(NO_DROP, "mpps"),
    })?;
    if let Some(note) = running.note() {
        measures.insert("note".to_owned(), note.into());
    }
    Ok(measures)
}

impl Options {
    fn chosen_systems(&self) -> Result<Vec<Box<dyn System>>, BenchError> {
        let all = systems::all();
        if let Some(unknown) =
            self.systems.iter().find(|name| all.iter().all(|system| system.name() != name.as_str()))
        {
            return Err(BenchError::Other(format!("there is no system {unknown}: --list shows them")));
        }
        let is_chosen = |system: &dyn System| {
            let named = self.systems.iter().any(|name| name == system.name());
            let in_full_run = !IF_NAMED.contains(&system.name());
            let in_this_run = in_full_run && !(self.smoke && LONG_ONLY.contains(&system.name()));
            named || self.systems.is_empty() && in_this_run
        };
        Ok(all.into_iter().filter(|system| is_chosen(&**system)).collect())
    }

    fn chosen_scenarios(&self) -> Result<Vec<Scenario>, BenchError> {
        let is_chosen = |name: &str| {
            self.scenarios.is_empty() || self.scenarios.iter().any(|word| name.contains(word.as_str()))
        };
        let mut chosen: Vec<Scenario> =
            scenarios::all(self.smoke).into_iter().filter(|scenario| is_chosen(&scenario.name)).collect();
        for scenario in &mut chosen {
            scenario.shape.rules = self.rules.unwrap_or(scenario.shape.rules);
            scenario.shape.pods = self.pods.unwrap_or(scenario.shape.pods).max(rig::PODS_MIN);
        }
        if chosen.is_empty() {
            return Err(BenchError::Other("no scenario is called so: --list shows them".to_owned()));
        }
        Ok(chosen)
    }
}
