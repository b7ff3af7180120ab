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

/// Times of the workers.
struct Times {
    /// Over the period.
    period: Vec<WorkerTimes>,
    since_start: Vec<WorkerTimes>,
}

fn times(client: &Client, arguments: &PeriodArguments) -> Result<Times, CliError> {
    let before = if arguments.seconds > 0 { client.worker_times()? } else { Vec::new() };
    sleep(Duration::from_secs(arguments.seconds));
    let since_start = client.worker_times()?;
    let since = |now: &WorkerTimes| {
        let before = before.iter().find(|before| before.worker == now.worker);
        before.map_or_else(|| now.clone(), |before| now.since(before))
    };
    Ok(Times { period: since_start.iter().map(since).collect(), since_start })
}

pub(super) fn workers(client: &Client, arguments: &PeriodArguments, output: Output) -> Result<(), CliError> {
    let times = times(client, arguments)?.period;
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
    let Times { period, since_start } = times(client, arguments)?;
    if output == Output::Json {
        let latency: Vec<_> = period.iter().map(|worker| (worker.worker, &worker.latency)).collect();
        return Ok(json(&latency)?);
    }
    Ok(text(&latency_text(arguments.seconds, &period, &since_start))?)
}

/// Latency over the period of so many seconds, or since the start if no packet has passed in it.
fn latency_text(seconds: u64, period: &[WorkerTimes], since_start: &[WorkerTimes]) -> String {
    let has_packets = |times: &[WorkerTimes]| times.iter().any(|worker| !worker.latency.is_empty());
    let (heading, times) = match (seconds, has_packets(period), has_packets(since_start)) {
        (_, _, false) => return "No packet has passed since the start of the switch.\n".to_owned(),
        (0, ..) => ("since the start of the switch:".to_owned(), since_start),
        (_, true, true) => (format!("over {seconds} s:"), period),
        (_, false, true) => (
            format!(
                "no packet has passed in {seconds} s (--seconds N waits longer); since the start of the switch:"
            ),
            since_start,
        ),
    };
    format!("{heading}\n{}", latency_table(times))
}

fn latency_table(times: &[WorkerTimes]) -> String {
    let mut table = table(["worker", "packets", "50 %", "90 %", "99 %", "99.9 %", "99.99 %", "longest"]);
    for worker in times.iter().filter(|worker| !worker.latency.is_empty()) {
        let histogram = histogram(&worker.latency);
        let quantile = |percent| duration(histogram.value_at_percentile(percent));
        let row = [worker.worker.to_string(), histogram.len().to_string()].into_iter();
        let longest = worker.latency.last().map_or(0, |(ns, _)| *ns);
        table.add_row(row.chain(QUANTILES.map(quantile)).chain([duration(longest)]));
    }
    render(&table, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_tells_its_period_and_is_that_since_the_start_where_nothing_has_passed() {
        let worker = |latency: &str| -> [WorkerTimes; 1] {
            let text = format!(
                "{{\"worker\":0,\"core\":0,\"clock_ns\":1,\"received\":0,\"batches\":0,\"turns\":0,\"sleeps\":0,\"busy_ns\":0,\
                 \"waited_ns\":null,\"stages\":[],\"stage_frames\":0,\"latency\":{latency},\"turn_times\":[]}}"
            );
            [serde_json::from_str(&text).unwrap()]
        };
        let (idle, busy) = (worker("[]"), worker("[[2000,7]]"));
        let first_line = |seconds, period: &[WorkerTimes], since_start: &[WorkerTimes]| {
            let text = latency_text(seconds, period, since_start);
            (text.lines().next().unwrap().to_owned(), text.lines().count())
        };
        let (says, lines) = first_line(1, &idle, &busy);
        assert!(says.contains("in 1 s (--seconds N waits longer); since the start"), "{says}");
        assert!(lines > 2, "the table is that since the start");
        assert_eq!(first_line(5, &busy, &busy).0, "over 5 s:");
        assert_eq!(first_line(0, &busy, &busy).0, "since the start of the switch:");
        assert_eq!(
            first_line(1, &idle, &idle),
            ("No packet has passed since the start of the switch.".to_owned(), 1)
        );
    }
}
