//! The switch as a process: dataplane, control side and control socket, started from a configuration.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::cni;
use crate::config::{Config, OnStop, PortConfig};
use crate::control::protocol::PolicyOrigin;
use crate::control::{
    ApiError, BoundSocket, CoverageCheck, HttpListener, InterfaceMonitor, Periodic, Server, ServerError,
    Switch, collect_drops, detach_node_sockets, export_flows, keep_node_routes, keep_node_sockets,
    raise_descriptor_limit, remove_node_routes,
};
use crate::dataplane::{Backend, Dataplane, DataplaneApi, DryRun, Settings, ShutdownMode, StartError};
use crate::kernel_dataplane::KernelDataplane;
use crate::tables::RuleTables;

/// Time that the workers have to stop.
const WORKERS_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason for which the switch does not start or stop.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The control socket or the HTTP listener does not open.
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
    server: Server,
    threads: Threads,
    http_address: Option<SocketAddr>,
    switch: Arc<Switch>,
    packet_path: PacketPath,
    shutdown_mode: ShutdownMode,
}

/// Threads beside the requests.
struct Threads {
    monitor: InterfaceMonitor,
    drop_collector: Periodic,
    exporter: Option<Periodic>,
    node_routes: Periodic,
    node_sockets: Periodic,
}

/// Program that forwards the packets.
#[derive(Clone)]
enum PacketPath {
    Workers(Arc<Dataplane>),
    Kernel(Arc<KernelDataplane>),
}

impl PacketPath {
    fn start(config: &Config, settings: &Settings) -> Result<PacketPath, StartError> {
        Ok(match config.backend {
            Backend::AfXdp => PacketPath::Workers(Arc::new(Dataplane::start(settings)?)),
            Backend::Nftables => {
                PacketPath::Kernel(Arc::new(KernelDataplane::new(settings.conntrack.tcp_pickup)?))
            }
        })
    }

    /// Starts to enforce the configuration that has been applied.
    fn take_over(&self) -> Result<(), StartError> {
        match self {
            PacketPath::Workers(_) => Ok(()),
            PacketPath::Kernel(dataplane) => dataplane.take_over(),
        }
    }

    /// Keeps what the start has made.
    fn keep(&self) {
        if let PacketPath::Workers(dataplane) = self {
            dataplane.keep();
        }
    }

    fn api(&self) -> Arc<dyn DataplaneApi> {
        match self {
            PacketPath::Workers(dataplane) => dataplane.clone(),
            PacketPath::Kernel(dataplane) => dataplane.clone(),
        }
    }

    fn stop(self, shutdown_mode: ShutdownMode) -> Result<(), StartError> {
        let busy =
            || StartError::Setup("the dataplane is still in use by a request: its work goes on".to_owned());
        match self {
            PacketPath::Workers(dataplane) => {
                Arc::into_inner(dataplane).ok_or_else(busy)?.stop(shutdown_mode, WORKERS_TIMEOUT)
            }
            PacketPath::Kernel(dataplane) => Arc::into_inner(dataplane).ok_or_else(busy)?.stop(shutdown_mode),
        }
    }
}

impl Daemon {
    /// Starts a switch with the ports and pods of `config`, which enforces `tables` and is served on `socket`. On failure
    /// it leaves nothing behind: no socket, no thread, no XDP program.
    pub fn start(
        config: &Config,
        socket: BoundSocket,
        tables: Option<RuleTables>,
    ) -> Result<Daemon, DaemonError> {
        let http_address = socket.http_address();
        let settings = dataplane_settings(config)?;
        let cores = settings.cores.clone();
        let packet_path = PacketPath::start(config, &settings)?;
        let switch = Arc::new(Switch::new(packet_path.api(), config.switch_settings(cores)));
        match open(socket, &switch, config, tables, &packet_path) {
            Ok((threads, server)) => {
                packet_path.keep();
                let shutdown_mode = match config.on_stop {
                    OnStop::Closed => ShutdownMode::Closed,
                    OnStop::Detach => ShutdownMode::Detached,
                };
                Ok(Daemon { server, threads, http_address, switch, packet_path, shutdown_mode })
            }
            Err(error) => {
                drop(switch);
                packet_path.stop(ShutdownMode::AsFound)?;
                Err(error)
            }
        }
    }

    /// Control side of the switch.
    pub fn switch(&self) -> &Switch {
        &self.switch
    }

    /// Address of the HTTP listener, if there is one.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http_address
    }

    /// Stops the server, then the workers, and removes the socket.
    pub fn stop(self) -> Result<(), DaemonError> {
        let Daemon { server, threads, switch, packet_path, shutdown_mode, .. } = self;
        drop(server);
        let Threads { monitor, drop_collector, exporter, node_routes, node_sockets } = threads;
        drop((monitor, drop_collector, exporter, node_routes, node_sockets));
        if shutdown_mode == ShutdownMode::Detached {
            remove_node_routes();
            detach_node_sockets(&switch);
        }
        drop(switch);
        Ok(packet_path.stop(shutdown_mode)?)
    }
}

/// Binds the sockets and the HTTP listener of a configuration. The first step of a start, because a bound socket shows that
/// another switch has the ports. Starts no thread.
pub fn bind(config: &Config) -> Result<BoundSocket, DaemonError> {
    raise_descriptor_limit();
    let socket = Server::bind_at(&config.control.place())?;
    let socket = socket.with_read_only(config.control.read_only_place().as_ref())?;
    let listen = |address| HttpListener::bind(address, config.http.token_file.as_deref());
    Ok(socket.with_http(config.http.listen.map(listen).transpose()?))
}

/// Applies the configuration, then serves requests.
fn open(
    socket: BoundSocket,
    switch: &Arc<Switch>,
    config: &Config,
    tables: Option<RuleTables>,
    packet_path: &PacketPath,
) -> Result<(Threads, Server), DaemonError> {
    // The monitor starts before the ports open, so that it misses no link event of them.
    let monitor = InterfaceMonitor::start(switch).map_err(|error| {
        StartError::Setup(format!("the kernel does not tell of changes of interfaces: {error}"))
    })?;
    let drop_collector = collect_drops(switch)
        .map_err(|error| StartError::Setup(format!("no thread for drop samples: {error}")))?;
    // No port is open yet, so that every packet counts.
    let exporter = export_flows(switch)
        .map_err(|error| StartError::Setup(format!("no thread for the export of flows: {error}")))?;
    configure(switch, config, tables)?;
    if let Some(directory) = config.cni_directory() {
        cni::restore(switch, &directory);
    }
    packet_path.take_over()?;
    let server = socket.serve(switch.clone())?;
    let node_routes = keep_node_routes(switch)
        .map_err(|error| StartError::Setup(format!("no thread for the routes of the node: {error}")))?;
    let node_sockets = keep_node_sockets(switch)
        .map_err(|error| StartError::Setup(format!("no thread for the sockets of the node: {error}")))?;
    Ok((Threads { monitor, drop_collector, exporter, node_routes, node_sockets }, server))
}

/// Loads `tables` and opens the ports and pods of `config`, up to the first that is rejected.
pub fn configure(switch: &Switch, config: &Config, tables: Option<RuleTables>) -> Result<(), DaemonError> {
    rejections(switch, config, tables).next().map_or(Ok(()), Err)
}

/// Checks `config` and `tables` as a start does, and starts nothing. Returns each part that a start would reject, in
/// the order in which a start comes to them.
pub fn check(config: &Config, tables: Option<RuleTables>) -> Result<Vec<DaemonError>, DaemonError> {
    let settings = dataplane_settings(config)?;
    // The kernel's dataplane changes nothing before it takes over.
    let dataplane: Arc<dyn DataplaneApi> = match config.backend {
        Backend::AfXdp => Arc::new(DryRun::new(&settings)?),
        Backend::Nftables => Arc::new(KernelDataplane::new(settings.conntrack.tcp_pickup)?),
    };
    let switch = Switch::new(dataplane, config.switch_settings(settings.cores));
    let check = |address| HttpListener::check(address, config.http.token_file.as_deref()).err();
    let http = config.http.listen.and_then(check).map(DaemonError::Server);
    Ok(http.into_iter().chain(rejections(&switch, config, tables)).collect())
}

/// Settings of the dataplane. No worker runs where the kernel forwards.
fn dataplane_settings(config: &Config) -> Result<Settings, DaemonError> {
    let configured = |what: &str, reason| DaemonError::Configured { what: what.to_owned(), reason };
    if let Some(reason) = config.backend_lacks() {
        return Err(configured("backend", reason.to_owned()));
    }
    let settings = config.dataplane_settings().map_err(|reason| configured("workers.cores", reason))?;
    let workers = config.backend == Backend::AfXdp;
    Ok(Settings { cores: settings.cores.into_iter().filter(|_| workers).collect(), ..settings })
}

/// Loads `tables` and opens the ports and pods of `config`, one with each step of the iterator that rejects none.
/// Tables come first, so that no pod is attached without them. Pods come last, so that the ports and routes of their
/// flows exist.
fn rejections(
    switch: &Switch,
    config: &Config,
    tables: Option<RuleTables>,
) -> impl Iterator<Item = DaemonError> {
    let tables = tables.map(|tables| load_tables(switch, config, tables));
    let (pods, others): (Vec<_>, Vec<_>) = config.ports.iter().partition(|port| port.kind.has_pod());
    let ports = others.into_iter().chain(pods).map(|port| open_port(switch, port));
    tables.into_iter().chain(ports).filter_map(Result::err)
}

fn load_tables(switch: &Switch, config: &Config, tables: RuleTables) -> Result<(), DaemonError> {
    let origin = match &config.policy.directory {
        Some(path) => PolicyOrigin::directory(path),
        None => PolicyOrigin::control_socket(None, None),
    };
    let loaded = switch.replace_tables(tables, origin, CoverageCheck::RequireIfCovered);
    loaded.map(drop).map_err(|error| rejected("policy tables".to_owned(), &error))
}

/// Opens a port, and attaches the pod behind it. Logs the warnings about both. A port whose pod is rejected is closed
/// again.
pub(crate) fn open_port(switch: &Switch, port: &PortConfig) -> Result<(), DaemonError> {
    let info = switch
        .put_port(&port.name, &port.port_request())
        .map_err(|error| rejected(format!("port {:?}", port.name), &error))?;
    for warning in &info.report.warnings {
        tracing::warn!(port = port.name, "{warning}");
    }
    let Some((pod, request)) = port.pod_request() else { return Ok(()) };
    let info = switch.put_pod(&pod, &request).map_err(|error| {
        // Its interface stays closed to the pod.
        if let Err(error) = switch.delete_port(&port.name, Some(false)) {
            tracing::error!(port = port.name, "the port without its pod stays open: {error}");
        }
        rejected(format!("pod {pod} on port {:?}", port.name), &error)
    })?;
    for warning in &info.warnings {
        tracing::warn!(%pod, "{warning}");
    }
    Ok(())
}

/// Error about a part of the configuration.
pub(crate) fn rejected(what: String, reason: &ApiError) -> DaemonError {
    DaemonError::Configured { what, reason: reason.to_string() }
}
