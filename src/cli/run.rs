//! `palisade run`: the switch in the foreground.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing_subscriber::EnvFilter;

use super::{Failure, output, terminal};
use crate::agent::directory::{PolicyDirectory, Reload};
use crate::config::{Config, Fail};
use crate::control::{Daemon, Switch};
use crate::policy::read::Diagnostic;

/// How often the policy directory is looked at.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Start the switch, in the foreground
///
/// Starts workers, ports, pods and the control socket as the configuration says, loads the policies of its
/// policy directory, and runs until SIGINT or SIGTERM. SIGHUP loads the policies again. Logs go to standard error;
/// set PALISADE_LOG (error, warn, info, debug, trace) for more or less of them. Needs root.
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

pub(super) fn run(arguments: &RunArguments) -> Result<ExitCode, Failure> {
    start_log();
    let config = arguments.config.as_deref().map(Config::read).transpose()?.unwrap_or_default();
    if config.policy.fail == Fail::Open {
        tracing::warn!("policy.fail is \"open\": traffic of pods that no table knows passes unchecked");
    }
    // Signals are taken from here on, so that one that comes during the start leads to a clean stop after it.
    let signals = watch_signals()?;
    let mut policies = PolicyDirectory::of(&config.policy);
    let compiled = policies.as_ref().map(PolicyDirectory::load).transpose()?;
    let tables = compiled.map(|compiled| {
        warn(&compiled.warnings);
        compiled.tables
    });
    let daemon = Daemon::start(&config, tables)?;
    let status = daemon.switch().status();
    output::text(&format!(
        "palisade {} is ready: {} ports, {} pods, workers on cores {:?}, control socket {}\n",
        status.version,
        daemon.switch().ports().len(),
        daemon.switch().pods().len(),
        status.cores,
        config.control.socket.display()
    ))?;
    follow(&signals, policies.as_mut(), &daemon);
    daemon.stop()?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Loads policies again when they change, until a signal says stop.
fn follow(signals: &mpsc::Receiver<i32>, mut policies: Option<&mut PolicyDirectory>, daemon: &Daemon) {
    loop {
        let asked = match signals.recv_timeout(WATCH_INTERVAL) {
            Ok(SIGHUP) => true,
            Err(RecvTimeoutError::Timeout) => false,
            Ok(signal) => {
                tracing::info!(signal, "stopping");
                return;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        match &mut policies {
            Some(policies) => reload(policies, asked, daemon.switch()),
            None if asked => tracing::warn!("SIGHUP: no policy directory is configured, nothing to load"),
            None => {}
        }
    }
}

/// Reads policies that have changed, or when asked to, and tells in the log what came of it.
fn reload(policies: &mut PolicyDirectory, asked: bool, switch: &Switch) {
    let outcome = policies.reload(asked, switch);
    let directory = policies.path().display();
    match outcome {
        Reload::NotDue => {}
        Reload::Same => tracing::info!(%directory, "policy read again: nothing has changed"),
        Reload::Loaded { generation, warnings } => {
            warn(&warnings);
            tracing::info!(%directory, %generation, "policy loaded");
        }
        Reload::Rejected(rejected) => {
            tracing::error!(%directory, "the running policy stays, this one is wrong: {rejected}");
        }
        Reload::Refused(refusal) => tracing::error!(%directory, "the running policy stays: {refusal}"),
    }
}

fn warn(warnings: &[Diagnostic]) {
    for warning in warnings {
        tracing::warn!("{warning}");
    }
}

fn watch_signals() -> Result<mpsc::Receiver<i32>, Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Failure::Sentence(format!("signals cannot be watched: {error}")))?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

fn start_log() {
    let filter = EnvFilter::try_from_env("PALISADE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // A second subscriber is refused; the one that is there serves as well.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(terminal::LogWriter::new)
        .with_ansi(terminal::has_colors(&std::io::stderr()))
        .try_init();
}
