//! Command `palisade pod`: attaches, detaches and lists pods of the running switch.

use std::net::IpAddr;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::changed;
use crate::cli::output::{Output, json, set_form};
use crate::cli::show;
use crate::cli::{CliError, SocketArguments};
use crate::control::protocol::PodRequest;
use crate::dataplane::{Bandwidth, Bits, Mac};
use crate::tables::{PodName, PortMapping};

/// Attach, detach and list pods of the running switch
///
/// The configuration file is not changed. A restart forgets what these commands did. A reload of the configuration
/// (SIGHUP) restores the ports of the file with their pods.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade pod attach default/db --port veth-db --address 10.244.1.7 --address fd00:1::7
  palisade pod limit default/db --egress-rate 10M      packets from the pod beyond 10 Mbit/s are dropped
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
        #[command(flatten)]
        bandwidth: BandwidthArguments,
        /// Port of the node that leads to the pod, such as 8080:80/tcp; may be given several times
        #[arg(long = "port-mapping", value_name = "[ADDRESS:]PORT:POD_PORT[/PROTOCOL]")]
        port_mappings: Vec<PortMapping>,
    },
    /// Change the bandwidth of an attached pod; a direction without a rate has no limit
    Limit {
        /// Pod
        #[arg(value_name = "NAMESPACE/NAME")]
        pod: PodName,
        #[command(flatten)]
        bandwidth: BandwidthArguments,
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

/// Bandwidth of a pod: each value a number of bits, or a quantity such as 10M.
#[derive(Debug, Args)]
struct BandwidthArguments {
    /// Rate of packets to the pod, bits per second, such as 10M; no limit where absent
    #[arg(long, value_name = "BITS")]
    ingress_rate: Option<Bits>,
    /// Bits to the pod that may come at once; those of half a second where absent
    #[arg(long, value_name = "BITS", requires = "ingress_rate")]
    ingress_burst: Option<Bits>,
    /// Rate of packets from the pod, bits per second; no limit where absent
    #[arg(long, value_name = "BITS")]
    egress_rate: Option<Bits>,
    /// Bits from the pod that may come at once
    #[arg(long, value_name = "BITS", requires = "egress_rate")]
    egress_burst: Option<Bits>,
}

impl BandwidthArguments {
    fn bandwidth(&self) -> Bandwidth {
        let BandwidthArguments { ingress_rate, ingress_burst, egress_rate, egress_burst } = *self;
        Bandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst }
    }
}

pub(in crate::cli) fn pod(arguments: &PodArguments) -> Result<ExitCode, CliError> {
    let (client, output) = (arguments.socket.client(), arguments.output);
    set_form(output);
    match &arguments.command {
        PodCommand::Attach { pod, port, addresses, mac, bandwidth, port_mappings } => {
            let request = PodRequest {
                port: port.clone(),
                addresses: addresses.clone(),
                mac: *mac,
                bandwidth: bandwidth.bandwidth(),
                port_mappings: port_mappings.clone(),
            };
            let info = client.put_pod(pod, &request)?;
            if output == Output::Json {
                json(&info)?;
            } else {
                let mut outcome = format!("pod {pod} is attached to port {port}\n");
                show::add_warnings(&mut outcome, &pod.to_string(), &info.warnings);
                changed(outcome.trim_end())?;
            }
        }
        PodCommand::Limit { pod, bandwidth } => {
            let info = client.limit_pod(pod, &bandwidth.bandwidth())?;
            if output == Output::Json {
                json(&info)?;
            } else {
                changed(&format!("bandwidth of pod {pod}: {}", info.bandwidth))?;
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
        PodCommand::List => show::pods(&client, None, output)?,
    }
    Ok(ExitCode::SUCCESS)
}
