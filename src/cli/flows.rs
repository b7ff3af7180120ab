//! Command `palisade flows`: ends flows of the running switch.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::output::{Output, grouped, json, text};
use super::{CliError, SocketArguments};
use crate::control::protocol::{AddressPrefix, FlowQuery, PortRange};
use crate::net::flow::Protocol;
use crate::tables::PodName;

/// Filters of flows. A flow has to pass all of them.
#[derive(Debug, Args)]
pub(super) struct FlowFilterArguments {
    /// Only flows from or to this pod
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pod: Option<PodName>,
    /// Only flows from or to an address of this prefix
    #[arg(long, value_name = "PREFIX")]
    address: Option<AddressPrefix>,
    /// Only flows with a port of TCP, UDP or SCTP in this range, at either end
    #[arg(long, value_name = "N[-M]")]
    port: Option<PortRange>,
    /// Only flows of this protocol: TCP, UDP, SCTP, ICMP, ICMPv6 or a number
    #[arg(long)]
    protocol: Option<Protocol>,
    /// Only flows in this state: established, syn-sent, udp-two-way, ...
    #[arg(long)]
    state: Option<String>,
}

impl FlowFilterArguments {
    /// Query with these filters.
    pub(super) fn query(&self) -> FlowQuery {
        FlowQuery {
            pod: self.pod.clone(),
            address: self.address,
            port: self.port,
            protocol: self.protocol,
            state: self.state.clone(),
            ..FlowQuery::default()
        }
    }
}

/// End flows of the running switch
#[derive(Debug, Args)]
pub(super) struct FlowsArguments {
    #[command(subcommand)]
    command: FlowsCommand,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t, global = true)]
    output: Output,
    #[command(flatten)]
    socket: SocketArguments,
}

#[derive(Debug, Subcommand)]
enum FlowsCommand {
    /// Cut connections: forget their flows
    ///
    /// The next packet of an ended flow is judged as one of no known flow. A UDP exchange that policy allows
    /// starts anew. A TCP connection is cut, whatever policy says: its packets are no SYN, and are dropped as
    /// invalid-state (unless the configuration has tcp_pickup). Its ends notice by their own timeouts, and may
    /// connect again.
    #[command(after_help = "\
Examples:
  palisade flows flush --pod default/db --port 5432      cut the clients of a database
  palisade flows flush --address 192.0.2.7               cut a host outside
  palisade flows flush --all                             cut everything")]
    Flush {
        #[command(flatten)]
        filter: FlowFilterArguments,
        /// End every flow of the node
        #[arg(long)]
        all: bool,
    },
}

pub(super) fn flows(arguments: &FlowsArguments) -> Result<ExitCode, CliError> {
    let FlowsCommand::Flush { filter, all } = &arguments.command;
    let ended = arguments.socket.client().flush_flows(&FlowQuery { all: *all, ..filter.query() })?;
    match arguments.output {
        Output::Json => json(&ended)?,
        Output::Table => text(&match ended.ended {
            1 => "1 flow ended\n".to_owned(),
            count => format!("{} flows ended\n", grouped(count)),
        })?,
    }
    Ok(ExitCode::SUCCESS)
}
