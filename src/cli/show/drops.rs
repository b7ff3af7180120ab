//! Command `palisade show drops`: prints the last dropped frames.

use std::io;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use clap::Args;

use crate::cli::filter::{PacketFilterArguments, ago};
use crate::cli::output::reader::end_with_reader;
use crate::cli::output::{Output, document, end, json, or_dash, render, table, text, time_of_day};
use crate::cli::{CliError, terminal};
use crate::control::protocol::DropRecord;
use crate::control::{Client, DropQuery};

/// Interval of requests while drops are followed.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(super) struct DropsArguments {
    /// Most frames to show: the latest ones
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    max: usize,
    #[command(flatten)]
    selection: PacketFilterArguments,
    /// Only frames of this last time: 30s, 5m, 2h, 1d
    #[arg(long, value_name = "TIME", value_parser = ago)]
    since: Option<Duration>,
    /// Continue with frames as they are dropped, until interrupted
    #[arg(long)]
    follow: bool,
}

pub(super) fn drops(client: &Client, arguments: &DropsArguments, output: Output) -> Result<(), CliError> {
    let DropsArguments { max, selection, since, follow } = arguments;
    let query = DropQuery {
        filter: selection.filter.filter(),
        after: 0,
        max: Some(*max),
        reason: selection.reason,
        interface: selection.interface.clone(),
        since_unix_ms: since.map_or(0, |since| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            now.saturating_sub(since).as_millis() as u64
        }),
    };
    let mut report = client.drops(&query)?;
    if !follow {
        return Ok(match output {
            Output::Json => json(&report),
            Output::Table | Output::Wide => text(&as_table(&report.drops)),
        }?);
    }
    end_with_reader()?;
    loop {
        for drop in &report.drops {
            match output {
                Output::Json => println_json(drop)?,
                Output::Table | Output::Wide => text(&format!("{}\n", line(drop)))?,
            }
        }
        sleep(FOLLOW_INTERVAL);
        let lost = report.lost;
        report = client.drops(&DropQuery { after: report.last, max: None, ..query.clone() })?;
        if report.lost > lost {
            terminal::note(&format!("{} sampled frames were not recorded", report.lost - lost));
        }
    }
}

/// Prints one line of JSON, without control characters.
fn println_json(drop: &DropRecord) -> io::Result<()> {
    document(&(serde_json::to_string(drop)? + "\n"))
}

fn as_table(drops: &[DropRecord]) -> String {
    let mut table = table(["time", "reason", "port", "frame", "from", "to", "denied by"])
        .left_out_first(&["frame", "port", "time"]);
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
