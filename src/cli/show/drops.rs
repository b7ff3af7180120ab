//! Command `palisade show drops`: prints the last dropped frames.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use clap::Args;

use crate::cli::output::reader::end_with_reader;
use crate::cli::output::{Output, end, json, or_dash, render, table, text, time_of_day};
use crate::cli::{CliError, terminal};
use crate::control::protocol::DropRecord;
use crate::control::{Client, DropFilter};
use crate::dataplane::DropReason;
use crate::tables::PodName;

/// Interval of requests while drops are followed.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(super) struct DropsArguments {
    /// Most frames to show: the latest ones
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    max: usize,
    /// Only frames that were dropped for this reason
    #[arg(long, value_name = "REASON", value_parser = reason)]
    reason: Option<DropReason>,
    /// Only frames from this port
    #[arg(long, value_name = "PORT")]
    port: Option<String>,
    /// Only frames from or to this pod
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pod: Option<PodName>,
    /// Continue with frames as they are dropped, until interrupted
    #[arg(long)]
    follow: bool,
}

fn reason(text: &str) -> Result<DropReason, String> {
    let known = DropReason::ALL.iter().find(|reason| reason.name() == text);
    known.copied().ok_or_else(|| {
        let names: Vec<&str> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
        format!("no such reason: it is one of {}", names.join(", "))
    })
}

pub(super) fn drops(client: &Client, arguments: &DropsArguments, output: Output) -> Result<(), CliError> {
    let DropsArguments { max, reason, port, pod, follow } = arguments;
    let filter =
        DropFilter { after: 0, max: Some(*max), reason: *reason, port: port.clone(), pod: pod.clone() };
    let mut report = client.drops(&filter)?;
    if !follow {
        return Ok(match output {
            Output::Json => json(&report),
            Output::Table => text(&as_table(&report.drops)),
        }?);
    }
    end_with_reader()?;
    loop {
        for drop in &report.drops {
            match output {
                Output::Json => println_json(drop)?,
                Output::Table => text(&format!("{}\n", line(drop)))?,
            }
        }
        sleep(FOLLOW_INTERVAL);
        let lost = report.lost;
        report = client.drops(&DropFilter { after: report.last, max: None, ..filter.clone() })?;
        if report.lost > lost {
            terminal::note(&format!("{} sampled frames were not recorded", report.lost - lost));
        }
    }
}

/// Prints one line of JSON, without control characters.
fn println_json(drop: &DropRecord) -> io::Result<()> {
    text(&(serde_json::to_string(drop)? + "\n"))
}

fn as_table(drops: &[DropRecord]) -> String {
    let mut table = table(["time", "reason", "port", "frame", "from", "to", "denied by"]);
    for drop in drops {
        let [from, to] = ends(drop);
        table.add_row([
            time_of_day(drop.at_unix_ms),
            drop.reason.name().to_owned(),
            drop.port.clone(),
            format!("{}, {} bytes", drop.frame, drop.frame_bytes),
            from,
            to,
            or_dash(drop.decided_by.as_ref()),
        ]);
    }
    render(&table, "No dropped frame was recorded.")
}

fn line(drop: &DropRecord) -> String {
    let [from, to] = ends(drop);
    let decided_by = drop.decided_by.as_ref().map(|origin| format!(": {origin}")).unwrap_or_default();
    let (time, reason, port) = (time_of_day(drop.at_unix_ms), drop.reason.name(), &drop.port);
    format!(
        "{time} {reason} at {port}: {}, {} bytes, {from} -> {to}{decided_by}",
        drop.frame, drop.frame_bytes
    )
}

/// Source and destination: the pod where it is known, with address and port.
fn ends(drop: &DropRecord) -> [String; 2] {
    [
        end(drop.source_pod.as_ref(), drop.flow.map(|flow| (flow.src, flow.src_port))),
        end(drop.destination_pod.as_ref(), drop.flow.map(|flow| (flow.dst, flow.dst_port))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_taken_by_its_name() {
        assert_eq!(reason("policy-ingress"), Ok(DropReason::PolicyIngress));
        assert!(reason("ingress").unwrap_err().contains("policy-ingress"));
    }
}
