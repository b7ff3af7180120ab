//! Command `palisade agent`: follows the Kubernetes API on behalf of a running switch.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::log::start_log;
use crate::cli::{CliError, SocketArguments, output};
use crate::config::LogFormat;
use crate::source::kubernetes::{Access, ClientTarget, Lock, Settings, run};
use crate::threads;

/// Follow the Kubernetes API, and keep the policies and routes of a running switch current
///
/// Watches NetworkPolicy, Pod, Namespace and Node objects, and the cluster-wide policies if the cluster has
/// them, compiles them for this node, and loads the difference into the switch. While the API is away the
/// last policies stay. One agent for each switch: a second one refuses to start.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade agent                                 in a pod, with its service account
  palisade agent --kubeconfig ~/.kube/config --node node-1")]
pub(in crate::cli) struct AgentArguments {
    /// Credentials of the API; otherwise $KUBECONFIG, ~/.kube/config, or those of the pod
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the credentials; otherwise the current one
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Name of this node, as in the pods' spec.nodeName; otherwise the name of the host
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node: Option<String>,
    /// Port that leads to the other nodes; otherwise the only uplink of the switch
    #[arg(long, value_name = "PORT")]
    uplink: Option<String>,
    /// Write the log as JSON, one object a line
    #[arg(long)]
    log_json: bool,
    #[command(flatten)]
    socket: SocketArguments,
}

pub(in crate::cli) fn agent(arguments: &AgentArguments) -> Result<ExitCode, CliError> {
    start_log(if arguments.log_json { LogFormat::Json } else { LogFormat::Text });
    threads::count_panics();
    let client = arguments.socket.client();
    let mut lock = Lock::take(client.socket()).map_err(|error| CliError::Message(error.to_string()))?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())
            .map_err(|error| CliError::Message(format!("signals cannot be watched: {error}")))?;
    }
    let node = arguments.node.clone().unwrap_or_else(host_name);
    let settings = Settings {
        access: Access { kubeconfig: arguments.kubeconfig.clone(), context: arguments.context.clone() },
        node: Some(node.clone()),
        uplink: arguments.uplink.clone(),
        earlier_routes: lock.earlier_routes().to_vec(),
        ..Settings::default()
    };
    output::text(&format!(
        "palisade agent of node {node} for the switch at {}\n",
        client.socket().display()
    ))?;
    let mut record = |prefixes: &_| {
        if let Err(error) = lock.record(prefixes) {
            tracing::warn!("routes are not recorded, so that the next agent may leave some: {error}");
        }
    };
    run(&settings, &mut ClientTarget::new(client), &mut record, &stop)
        .map_err(|error| CliError::Message(format!("the agent does not start: {error}")))?;
    tracing::info!("stopped; the switch keeps its tables");
    Ok(ExitCode::SUCCESS)
}

/// Name of the host in lower case, as kubelets name their nodes.
pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().to_lowercase()
}
