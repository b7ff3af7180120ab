//! Command `palisade show counters`: prints counters as tables.

use crate::cli::CliError;
use crate::cli::output::{Output, json, render, table, text};
use crate::control::Client;
use crate::control::protocol::CountersReport;
use crate::dataplane::{DropReason, LOSSES};
use crate::tables::Verdict;

const UNKNOWN: &str = "a reason that this program does not know: the switch is of another version";

pub(super) fn counters(client: &Client, output: Output) -> Result<(), CliError> {
    let report = client.counters()?;
    if output == Output::Json {
        return Ok(json(&report)?);
    }
    let parts = [ports(&report), losses(&report), drops(&report), decisions(&report), workers(&report)];
    Ok(text(&parts.join("\n"))?)
}

fn ports(report: &CountersReport) -> String {
    let mut table = table([
        "port",
        "lost",
        "received",
        "bytes",
        "forwarded",
        "consumed",
        "dropped",
        "transmitted",
        "bytes",
    ])
    .left_out_first(&["bytes", "consumed"]);
    for (name, port) in &report.ports {
        let dropped: u64 = port.drops.values().sum();
        let lost = port.lost.values().sum();
        let numbers = [
            lost,
            port.received,
            port.received_bytes,
            port.forwarded,
            port.consumed,
            dropped,
            port.transmitted,
        ];
        let numbers = numbers.into_iter().chain([port.transmitted_bytes]).map(|number| number.to_string());
        table.add_row([name.clone()].into_iter().chain(numbers));
    }
    render(&table, "The switch has no ports.")
}

fn drops(report: &CountersReport) -> String {
    let mut table = table(["port", "drop reason", "frames", "meaning"]);
    for (name, port) in &report.ports {
        for (reason, frames) in &port.drops {
            table.add_row([name.as_str(), reason, &frames.to_string(), meaning(reason)]);
        }
    }
    render(&table, "Nothing was dropped.")
}

fn losses(report: &CountersReport) -> String {
    let mut table = table(["port", "lost before the switch", "frames", "meaning"]);
    for (name, port) in &report.ports {
        for (place, frames) in &port.lost {
            let meaning =
                LOSSES.iter().find(|(known, _)| known == place).map_or(UNKNOWN, |(_, meaning)| *meaning);
            table.add_row([name.as_str(), place, &frames.to_string(), meaning]);
        }
    }
    render(&table, "The kernel lost nothing before the switch, as far as it tells.")
}

fn meaning(name: &str) -> &'static str {
    let reason = DropReason::ALL.iter().find(|reason| reason.name() == name);
    reason.map_or(UNKNOWN, |reason| reason.meaning())
}

fn decisions(report: &CountersReport) -> String {
    let mut table = table(["verdict", "packets", "decided by"]);
    for decision in &report.decisions {
        let verdict = match decision.verdict {
            Verdict::Allow => "allow",
            Verdict::Deny => "deny",
        };
        table.add_row([verdict, &decision.packets.to_string(), &decision.origin.to_string()]);
    }
    render(&table, "Policy has decided nothing yet.")
}

fn workers(report: &CountersReport) -> String {
    let mut table = table([
        "worker",
        "core",
        "received",
        "batches",
        "sleeps",
        "flows",
        "evicted",
        "frames",
        "frames free",
    ])
    .left_out_first(&["sleeps", "batches", "core"]);
    for (number, worker) in &report.workers {
        table.add_row([
            number.clone(),
            worker.core.to_string(),
            worker.received.to_string(),
            worker.batches.to_string(),
            worker.sleeps.to_string(),
            worker.flows_entered.saturating_sub(worker.flows_ended).to_string(),
            worker.flows_evicted.to_string(),
            worker.frames.to_string(),
            worker.frames_free.to_string(),
        ]);
    }
    render(&table, "The switch has no workers.")
}
