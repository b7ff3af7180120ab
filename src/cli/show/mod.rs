//! Command `palisade show`: prints the state of the running switch.

mod acl;
mod counters;
mod drops;
mod flows;
mod in_force;
mod named;
pub(super) mod node;
mod services;
mod status;
mod umem;
mod workers;

use std::fmt::Write;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use self::named::named;
use super::output::{Output, grouped, json, list, or_dash, render, set_form, table, table_of, text};
use super::{CliError, SocketArguments};
use crate::control::Client;
use crate::control::protocol::PortInfo;
use crate::dataplane::PortKind;
use crate::tables::PodName;

pub(super) use in_force::routes;

/// Show the state of the running switch
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade show status                       is it running, since when, on which cores
  palisade show counters                     frames by port, drops by reason, decisions by policy and rule
  palisade show drops --follow               frames as they are dropped, with the policy that denied them
  palisade show workers --seconds 5          how busy the workers are, and with what
  palisade show flows --pod default/db       connections of one pod, those with most bytes first
  palisade show flows --by-pod               who holds the flow table
  palisade show acl default/db               the rules in force of one pod, and how often each decided
  palisade show pods --output json           for programs")]
pub(super) struct ShowArguments {
    #[command(subcommand)]
    command: ShowCommand,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t, global = true)]
    output: Output,
    #[command(flatten)]
    socket: SocketArguments,
}

#[derive(Debug, Subcommand)]
enum ShowCommand {
    /// Version, cores, generation, the policy in force, and the last rejected reload
    Status,
    /// Ports: interface, kind, MTU, XDP mode, and the pod behind each
    #[command(alias = "port")]
    Ports {
        /// Only this port
        #[arg(value_name = "PORT")]
        port: Option<String>,
    },
    /// Attached pods: port, addresses, and whether the rule tables know them
    #[command(alias = "pod")]
    Pods {
        /// Only this pod
        #[arg(value_name = "NAMESPACE/POD")]
        pod: Option<PodName>,
    },
    /// Sizes of the loaded rule tables
    #[command(alias = "table")]
    Tables,
    /// Rules in force of one pod: peers, ports, verdicts, policies, and how often each decided
    Acl {
        /// Pod
        #[arg(value_name = "NAMESPACE/POD")]
        pod: PodName,
    },
    /// Classes of addresses that no rule tells apart, as `explain` numbers them
    #[command(alias = "class")]
    Classes,
    /// Policies in force: who loaded them and when, pods, rules, decisions
    #[command(alias = "policy")]
    Policies {
        /// Only policies of this name
        #[arg(value_name = "NAMESPACE/POLICY")]
        policy: Option<String>,
    },
    /// Routes as the workers use them: origin, port, next hop, MTU, neighbour
    #[command(alias = "route")]
    Routes,
    /// Services: virtual addresses, backends, and the flows that each has opened
    #[command(alias = "service")]
    Services,
    /// Frames of the workers' packet memory
    Umem,
    /// Frames by port, drops by reason with its meaning, decisions by policy and rule
    #[command(alias = "counter")]
    Counters,
    /// The last dropped frames, with pods, reason and policy: some of each reason
    #[command(alias = "drop")]
    Drops(drops::DropsArguments),
    /// Work of each worker: packets, time of each stage, idle share, time without its core
    #[command(alias = "worker")]
    Workers(workers::PeriodArguments),
    /// Time of packets in the switch, by worker
    Latency(workers::PeriodArguments),
    /// Connections that the switch tracks
    #[command(alias = "flow")]
    Flows(flows::FlowsArguments),
}

pub(super) fn show(arguments: &ShowArguments) -> Result<ExitCode, CliError> {
    set_form(arguments.output);
    let client = arguments.socket.client();
    match &arguments.command {
        ShowCommand::Status => status::status(&client, arguments.output)?,
        ShowCommand::Ports { port } => ports(&client, port.as_deref(), arguments.output)?,
        ShowCommand::Pods { pod } => pods(&client, pod.as_ref(), arguments.output)?,
        ShowCommand::Tables => tables(&client, arguments.output)?,
        ShowCommand::Acl { pod } => acl::acl(&client, pod, arguments.output)?,
        ShowCommand::Classes => in_force::classes(&client, arguments.output)?,
        ShowCommand::Policies { policy } => {
            in_force::policies(&client, policy.as_deref(), arguments.output)?;
        }
        ShowCommand::Routes => in_force::routes(&client, arguments.output)?,
        ShowCommand::Services => services::services(&client, arguments.output)?,
        ShowCommand::Umem => umem::umem(&client, arguments.output)?,
        ShowCommand::Counters => counters::counters(&client, arguments.output)?,
        ShowCommand::Drops(drops) => drops::drops(&client, drops, arguments.output)?,
        ShowCommand::Workers(period) => workers::workers(&client, period, arguments.output)?,
        ShowCommand::Latency(period) => workers::latency(&client, period, arguments.output)?,
        ShowCommand::Flows(flows) => flows::flows(&client, flows, arguments.output)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Interface of a port, with its network namespace if that is not the switch's.
pub(super) fn place(port: &PortInfo) -> String {
    let interface = &port.spec.interface;
    port.spec.namespace.as_ref().map_or(interface.clone(), |namespace| format!("{interface} in {namespace}"))
}

/// Way of frames between a port and its interface.
fn mode(port: &PortInfo) -> String {
    if port.spec.kind == PortKind::Tap {
        return "whole segments".to_owned();
    }
    let is_offloaded = port.report.offloaded;
    if is_offloaded && port.spec.kind == PortKind::Pod {
        return "offloaded".to_owned();
    }
    let hook = if port.report.native { "native" } else { "generic" };
    let copy = if port.report.zero_copy { "zero-copy" } else { "copy" };
    format!("{hook}, {copy}{}", if is_offloaded { ", offloaded" } else { "" })
}

fn ports(client: &Client, port: Option<&str>, output: Output) -> Result<(), CliError> {
    let ports = named(client.ports()?, port, "ports", |port| port.name.clone())?;
    if output == Output::Json {
        return Ok(json(&ports)?);
    }
    Ok(text(&ports_table(&ports, None))?)
}

/// Number of flows of a port, `None` without a pod.
type FlowsOf<'a> = &'a dyn Fn(&PortInfo) -> Option<u64>;

/// Table of ports, with the number of flows of each where `flows` gives one, and warnings below.
pub(super) fn ports_table(ports: &[PortInfo], flows: Option<FlowsOf<'_>>) -> String {
    let columns = ["port", "interface", "kind", "state", "vlan", "mtu", "queues", "mode", "pod", "flows"];
    let columns = &columns[..columns.len() - usize::from(flows.is_none())];
    let mut table = table_of(columns).left_out_first(&["queues", "mtu", "vlan", "mode", "kind"]);
    let mut warnings = String::new();
    for port in ports {
        let state = format!("{:?}", port.state).to_lowercase();
        let mut row = vec![
            port.name.clone(),
            place(port),
            format!("{:?}", port.spec.kind).to_lowercase(),
            if port.draining { format!("{state}, draining") } else { state },
            or_dash(port.spec.vlan),
            port.report.mtu.to_string(),
            port.report.queues.to_string(),
            mode(port),
            or_dash(port.pod.as_ref()),
        ];
        row.extend(flows.map(|flows| or_dash(flows(port).map(grouped))));
        table.add_row(row);
        if let Some(reason) = &port.reason {
            // Writing to a string cannot fail.
            let _ =
                writeln!(warnings, "{}: {}: {reason}", format!("{:?}", port.state).to_lowercase(), port.name);
        }
        add_warnings(&mut warnings, &port.name, &port.report.warnings);
    }
    render(&table, "The switch has no ports.") + &warnings
}

pub(super) fn pods(client: &Client, pod: Option<&PodName>, output: Output) -> Result<(), CliError> {
    let pod = pod.map(ToString::to_string);
    let pods = named(client.pods()?, pod.as_deref(), "pods", |pod| pod.pod.to_string())?;
    if output == Output::Json {
        return Ok(json(&pods)?);
    }
    let has_bandwidth = pods.iter().any(|pod| !pod.bandwidth.is_unlimited());
    let columns = ["pod", "port", "addresses", "mac", "policy", "bandwidth"];
    let mut table =
        table_of(&columns[..columns.len() - usize::from(!has_bandwidth)]).left_out_first(&["mac", "port"]);
    let mut warnings = String::new();
    for pod in &pods {
        let row = [
            pod.pod.to_string(),
            pod.port.clone(),
            list(&pod.addresses),
            pod.mac.map_or_else(|| "learned".to_owned(), |mac| mac.to_string()),
            if pod.known { "known" } else { "unknown" }.to_owned(),
        ];
        table.add_row(row.into_iter().chain(has_bandwidth.then(|| pod.bandwidth.to_string())));
        add_warnings(&mut warnings, &pod.pod.to_string(), &pod.warnings);
    }
    Ok(text(&(render(&table, "No pod is attached.") + &warnings))?)
}

pub(super) fn add_warnings(text: &mut String, of: &str, warnings: &[String]) {
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
