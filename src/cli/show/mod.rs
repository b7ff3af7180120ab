//! Command `palisade show`: prints the state of the running switch.

mod counters;

use std::fmt::Write;
use std::process::ExitCode;
use std::time::SystemTime;

use clap::{Args, Subcommand};

use super::output::{Output, json, list, or_dash, render, table, text};
use super::{CliError, SocketArguments};
use crate::control::Client;
use crate::control::protocol::{PolicySource, PolicyStatus, PortInfo};
use crate::dataplane::{FlowInfo, PortKind};
use crate::tables::PodName;

/// Show the state of the running switch
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade show status                       is it running, since when, on which cores
  palisade show counters                     frames by port, drops by reason, decisions by policy and rule
  palisade show flows --pod default/db       connections of one pod
  palisade show pods --output json           for programs")]
pub(super) struct ShowArguments {
    #[command(subcommand)]
    command: ShowCommand,
    /// Form of the output
    #[arg(long, value_enum, default_value_t, global = true)]
    output: Output,
    #[command(flatten)]
    socket: SocketArguments,
}

#[derive(Debug, Subcommand)]
enum ShowCommand {
    /// Version, cores, generation, the policy in force, and the last rejected reload
    Status,
    /// Ports: interface, kind, MTU, XDP mode, and the pod behind each
    Ports,
    /// Attached pods: port, addresses, and whether the rule tables know them
    Pods,
    /// Sizes of the loaded rule tables
    Tables,
    /// Frames by port, drops by reason with its meaning, decisions by policy and rule
    Counters,
    /// Connections that the switch tracks
    Flows {
        /// Most flows to show
        #[arg(long, value_name = "COUNT", default_value_t = 1000)]
        max: usize,
        /// Only flows from or to this pod
        #[arg(long, value_name = "NAMESPACE/NAME")]
        pod: Option<PodName>,
    },
}

pub(super) fn show(arguments: &ShowArguments) -> Result<ExitCode, CliError> {
    let client = arguments.socket.client();
    match &arguments.command {
        ShowCommand::Status => status(&client, arguments.output)?,
        ShowCommand::Ports => ports(&client, arguments.output)?,
        ShowCommand::Pods => pods(&client, arguments.output)?,
        ShowCommand::Tables => tables(&client, arguments.output)?,
        ShowCommand::Counters => counters::counters(&client, arguments.output)?,
        ShowCommand::Flows { max, pod } => flows(&client, *max, pod.as_ref(), arguments.output)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn status(client: &Client, output: Output) -> Result<(), CliError> {
    let status = client.status()?;
    if output == Output::Json {
        return Ok(json(&status)?);
    }
    let mut table = table(["version", "pid", "uptime", "cores", "generation", "tables"]);
    table.add_row([
        status.version.clone(),
        status.pid.to_string(),
        format!("{} s", status.uptime_s),
        list(&status.cores),
        status.generation.to_string(),
        if status.tables_loaded { "loaded" } else { "none" }.to_owned(),
    ]);
    let mut out = format!("{}flows: {}\n", render(&table, ""), status.flow_table);
    // Writing to a string cannot fail.
    if let Some(policy) = &status.policy {
        let _ = writeln!(out, "{}", policy_line(policy));
    }
    if let Some(rejected) = &status.rejected_reload {
        let (path, ago) = (rejected.path.display(), ago(rejected.at_unix_s));
        let _ =
            writeln!(out, "rejected: the reload of directory {path}, {ago} ago; what was in force stays:");
        rejected.errors.iter().for_each(|error| _ = writeln!(out, "  {error}"));
        if rejected.left_out > 0 {
            let _ = writeln!(out, "  {} more errors are not shown", rejected.left_out);
        }
    }
    status.problems.iter().for_each(|problem| _ = writeln!(out, "problem: {problem}"));
    Ok(text(&out)?)
}

fn policy_line(policy: &PolicyStatus) -> String {
    let source = match &policy.origin.source {
        PolicySource::Directory { path } => format!("directory {}", path.display()),
        PolicySource::ControlSocket { uid: Some(uid), pid: Some(pid) } => {
            format!("control socket (user {uid}, process {pid})")
        }
        PolicySource::ControlSocket { .. } => "control socket".to_owned(),
    };
    let PolicyStatus { generation, rules, pods, .. } = policy;
    let counts = match (policy.origin.objects, policy.origin.policies) {
        (Some(objects), Some(policies)) => format!("{objects} objects, {policies} policies, "),
        _ => String::new(),
    };
    let ago = ago(policy.since_unix_s);
    format!(
        "policy: from {source}, in force since {ago} ago as generation {generation}: {counts}{rules} rules, {pods} pods"
    )
}

/// Time since a moment, by this machine's clock, which is the switch's too.
fn ago(unix_s: u64) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    format!("{} s", now.saturating_sub(unix_s))
}

/// Interface of a port, with its network namespace if that is not the switch's.
fn place(port: &PortInfo) -> String {
    let interface = &port.spec.interface;
    port.spec.namespace.as_ref().map_or(interface.clone(), |namespace| format!("{interface} in {namespace}"))
}

/// Way of frames between a port and its interface.
fn mode(port: &PortInfo) -> String {
    if port.spec.kind == PortKind::Tap {
        return "whole segments".to_owned();
    }
    let hook = if port.report.native { "native" } else { "generic" };
    let copy = if port.report.zero_copy { "zero-copy" } else { "copy" };
    format!("{hook}, {copy}")
}

fn ports(client: &Client, output: Output) -> Result<(), CliError> {
    let ports = client.ports()?;
    if output == Output::Json {
        return Ok(json(&ports)?);
    }
    let mut table = table(["port", "interface", "kind", "state", "vlan", "mtu", "queues", "mode", "pod"]);
    let mut warnings = String::new();
    for port in &ports {
        table.add_row([
            port.name.clone(),
            place(port),
            format!("{:?}", port.spec.kind).to_lowercase(),
            format!("{:?}", port.state).to_lowercase(),
            or_dash(port.spec.vlan),
            port.report.mtu.to_string(),
            port.report.queues.to_string(),
            mode(port),
            or_dash(port.pod.as_ref()),
        ]);
        if let Some(reason) = &port.reason {
            // Writing to a string cannot fail.
            let _ =
                writeln!(warnings, "{}: {}: {reason}", format!("{:?}", port.state).to_lowercase(), port.name);
        }
        add_warnings(&mut warnings, &port.name, &port.report.warnings);
    }
    Ok(text(&(render(&table, "The switch has no ports.") + &warnings))?)
}

fn pods(client: &Client, output: Output) -> Result<(), CliError> {
    let pods = client.pods()?;
    if output == Output::Json {
        return Ok(json(&pods)?);
    }
    let mut table = table(["pod", "port", "addresses", "mac", "policy"]);
    let mut warnings = String::new();
    for pod in &pods {
        table.add_row([
            pod.pod.to_string(),
            pod.port.clone(),
            list(&pod.addresses),
            pod.mac.map_or_else(|| "learned".to_owned(), |mac| mac.to_string()),
            if pod.known { "known" } else { "unknown" }.to_owned(),
        ]);
        add_warnings(&mut warnings, &pod.pod.to_string(), &pod.warnings);
    }
    Ok(text(&(render(&table, "No pod is attached.") + &warnings))?)
}

fn add_warnings(text: &mut String, of: &str, warnings: &[String]) {
    for warning in warnings {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "warning: {of}: {warning}");
    }
}

fn tables(client: &Client, output: Output) -> Result<(), CliError> {
    let summary = client.tables()?;
    if output == Output::Json {
        return Ok(json(&summary)?);
    }
    if !summary.loaded {
        return Ok(text("No rule tables are loaded: `palisade apply FILE` loads some.\n")?);
    }
    let mut table = table(["generation", "pods", "rules", "classes", "prefixes", "rows", "acls"]);
    table.add_row(
        [summary.pods, summary.rules, summary.classes, summary.prefixes, summary.rows, summary.acls]
            .iter()
            .fold(vec![summary.generation.to_string()], |mut row, number| {
                row.push(number.to_string());
                row
            }),
    );
    Ok(text(&render(&table, ""))?)
}

fn flows(client: &Client, max: usize, pod: Option<&PodName>, output: Output) -> Result<(), CliError> {
    let mut flows = client.flows(max, pod)?;
    flows.sort_by_key(|flow| flow.key);
    if output == Output::Json {
        return Ok(json(&flows)?);
    }
    let mut table = table(["flow", "state", "idle", "packets", "bytes", "allowed by"]);
    for flow in &flows {
        table.add_row([
            flow.key.to_string(),
            flow.state.clone(),
            format!("{} ms", flow.idle_ms),
            format!("{} / {}", flow.packets, flow.reply_packets),
            format!("{} / {}", flow.bytes, flow.reply_bytes),
            allowed_by(flow),
        ]);
    }
    Ok(text(&render(&table, "No flows."))?)
}

fn allowed_by(flow: &FlowInfo) -> String {
    let sides = [("out", &flow.egress), ("in", &flow.ingress)];
    let said = sides.iter().filter_map(|(side, origin)| Some(format!("{side}: {}", origin.as_ref()?)));
    list(said)
}
