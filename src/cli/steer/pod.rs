//! Command `palisade pod`: attaches, detaches and lists pods of the running switch.

use std::net::IpAddr;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::changed;
use crate::cli::output::{Output, json};
use crate::cli::show;
use crate::cli::{CliError, SocketArguments};
use crate::control::protocol::PodRequest;
use crate::dataplane::Mac;
use crate::tables::PodName;

/// Attach, detach and list pods of the running switch
///
/// The configuration file is not changed. A restart forgets what these commands did. A reload of the configuration
/// (SIGHUP) restores the ports of the file with their pods.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade pod attach default/db --port veth-db --address 10.244.1.7 --address fd00:1::7
  palisade pod list
  palisade pod detach default/db")]
pub(in crate::cli) struct PodArguments {
    #[command(subcommand)]
    command: PodCommand,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t, global = true)]
    output: Output,
    #[command(flatten)]
    socket: SocketArguments,
}

#[derive(Debug, Subcommand)]
enum PodCommand {
    /// Attach a pod to a port of kind pod or tap
    Attach {
        /// Pod
        #[arg(value_name = "NAMESPACE/NAME")]
        pod: PodName,
        /// Port that the pod is behind
        #[arg(long, value_name = "NAME")]
        port: String,
        /// Address of the pod; may be given several times
        #[arg(long = "address", value_name = "ADDRESS", required = true)]
        addresses: Vec<IpAddr>,
        /// Ethernet address of the pod; learned where absent
        #[arg(long)]
        mac: Option<Mac>,
    },
    /// Detach a pod: its flows end, and its port stays open
    Detach {
        /// Pod
        #[arg(value_name = "NAMESPACE/NAME")]
        pod: PodName,
    },
    /// List the attached pods
    List,
}

pub(in crate::cli) fn pod(arguments: &PodArguments) -> Result<ExitCode, CliError> {
    let (client, output) = (arguments.socket.client(), arguments.output);
    match &arguments.command {
        PodCommand::Attach { pod, port, addresses, mac } => {
            let request = PodRequest { port: port.clone(), addresses: addresses.clone(), mac: *mac };
            let info = client.put_pod(pod, &request)?;
            if output == Output::Json {
                json(&info)?;
            } else {
                let mut outcome = format!("pod {pod} is attached to port {port}\n");
                show::add_warnings(&mut outcome, &pod.to_string(), &info.warnings);
                changed(outcome.trim_end())?;
            }
        }
        PodCommand::Detach { pod } => {
            client.delete_pod(pod)?;
            if output == Output::Json {
                json(&serde_json::json!({ "detached": pod.to_string() }))?;
            } else {
                changed(&format!("pod {pod} is detached"))?;
            }
        }
        PodCommand::List => show::pods(&client, output)?,
    }
    Ok(ExitCode::SUCCESS)
}
