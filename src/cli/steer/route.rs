//! Command `palisade route`: adds, removes and lists routes of the running switch.

use std::net::IpAddr;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use ipnet::IpNet;

use super::changed;
use crate::cli::output::{Output, json, set_form};
use crate::cli::show;
use crate::cli::{CliError, SocketArguments};
use crate::control::protocol::RouteRequest;

/// Add, remove and list routes of the running switch
///
/// The configuration file is not changed. A restart forgets what these commands did. A reload of the configuration
/// (SIGHUP) restores the routes of the file, and leaves routes to prefixes that the file never named.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade route add 0.0.0.0/0 --port uplink --next-hop 192.0.2.1
  palisade route list
  palisade route remove 0.0.0.0/0")]
pub(in crate::cli) struct RouteArguments {
    #[command(subcommand)]
    command: RouteCommand,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t, global = true)]
    output: Output,
    #[command(flatten)]
    socket: SocketArguments,
}

#[derive(Debug, Subcommand)]
enum RouteCommand {
    /// Add a route to a port
    Add {
        /// Destination: ADDRESS/LENGTH
        prefix: IpNet,
        /// Port that the route leads to
        #[arg(long, value_name = "NAME")]
        port: String,
        /// Address of the next router; the destination itself where absent
        #[arg(long, value_name = "ADDRESS")]
        next_hop: Option<IpAddr>,
        /// The node's own kernel gets the route, too: for the pods of another node
        #[arg(long, requires = "next_hop")]
        node: bool,
    },
    /// Remove a route
    Remove {
        /// Destination: ADDRESS/LENGTH
        prefix: IpNet,
    },
    /// List the routes as the workers use them, those of pods and of the switch itself among them
    List,
}

pub(in crate::cli) fn route(arguments: &RouteArguments) -> Result<ExitCode, CliError> {
    let (client, output) = (arguments.socket.client(), arguments.output);
    set_form(output);
    match &arguments.command {
        RouteCommand::Add { prefix, port, next_hop, node } => {
            let request = RouteRequest { port: port.clone(), next_hop: *next_hop, node: *node };
            let route = client.put_route(*prefix, &request)?;
            let of = if *prefix == prefix.trunc() {
                format!("route {}", route.prefix)
            } else {
                format!("route {}, the prefix of {prefix},", route.prefix)
            };
            if output == Output::Json {
                json(&route)?;
            } else if route.in_force {
                changed(&format!("{of} to port {port} is in force"))?;
            } else {
                changed(&format!(
                    "{of} to port {port} is not in force: its port is closed, or the prefix is that of a pod or of the switch"
                ))?;
            }
        }
        RouteCommand::Remove { prefix } => {
            client.delete_route(*prefix)?;
            if output == Output::Json {
                json(&serde_json::json!({ "removed": prefix.trunc().to_string() }))?;
            } else {
                changed(&format!("route {} is removed", prefix.trunc()))?;
            }
        }
        RouteCommand::List => show::routes(&client, output)?,
    }
    Ok(ExitCode::SUCCESS)
}
