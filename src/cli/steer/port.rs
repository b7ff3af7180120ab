//! Command `palisade port`: adds, removes, lists and drains ports of the running switch.

use std::fmt::Write;
use std::net::IpAddr;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use super::changed;
use crate::cli::output::{Output, grouped, json, set_form, text};
use crate::cli::show;
use crate::cli::{CliError, SocketArguments};
use crate::control::Client;
use crate::control::protocol::{PortFlows, PortInfo, PortRequest};
use crate::dataplane::PortKind;

/// Interval at which a wait counts the flows.
const POLL: Duration = Duration::from_millis(250);
/// Longest wait, seconds: a week.
const WAIT_SECONDS_MAX: u64 = 7 * 86_400;

/// Add, remove, list and drain ports of the running switch
///
/// The configuration file is not changed. A restart forgets what these commands did. A reload of the configuration
/// (SIGHUP) restores the ports, pods and routes of the file, and leaves ports that the file never named.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade port add veth-db --kind pod                          the interface veth-db becomes a port
  palisade port add db --kind tap --namespace db                a tap device in a pod's namespace
  palisade port add node --kind host --interface palisade0 --address 10.0.0.1
  palisade port list                                            with the number of flows of each pod
  palisade port drain veth-db --wait 60                         no new connections; return when the last one has ended
  palisade port drain veth-db --undo
  palisade port remove veth-db

Exit codes of drain: 0 drained, 1 flows are left after --wait, 2 failure.")]
pub(in crate::cli) struct PortArguments {
    #[command(subcommand)]
    command: PortCommand,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t, global = true)]
    output: Output,
    #[command(flatten)]
    socket: SocketArguments,
}

#[derive(Debug, Subcommand)]
enum PortCommand {
    /// Open a port on an interface, or on a tap device
    Add(AddArguments),
    /// Close a port, whose pod is detached first
    Remove {
        /// Name of the port
        name: String,
        /// Give the interface back to the kernel, or with `=false` keep it closed; on_stop of the configuration decides
        /// where this is absent
        #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
        detach: Option<bool>,
    },
    /// List the ports, and the flows of their pods
    List,
    /// Let no flow from or to the pod of a port begin; established flows go on
    ///
    /// Packets of new flows are dropped and counted as `draining`. The drain lasts until --undo, or until the pod is
    /// detached. A UDP flow goes on while its ends send, and has no other end: --wait returns when it has been idle.
    Drain {
        /// Name of the port
        name: String,
        /// End the drain
        #[arg(long, conflicts_with = "wait")]
        undo: bool,
        /// Return when no flow is left, at the latest after this time
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=WAIT_SECONDS_MAX))]
        wait: Option<u64>,
    },
}

#[derive(Debug, Args)]
struct AddArguments {
    /// Name of the port
    name: String,
    /// Kind of the port
    #[arg(long, value_enum)]
    kind: Kind,
    /// Network interface, where its name is not that of the port
    #[arg(long)]
    interface: Option<String>,
    /// 802.1Q tag of its frames
    #[arg(long, value_name = "ID")]
    vlan: Option<u16>,
    /// Address of the node, for a host port; may be given several times
    #[arg(long = "address", value_name = "ADDRESS")]
    addresses: Vec<IpAddr>,
    /// Network namespace of a tap device: a name of `ip netns`, or an absolute path
    #[arg(long)]
    namespace: Option<String>,
    /// MTU of a tap device, bytes
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    /// A pod behind a veth pair or another interface
    Pod,
    /// A pod behind a tap device, which the switch makes
    Tap,
    /// The node's own network stack
    Host,
    /// A network card to other machines
    Uplink,
}

pub(in crate::cli) fn port(arguments: &PortArguments) -> Result<ExitCode, CliError> {
    let (client, output) = (arguments.socket.client(), arguments.output);
    set_form(output);
    match &arguments.command {
        PortCommand::Add(add) => self::add(&client, add, output)?,
        PortCommand::Remove { name, detach } => {
            match detach {
                Some(detach) => client.delete_port_with(name, *detach)?,
                None => client.delete_port(name)?,
            }
            if output == Output::Json {
                json(&serde_json::json!({ "removed": name }))?;
            } else {
                changed(&format!("port {name} is closed"))?;
            }
        }
        PortCommand::List => list(&client, output)?,
        PortCommand::Drain { name, undo: true, .. } => {
            let flows = client.drain_port(name, false)?;
            if output == Output::Json {
                json(&flows)?;
            } else {
                text(&format!("port {name} takes new flows again\n"))?;
            }
        }
        PortCommand::Drain { name, wait, .. } => return drain(&client, name, *wait, output),
    }
    Ok(ExitCode::SUCCESS)
}

fn add(client: &Client, arguments: &AddArguments, output: Output) -> Result<(), CliError> {
    let kind = match arguments.kind {
        Kind::Pod => PortKind::Pod,
        Kind::Tap => PortKind::Tap,
        Kind::Host => PortKind::Host,
        Kind::Uplink => PortKind::Uplink,
    };
    let request = PortRequest {
        interface: arguments.interface.clone(),
        vlan: arguments.vlan,
        addresses: arguments.addresses.clone(),
        namespace: arguments.namespace.clone(),
        mtu: arguments.mtu,
        ..PortRequest::of(kind)
    };
    let port = client.put_port(&arguments.name, &request)?;
    if output == Output::Json {
        return Ok(json(&port)?);
    }
    let mut outcome = format!("port {} is open on interface {}\n", port.name, show::place(&port));
    show::add_warnings(&mut outcome, &port.name, &port.report.warnings);
    Ok(changed(outcome.trim_end())?)
}

/// Port with the number of flows of its pod, for programs.
#[derive(Serialize)]
struct ListedPort<'a> {
    #[serde(flatten)]
    port: &'a PortInfo,
    /// Number of flows; `None` without a pod.
    flows: Option<u64>,
}

fn list(client: &Client, output: Output) -> Result<(), CliError> {
    let (ports, flows) = (client.ports()?, client.port_flows()?);
    let of = |port: &PortInfo| flows.iter().find(|flows| flows.port == port.name).map(|flows| flows.flows);
    if output == Output::Json {
        let listed: Vec<_> = ports.iter().map(|port| ListedPort { port, flows: of(port) }).collect();
        return Ok(json(&listed)?);
    }
    Ok(text(&show::ports_table(&ports, Some(&of)))?)
}

/// Begins a drain, and waits for its end where that is wanted.
fn drain(client: &Client, name: &str, wait: Option<u64>, output: Output) -> Result<ExitCode, CliError> {
    let start = Instant::now();
    let mut flows = client.drain_port(name, true)?;
    let Some(wait) = wait.map(Duration::from_secs) else {
        if output == Output::Json {
            json(&flows)?;
        } else {
            text(&format!("port {name} is draining: {}\n", left(&flows)))?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let mut pause = POLL;
    while flows.flows > 0 && start.elapsed() < wait {
        sleep(pause.min(wait.saturating_sub(start.elapsed())));
        let asked = Instant::now();
        let found = client.port_flows()?.into_iter().find(|found| found.port == name);
        let Some(found) = found.filter(|found| found.draining && found.pod == flows.pod) else {
            let reason = "somebody has ended the drain, or detached the pod, meanwhile";
            return Err(CliError::Message(format!("port {name} is not draining any more: {reason}")));
        };
        flows = found;
        // A count walks over the whole flow table, and takes a fifth of the time at most.
        pause = POLL.max(4 * asked.elapsed());
    }
    if output == Output::Json {
        json(&flows)?;
    } else {
        let mut said = format!("port {name} is draining: {}", left(&flows));
        // Writing to a string cannot fail.
        let _ = writeln!(said, " after {} s", start.elapsed().as_secs());
        text(&said)?;
    }
    Ok(ExitCode::from(u8::from(flows.flows > 0)))
}

fn left(flows: &PortFlows) -> String {
    match flows.flows {
        0 => format!("no flow of pod {} is left", flows.pod),
        1 => format!("1 flow of pod {} is left", flows.pod),
        count => format!("{} flows of pod {} are left", grouped(count), flows.pod),
    }
}
