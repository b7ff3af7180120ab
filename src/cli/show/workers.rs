//! Commands `palisade show workers` and `palisade show latency`: work and times of the workers, over some seconds or
//! since the start.

use std::thread::sleep;
use std::time::Duration;

use clap::Args;

use crate::cli::CliError;
use crate::cli::output::times::{duration, histogram, ratio};
use crate::cli::output::{Output, json, render, table, text};
use crate::control::Client;
use crate::dataplane::WorkerTimes;

/// Quantiles of latency, percent.
const QUANTILES: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 99.99];

#[derive(Debug, Args)]
pub(super) struct PeriodArguments {
    /// Time to measure, in seconds; 0 is the time since the start of the switch
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    seconds: u64,
}

/// Reads the times of the workers over the period.
fn times(client: &Client, arguments: &PeriodArguments) -> Result<Vec<WorkerTimes>, CliError> {
    let before = if arguments.seconds > 0 { client.worker_times()? } else { Vec::new() };
    sleep(Duration::from_secs(arguments.seconds));
    let after = client.worker_times()?;
    let since = |now: WorkerTimes| {
        let before = before.iter().find(|before| before.worker == now.worker);
        before.map_or_else(|| now.clone(), |before| now.since(before))
    };
    Ok(after.into_iter().map(since).collect())
}

pub(super) fn workers(client: &Client, arguments: &PeriodArguments, output: Output) -> Result<(), CliError> {
    let times = times(client, arguments)?;
    if output == Output::Json {
        return Ok(json(&times)?);
    }
    let mut workers = table([
        "worker",
        "core",
        "packets/s",
        "packets a batch",
        "ns a packet",
        "idle",
        "sleeps/s",
        "without core",
        "longest turn",
    ]);
    let mut stages = table(["worker", "stage", "ns a packet"]);
    for worker in &times {
        let seconds = worker.clock_ns as f64 / 1e9;
        let share = |ns: u64| format!("{:.1} %", 100.0 * ns as f64 / worker.clock_ns as f64);
        workers.add_row([
            worker.worker.to_string(),
            worker.core.to_string(),
            format!("{:.0}", worker.received as f64 / seconds),
            ratio(worker.received, worker.batches),
            ratio(worker.busy_ns, worker.received),
            share(worker.clock_ns.saturating_sub(worker.busy_ns)),
            format!("{:.0}", worker.sleeps as f64 / seconds),
            worker.waited_ns.map_or_else(|| "-".to_owned(), share),
            worker.turn_times.last().map_or_else(|| "-".to_owned(), |(ns, _)| duration(*ns)),
        ]);
        for stage in worker.stages.iter().filter(|_| worker.stage_frames > 0) {
            let number = worker.worker.to_string();
            stages.add_row([number, stage.stage.clone(), ratio(stage.ns, worker.stage_frames)]);
        }
    }
    let stages = render(&stages, "No batch was measured: one in 64 is.");
    Ok(text(&format!("{}\n{stages}", render(&workers, "The switch has no workers.")))?)
}

pub(super) fn latency(client: &Client, arguments: &PeriodArguments, output: Output) -> Result<(), CliError> {
    let times = times(client, arguments)?;
    if output == Output::Json {
        let latency: Vec<_> = times.iter().map(|worker| (worker.worker, &worker.latency)).collect();
        return Ok(json(&latency)?);
    }
    let mut table = table(["worker", "packets", "50 %", "90 %", "99 %", "99.9 %", "99.99 %", "longest"]);
    for worker in times.iter().filter(|worker| !worker.latency.is_empty()) {
        let histogram = histogram(&worker.latency);
        let quantile = |percent| duration(histogram.value_at_percentile(percent));
        let row = [worker.worker.to_string(), histogram.len().to_string()].into_iter();
        let longest = worker.latency.last().map_or(0, |(ns, _)| *ns);
        table.add_row(row.chain(QUANTILES.map(quantile)).chain([duration(longest)]));
    }
    Ok(text(&render(&table, "No packet has passed."))?)
}
