//! Command `palisade doctor`: conditions of the node, of the interfaces and of the last switch, and remedies.

mod check;
mod external_ports;
mod host;
mod interfaces;
mod leftovers;
mod services;
mod tunnel;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use self::check::{Check, State};
use super::{CliError, Output, output};
use crate::config::Config;
use crate::control::{Client, protocol::PortInfo};
use crate::xdp::own_pin_use;

/// Check the node and the interfaces of a configuration, and say what to do about each finding
///
/// Reads kernel, privileges, memory, cores, interfaces and what an earlier switch has left. Changes nothing,
/// and needs neither root nor a running switch: checks without the privilege for them are "unseen".
/// `palisade run --check` checks the configuration itself.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sudo palisade doctor --config /etc/palisade/palisade.toml
  palisade doctor                                the node alone, for the default configuration
  palisade doctor --output json | jq '.[] | select(.state == \"finding\")'

Exit codes: 0 no finding, 1 findings, 2 failure.")]
pub(super) struct DoctorArguments {
    /// Configuration file
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Control socket of the running switch, in place of that of the configuration
    #[arg(long, value_name = "PATH", env = "PALISADE_SOCKET", hide_env_values = true)]
    socket: Option<PathBuf>,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn doctor(arguments: &DoctorArguments) -> Result<ExitCode, CliError> {
    let mut config = arguments.config.as_deref().map(Config::read).transpose()?.unwrap_or_default();
    config.control.socket = arguments.socket.clone().unwrap_or(config.control.socket);
    let running = running_ports(&config);
    let used = own_pin_use(&config.xdp.pin_directory);
    let mut checks = host::checks(&config);
    checks.extend(interfaces::checks(&config, running.as_deref().ok_or(&used)));
    checks.extend(external_ports::check(&config));
    checks.extend(services::checks(&config));
    checks.extend(tunnel::checks(&config));
    checks.extend(leftovers::checks(&config, &used));
    match arguments.output {
        Output::Json => output::json(&checks)?,
        Output::Table | Output::Wide => output::text(&text(&checks))?,
    }
    let has_findings = checks.iter().any(|check| check.state == State::Finding);
    Ok(ExitCode::from(u8::from(has_findings)))
}

/// Ports of the switch that serves the control socket; `None` without one.
fn running_ports(config: &Config) -> Option<Vec<PortInfo>> {
    Client::new(&config.control.socket).ports().ok()
}

/// Lists the checks, and each remedy below its own.
fn text(checks: &[Check]) -> String {
    let mut text = String::new();
    let width = checks.iter().map(|check| check.subject.chars().count()).max().unwrap_or(0);
    for check in checks {
        let state = match check.state {
            State::Ok => "ok",
            State::Finding => "FINDING",
            State::Unseen => "unseen",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{state:<8} {:<width$}  {}", check.subject, check.what);
        if let Some(remedy) = &check.remedy {
            let _ = writeln!(text, "{:<8} {:<width$}  -> {remedy}", "", "");
        }
    }
    let count = |state| checks.iter().filter(|check| check.state == state).count();
    let (findings, unseen) = (count(State::Finding), count(State::Unseen));
    text + &format!("{findings} findings, {unseen} checks unseen, {} ok\n", count(State::Ok))
}
