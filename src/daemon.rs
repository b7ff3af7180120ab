//! The switch as a process: dataplane, control side and control socket, started from a configuration.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, OnStop, PortConfig};
use crate::control::protocol::PolicyOrigin;
use crate::control::{
    ApiError, BoundSocket, CoverageCheck, InterfaceMonitor, Server, ServerError, Switch,
    raise_descriptor_limit,
};
use crate::dataplane::{Dataplane, ShutdownMode, StartError};
use crate::tables::RuleTables;

/// Time that the workers have to stop.
const WORKERS_PATIENCE: Duration = Duration::from_secs(5);

/// Reason for which the switch does not start or stop.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The control socket does not open.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The workers do not start or stop.
    #[error(transparent)]
    Dataplane(#[from] StartError),
    /// A part of the configuration is rejected.
    #[error("{what}: {reason}")]
    Configured {
        /// Part of the configuration.
        what: String,
        /// Reason.
        reason: String,
    },
}

/// Running switch.
pub struct Daemon {
    monitor: InterfaceMonitor,
    server: Server,
    switch: Arc<Switch>,
    dataplane: Arc<Dataplane>,
    shutdown_mode: ShutdownMode,
}

impl Daemon {
    /// Starts a switch with the ports and pods of `config`, which enforces `tables`. On failure it leaves
    /// nothing behind: no socket, no thread, no XDP program.
    pub fn start(config: &Config, tables: Option<RuleTables>) -> Result<Daemon, DaemonError> {
        raise_descriptor_limit();
        // The socket comes first, because a bound one shows that another switch has the ports.
        let socket = Server::bind(&config.control.socket, config.control.mode)?;
        let settings = config
            .dataplane_settings()
            .map_err(|reason| DaemonError::Configured { what: "workers.cores".to_owned(), reason })?;
        let cores = settings.cores.clone();
        let dataplane = Arc::new(Dataplane::start(&settings)?);
        let switch = Arc::new(Switch::new(dataplane.clone(), config.switch_settings(cores)));
        match open(socket, &switch, config, tables) {
            Ok((monitor, server)) => {
                dataplane.keep();
                let shutdown_mode = match config.on_stop {
                    OnStop::Closed => ShutdownMode::Closed,
                    OnStop::Detach => ShutdownMode::Detached,
                };
                Ok(Daemon { monitor, server, switch, dataplane, shutdown_mode })
            }
            Err(error) => {
                drop(switch);
                stop_workers(dataplane, ShutdownMode::AsFound)?;
                Err(error)
            }
        }
    }

    /// Control side of the switch.
    pub fn switch(&self) -> &Switch {
        &self.switch
    }

    /// Stops the server, then the workers, and removes the socket.
    pub fn stop(self) -> Result<(), DaemonError> {
        let Daemon { monitor, server, switch, dataplane, shutdown_mode } = self;
        drop(server);
        drop(monitor);
        drop(switch);
        Ok(stop_workers(dataplane, shutdown_mode)?)
    }
}

/// Applies the configuration, then serves requests.
fn open(
    socket: BoundSocket,
    switch: &Arc<Switch>,
    config: &Config,
    tables: Option<RuleTables>,
) -> Result<(InterfaceMonitor, Server), DaemonError> {
    // The monitor starts before the ports open, so that it misses no link event of them.
    let monitor = InterfaceMonitor::start(switch).map_err(|error| {
        StartError::Setup(format!("the kernel does not tell of changes of interfaces: {error}"))
    })?;
    configure(switch, config, tables)?;
    Ok((monitor, socket.serve(switch.clone())?))
}

fn stop_workers(dataplane: Arc<Dataplane>, shutdown_mode: ShutdownMode) -> Result<(), StartError> {
    let busy =
        || StartError::Setup("the dataplane is still in use by a request: its workers go on".to_owned());
    Arc::into_inner(dataplane).ok_or_else(busy)?.stop(shutdown_mode, WORKERS_PATIENCE)
}

/// Loads `tables` and opens the ports and pods of `config`, up to the first that is rejected. Tables come
/// first, so that no pod is attached without them. Pods come last, so that the ports and routes of their
/// flows exist.
pub fn configure(switch: &Switch, config: &Config, tables: Option<RuleTables>) -> Result<(), DaemonError> {
    let refused =
        |what: String, reason: ApiError| DaemonError::Configured { what, reason: reason.to_string() };
    if let Some(tables) = tables {
        let origin = match &config.policy.directory {
            Some(path) => PolicyOrigin::directory(path),
            None => PolicyOrigin::control_socket(None, None),
        };
        let loaded = switch.replace_tables(tables, origin, CoverageCheck::RequireIfCovered);
        loaded.map_err(|error| refused("policy tables".to_owned(), error))?;
    }
    let is_pod = |port: &&PortConfig| port.kind.has_pod();
    let (pods, others): (Vec<_>, Vec<_>) = config.ports.iter().partition(is_pod);
    for port in others.into_iter().chain(pods) {
        let info = switch
            .put_port(&port.name, &port.port_request())
            .map_err(|error| refused(format!("port {:?}", port.name), error))?;
        for warning in &info.report.warnings {
            tracing::warn!(port = port.name, "{warning}");
        }
        let Some((pod, request)) = port.pod_request() else { continue };
        let info = switch
            .put_pod(&pod, &request)
            .map_err(|error| refused(format!("pod {pod} on port {:?}", port.name), error))?;
        for warning in &info.warnings {
            tracing::warn!(%pod, "{warning}");
        }
    }
    Ok(())
}
