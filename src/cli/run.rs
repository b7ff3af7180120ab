//! Command `palisade run`: runs the switch in the foreground.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;

use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing_subscriber::EnvFilter;

use super::{CliError, output, terminal};
use crate::config::{Config, Fail};
use crate::daemon::Daemon;
use crate::source::{PolicyDirectory, Requests};
use crate::threads;

/// Start the switch, in the foreground
///
/// Starts workers, ports, pods and the control socket as configured, loads the policies of the policy
/// directory, and runs until SIGINT or SIGTERM. SIGHUP loads the policies again. Logs go to standard error;
/// PALISADE_LOG (error, warn, info, debug, trace) sets their level. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sudo palisade run --config config/palisade.toml
  sudo palisade run                              defaults: no ports; add them through the control socket")]
pub(super) struct RunArguments {
    /// Configuration file; config/palisade.toml of the sources documents every key
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(super) fn run(arguments: &RunArguments) -> Result<ExitCode, CliError> {
    start_log();
    threads::count_panics();
    let config = arguments.config.as_deref().map(Config::read).transpose()?.unwrap_or_default();
    if config.policy.fail == Fail::Open {
        tracing::warn!("policy.fail is \"open\": traffic of pods that no table knows passes unchecked");
    }
    // Signals are handled from here on, so that one during the start leads to a clean stop after it.
    let signals = watch_signals()?;
    let mut policies = PolicyDirectory::of(&config.policy);
    let ready = policies.as_mut().map(PolicyDirectory::load).transpose()?;
    let tables = ready.map(|ready| {
        ready.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        ready.tables
    });
    let requests = Requests::new()
        .map_err(|error| CliError::Message(format!("the kernel gives no eventfd: {error}")))?;
    let daemon = Daemon::start(&config, tables)?;
    if let Some(policies) = &mut policies {
        policies.started(daemon.switch());
    }
    let status = daemon.switch().status();
    output::text(&format!(
        "palisade {} is ready: {} ports, {} pods, workers on cores {:?}, control socket {}\n",
        status.version,
        daemon.switch().ports().len(),
        daemon.switch().pods().len(),
        status.cores,
        config.control.socket.display()
    ))?;
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET") {
        notify_ready(&socket)
            .unwrap_or_else(|error| tracing::warn!("$NOTIFY_SOCKET takes no message: {error}"));
    }
    let has_directory = policies.is_some();
    std::thread::scope(|scope| {
        let _stop = StopWhenDropped(&requests);
        if let Some(policies) = &mut policies {
            scope.spawn(|| threads::vital("palisade-source", || policies.run(daemon.switch(), &requests)));
        }
        handle_signals(&signals, has_directory.then_some(&requests));
    });
    daemon.stop()?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Stops the thread that follows the policy directory, even if this one panics.
struct StopWhenDropped<'r>(&'r Requests);

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Waits for a termination signal. SIGHUP loads the policy directory again.
fn handle_signals(signals: &mpsc::Receiver<i32>, policies: Option<&Requests>) {
    for signal in signals {
        match (signal, policies) {
            (SIGHUP, Some(policies)) => policies.reload(),
            (SIGHUP, None) => tracing::warn!("SIGHUP: no policy directory is configured, nothing to load"),
            _ => {
                tracing::info!(signal, "stopping");
                return;
            }
        }
    }
}

fn watch_signals() -> Result<mpsc::Receiver<i32>, CliError> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| CliError::Message(format!("signals cannot be watched: {error}")))?;
    let (sender, receiver) = mpsc::channel();
    let forward = move || {
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                return;
            }
        }
    };
    threads::spawn("palisade-signals", forward)
        .map_err(|error| CliError::Message(format!("the kernel gives no thread for signals: {error}")))?;
    Ok(receiver)
}

/// Reports to systemd that the start is complete, for a unit of `Type=notify`. sd_notify(3): `$NOTIFY_SOCKET` is the path
/// of a datagram socket, or an abstract name after "@".
fn notify_ready(socket: &OsStr) -> std::io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address).map(drop)
}

fn start_log() {
    let filter = EnvFilter::try_from_env("PALISADE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // A second subscriber is rejected, and the first one stays.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(terminal::LogWriter::new)
        .with_ansi(terminal::has_colors(&std::io::stderr()))
        .try_init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_hears_that_the_switch_is_ready_on_a_path_and_on_an_abstract_name() {
        let name = format!("palisade-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let _ = std::fs::remove_file(&path);
        let received = |address: &SocketAddr, socket: &OsStr| {
            let systemd = UnixDatagram::bind_addr(address).unwrap();
            notify_ready(socket).unwrap();
            let mut message = [0; 16];
            let length = systemd.recv(&mut message).unwrap();
            message[..length].to_vec()
        };
        let pathname = SocketAddr::from_pathname(&path).unwrap();
        assert_eq!(received(&pathname, path.as_os_str()), b"READY=1");
        std::fs::remove_file(&path).unwrap();
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        assert_eq!(received(&abstract_name, OsStr::new(&format!("@{name}"))), b"READY=1");
        assert!(notify_ready(path.as_os_str()).is_err(), "nobody listens");
    }
}
