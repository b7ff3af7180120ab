//! Command `palisade run`: runs the switch in the foreground.

#[cfg(feature = "kubernetes")]
pub(super) mod agent;
mod check;
#[cfg(feature = "kubernetes")]
mod follow_api;
mod last_good;
mod log;
mod reconfigure;
mod reload;
mod systemd;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;

use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::log::start_log;
use self::systemd::ServiceManager;
use super::{CliError, output};
use crate::config::{Config, Fail, SourceKind};
use crate::daemon::{self, Daemon};
use crate::dataplane::Backend;
use crate::hardening;
use crate::source::{PolicyDirectory, Requests};
use crate::threads;

/// Start the switch, in the foreground
///
/// Starts workers, ports, pods and the control socket as configured, loads the policies of the policy
/// directory, and runs until SIGINT or SIGTERM. SIGHUP reads the configuration and the policies again:
/// ports, pods and routes change, and the log names the keys that need a restart. Logs go to standard error;
/// PALISADE_LOG (error, warn, info, debug, trace) sets their level. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sudo palisade run --config config/palisade.toml
  palisade run --check --config FILE             the errors of a start, without one
  sudo palisade run                              defaults: no ports; add them through the control socket
  sudo palisade run --backend nftables --config FILE
                                                 the kernel forwards, on nodes without AF_XDP")]
pub(super) struct RunArguments {
    /// Configuration file; config/palisade.toml of the sources documents every key
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Program that forwards the packets of pods, in place of the one that the configuration names
    #[arg(long, value_name = "NAME")]
    backend: Option<Backend>,
    /// Check the configuration, the policies and the interfaces, print what would run, and start nothing
    #[arg(long)]
    check: bool,
}

pub(super) fn run(arguments: &RunArguments) -> Result<ExitCode, CliError> {
    let mut config = read(arguments.config.as_deref())?;
    config.backend = arguments.backend.unwrap_or(config.backend);
    start_log(config.log.format);
    threads::count_panics();
    if config.policy.fail == Fail::Open {
        tracing::warn!("policy.fail is \"open\": traffic of pods that no table knows passes unchecked");
    }
    if cfg!(not(feature = "kubernetes")) && config.policy.source == SourceKind::Kubernetes {
        let error =
            "policy.source is \"kubernetes\", and this program is built without the feature `kubernetes`";
        return Err(CliError::Message(error.to_owned()));
    }
    if arguments.check {
        return check::check(&config);
    }
    let socket = daemon::bind(&config)?;
    #[cfg(feature = "kubernetes")]
    let lock = follow_api::lock(&config)?;
    // No thread runs yet.
    hardening::harden(&config, arguments.config.as_deref());
    // Signals are handled from here on, so that one during the start leads to a clean stop after it.
    let (signals, requests_of_clients) = watch_signals()?;
    let mut policies = PolicyDirectory::of(&config.policy);
    let ready = policies.as_mut().map(PolicyDirectory::load).transpose()?;
    let tables = ready.map(|ready| {
        ready.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        ready.tables
    });
    let requests = Requests::new()
        .map_err(|error| CliError::Message(format!("the kernel gives no eventfd: {error}")))?;
    let daemon = Daemon::start(&config, socket, tables)?;
    daemon.switch().set_configured(config.configured());
    if let Some(policies) = &mut policies {
        policies.started(daemon.switch());
    }
    let status = daemon.switch().status();
    let http = daemon.http_address().map(|address| format!(", http://{address}/metrics")).unwrap_or_default();
    output::text(&format!(
        "palisade {} is ready: {} ports, {} pods, {}, control socket {}{http}\n",
        status.version,
        daemon.switch().ports().len(),
        daemon.switch().pods().len(),
        match config.backend {
            Backend::AfXdp => format!("workers on cores {:?}", status.cores),
            Backend::Nftables => "forwarded by the kernel (backend nftables)".to_owned(),
        },
        config.control.socket.display()
    ))?;
    if let Some(file) = &arguments.config {
        last_good::keep(file, &config.control.socket);
    }
    let service = &ServiceManager::from_environment();
    service.ready();
    let (switch, has_directory) = (daemon.switch(), policies.is_some());
    if arguments.config.is_some() {
        // A process that ends reloads nothing.
        switch.on_reload_request(move || _ = requests_of_clients.send(SIGHUP));
    }
    let (runs, stopped) = mpsc::channel();
    std::thread::scope(|scope| {
        let _stop = StopWhenDropped(&requests);
        // The watchdog's thread ends with this sender, even if this thread panics.
        let _runs: mpsc::Sender<()> = runs;
        if let Some(policies) = &mut policies {
            let follow = || policies.run(switch, &requests, || service.ready());
            scope.spawn(|| threads::vital("palisade-source", follow));
        }
        #[cfg(feature = "kubernetes")]
        if let Some(lock) = lock {
            follow_api::spawn(scope, switch, &config.policy, &requests, lock);
        }
        let feed = move || service.feed_watchdog(switch, &stopped);
        scope.spawn(|| threads::vital("palisade-watchdog", feed));
        handle_signals(&signals, service, || {
            if let Some(path) = &arguments.config {
                reload::reload(path, arguments.backend, switch, &mut config);
            }
            // The thread of the directory reports the end of the reload.
            if has_directory { requests.reload() } else { service.ready() }
        });
        service.stopping();
    });
    daemon.stop()?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Reads the configuration; the defaults without a file. An error names the last one that has worked.
fn read(file: Option<&Path>) -> Result<Config, CliError> {
    let Some(file) = file else { return Ok(Config::default()) };
    Config::read(file).map_err(|error| CliError::Message(format!("{error}{}", last_good::hint(file))))
}

/// Stops the thread that follows the policy directory, even if this one panics.
struct StopWhenDropped<'r>(&'r Requests);

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Waits for a termination signal. SIGHUP calls `reload`.
fn handle_signals(signals: &mpsc::Receiver<i32>, service: &ServiceManager, mut reload: impl FnMut()) {
    for signal in signals {
        if signal != SIGHUP {
            tracing::info!(signal, "stopping");
            return;
        }
        service.reloading();
        reload();
    }
}

/// Signals, and a sender of further ones.
fn watch_signals() -> Result<(mpsc::Receiver<i32>, mpsc::Sender<i32>), CliError> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| CliError::Message(format!("signals cannot be watched: {error}")))?;
    let (sender, receiver) = mpsc::channel();
    let further = sender.clone();
    let forward = move || {
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                return;
            }
        }
    };
    threads::spawn("palisade-signals", forward)
        .map_err(|error| CliError::Message(format!("the kernel gives no thread for signals: {error}")))?;
    Ok((receiver, further))
}
