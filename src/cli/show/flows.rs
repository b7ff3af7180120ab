//! Command `palisade show flows`: prints the flows that the switch tracks, and who holds the table.

use std::fmt::Write;

use clap::Args;

use crate::cli::CliError;
use crate::cli::filter::FlowFilterArguments;
use crate::cli::output::reader::end_with_reader;
use crate::cli::output::{
    Output, document, duration, end, grouped, json, list, or_dash, render, table, text, time_of_day,
};
use crate::control::Client;
use crate::control::protocol::{
    FlowEventLine, FlowEventRecord, FlowQuery, FlowRecord, FlowSort, FlowsReport,
};
use crate::limits::FLOWS_LISTED;
use crate::printable;

#[derive(Debug, Args)]
pub(super) struct FlowsArguments {
    #[command(flatten)]
    filter: FlowFilterArguments,
    /// Order of the list: the flow with most comes first
    #[arg(long, value_enum, default_value_t)]
    sort: FlowSort,
    /// Most flows to show
    #[arg(long, value_name = "COUNT", default_value_t = FLOWS_LISTED, alias = "max")]
    limit: usize,
    /// Show who has opened the flows, in place of a list
    #[arg(long, conflicts_with_all = ["sort", "limit"])]
    by_pod: bool,
    /// Show events as they happen, until interrupted: flows that are opened, closed, revalidated, and denied packets
    #[arg(long, conflicts_with_all = ["sort", "limit", "by_pod"])]
    follow: bool,
}

pub(super) fn flows(client: &Client, arguments: &FlowsArguments, output: Output) -> Result<(), CliError> {
    let FlowsArguments { filter, sort, limit, by_pod, follow } = arguments;
    if *follow {
        return follow_flows(client, &filter.query(), output);
    }
    let query = FlowQuery { sort: *sort, limit: Some(*limit), by_pod: *by_pod, ..filter.query() };
    let report = client.flows(&query)?;
    if output == Output::Json {
        return Ok(json(&report)?);
    }
    Ok(text(&if *by_pod { holders(&report) } else { flow_list(&report) })?)
}

/// Prints events until the stream ends, which is a failure.
fn follow_flows(client: &Client, query: &FlowQuery, output: Output) -> Result<(), CliError> {
    end_with_reader()?;
    let mut end = Err(CliError::Message("the switch has ended the stream of events".to_owned()));
    client.follow_flows(query, |event| {
        let printed = match output {
            Output::Json => serde_json::to_string(&event).map_err(std::io::Error::from),
            Output::Table | Output::Wide => Ok(event_line(&event)),
        };
        match printed.and_then(|line| document(&format!("{}\n", printable::line(&line)))) {
            Ok(()) => {}
            Err(error) => {
                end = Err(error.into());
                return false;
            }
        }
        if let FlowEventLine::End { reason } = event {
            end = Err(CliError::Message(reason));
            return false;
        }
        true
    })?;
    end
}

fn event_line(event: &FlowEventLine) -> String {
    let (name, record) = match event {
        FlowEventLine::Opened(record) => ("opened", record),
        FlowEventLine::Closed(record) => ("closed", record),
        FlowEventLine::Denied(record) => ("denied", record),
        FlowEventLine::Revalidated(record) => ("revalidated", record),
        FlowEventLine::Lost { count } => return format!("{} events lost", grouped(*count)),
        FlowEventLine::End { reason } => return format!("end: {reason}"),
    };
    let key = &record.flow;
    let from = end(record.source_pod.as_ref(), Some((key.src, key.src_port)));
    let to = end(record.destination_pod.as_ref(), Some((key.dst, key.dst_port)));
    let mut line = format!("{} {name} {} {from} -> {to}", time_of_day(record.at_unix_ms), key.protocol);
    if let Some(reason) = record.closed_by {
        let FlowEventRecord { packets, reply_packets, bytes, reply_bytes, state, .. } = record;
        // Writing to a string cannot fail.
        let _ = write!(
            line,
            ": {} ({state}), {packets} / {reply_packets} packets, {bytes} / {reply_bytes} bytes",
            reason.describe()
        );
    }
    if !record.decided_by.is_empty() {
        let _ = write!(line, ": {}", list(&record.decided_by));
    }
    line
}

fn flow_list(report: &FlowsReport) -> String {
    let mut table =
        table(["protocol", "from", "to", "state", "age", "idle", "packets", "bytes", "allowed by"])
            .left_out_first(&["idle", "packets", "age", "allowed by", "bytes"]);
    for record in &report.flows {
        let flow = &record.flow;
        let [from, to] = ends(record);
        table.add_row([
            flow.key.protocol.to_string(),
            from,
            to,
            flow.state.to_string(),
            flow.age_ms.map_or_else(|| "restored".to_owned(), duration),
            duration(flow.idle_ms),
            format!("{} / {}", flow.packets, flow.reply_packets),
            format!("{} / {}", flow.bytes, flow.reply_bytes),
            allowed_by(record),
        ]);
    }
    let left_out = report.matched - (report.flows.len() as u64).min(report.matched);
    let none = if report.matched == 0 { "No flows." } else { "" };
    let mut out = if report.flows.is_empty() { none.to_owned() } else { render(&table, "") };
    if left_out > 0 {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{} more (of {})", grouped(left_out), grouped(report.matched));
    } else if report.flows.is_empty() {
        out.push('\n');
    }
    out
}

/// Source and destination: the pod where it is known, with address and port; behind the source its external end, behind the
/// destination the virtual address of the Service that the source has sent to.
fn ends(record: &FlowRecord) -> [String; 2] {
    let key = &record.flow.key;
    let destination = end(record.destination_pod.as_ref(), Some((key.dst, key.dst_port)));
    let source = end(record.source_pod.as_ref(), Some((key.src, key.src_port)));
    [
        match record.flow.masquerade {
            Some(external) => format!("{source} as {external}"),
            None => source,
        },
        match record.flow.service {
            Some(service) => format!("{destination} for {service}"),
            None => destination,
        },
    ]
}

fn allowed_by(record: &FlowRecord) -> String {
    let sides = [("out", &record.flow.egress), ("in", &record.flow.ingress)];
    let said = sides.iter().filter_map(|(side, origin)| Some(format!("{side}: {}", origin.as_ref()?)));
    list(said)
}

fn holders(report: &FlowsReport) -> String {
    let mut table = table(["pod", "port", "flows", "of table", "assured", "accepted", "packets", "bytes"])
        .left_out_first(&["packets", "of table", "accepted", "port"]);
    for holder in &report.holders {
        table.add_row([
            or_dash(holder.pod.as_ref()),
            holder.port.clone(),
            grouped(holder.flows),
            percent(holder.flows, report.capacity),
            grouped(holder.assured),
            grouped(holder.accepted),
            grouped(holder.packets),
            grouped(holder.bytes),
        ]);
    }
    let FlowsReport { matched, total, capacity, .. } = report;
    let [matched, total, capacity] = [matched, total, capacity].map(|number| grouped(*number));
    let share = percent(report.total, report.capacity);
    render(&table, "No flows.")
        + &format!("{matched} flows selected; the table holds {total} of {capacity} ({share})\n")
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}
