//! Command `palisade config`: prints the documented default configuration, its schema, and ports and routes of the running switch.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{CliError, SocketArguments, output};
use crate::config::{Config, PortConfig};
use crate::control::protocol::{PodInfo, PortInfo, RouteInfo};
use crate::control::{Client, PortRoute, is_container_port};
use crate::dataplane::RouteOrigin;

/// The file that documents every key with its default.
const DOCUMENTED: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/config/palisade.toml"));

/// Print the default configuration, with every key documented
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade config > palisade.toml                a file to start from
  palisade config export                         ports and routes of the running switch, for the file
  palisade config schema > palisade.schema.json  for editors and validators
  palisade run --check --config palisade.toml    is it right after an edit?")]
pub(super) struct ConfigArguments {
    #[command(subcommand)]
    command: Option<ConfigCommand>,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print ports, pods and routes of the running switch as parts of a configuration
    ///
    /// Ports of containers are left out: the switch attaches these again from the records of its CNI plugin. So are the routes
    /// of an agent.
    Export {
        #[command(flatten)]
        socket: SocketArguments,
    },
    /// Print the JSON Schema of the configuration, for editors and checks
    Schema,
}

pub(super) fn config(arguments: &ConfigArguments) -> Result<ExitCode, CliError> {
    match &arguments.command {
        None => output::document(DOCUMENTED)?,
        Some(ConfigCommand::Schema) => output::json(&Config::schema(DOCUMENTED))?,
        Some(ConfigCommand::Export { socket }) => output::document(&export(&socket.client())?)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// `[[ports]]` and `[[routes]]` of a configuration.
#[derive(Serialize)]
struct Exported {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ports: Vec<PortConfig>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<PortRoute>,
}

fn export(client: &Client) -> Result<String, CliError> {
    let (pods, routes) = (client.pods()?, client.routes()?);
    let has_agent = client.status()?.source.is_some();
    let ports = client.ports()?.into_iter().filter(|port| !is_container_port(&port.name));
    let ports = ports.map(|port| port_config(port, &pods, &routes)).collect();
    let is_kept = |route: &&RouteInfo| route.origin == RouteOrigin::Configured && !(has_agent && route.node);
    let kept = routes.iter().filter(is_kept).filter_map(|route| {
        let RouteInfo { prefix, next_hop, node, .. } = *route;
        Some(PortRoute { prefix, port: route.port.clone()?, next_hop, node })
    });
    let exported = Exported { ports, routes: kept.collect() };
    toml::to_string(&exported)
        .map_err(|error| CliError::Message(format!("the configuration cannot be written: {error}")))
}

fn port_config(port: PortInfo, pods: &[PodInfo], routes: &[RouteInfo]) -> PortConfig {
    let pod = pods.iter().find(|pod| pod.port == port.name);
    let of_node =
        |route: &&RouteInfo| route.origin == RouteOrigin::Node && route.port.as_ref() == Some(&port.name);
    PortConfig {
        kind: port.spec.kind,
        interface: Some(port.spec.interface).filter(|interface| *interface != port.name),
        vlan: port.spec.vlan,
        addresses: routes.iter().filter(of_node).map(|route| route.prefix.addr()).collect(),
        namespace: port.spec.namespace,
        mtu: port.spec.requested_mtu,
        pod: pod.map(|pod| pod.pod.clone()),
        pod_addresses: pod.map(|pod| pod.addresses.clone()).unwrap_or_default(),
        pod_mac: pod.and_then(|pod| pod.mac),
        pod_bandwidth: pod.map(|pod| pod.bandwidth).unwrap_or_default(),
        pod_port_mappings: pod.map(|pod| pod.port_mappings.clone()).unwrap_or_default(),
        name: port.name,
    }
}
