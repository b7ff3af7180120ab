//! Command `palisade flows`: ends flows of the running switch.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::filter::FlowFilterArguments;
use super::output::{Output, grouped, json, text};
use super::{CliError, SocketArguments};
use crate::control::protocol::FlowQuery;

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
        Output::Table | Output::Wide => text(&match ended.ended {
            1 => "1 flow ended\n".to_owned(),
            count => format!("{} flows ended\n", grouped(count)),
        })?,
    }
    Ok(ExitCode::SUCCESS)
}
