//! Command `palisade reload`: has the running switch read its configuration again, and reports the outcome.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;

use crate::cli::output::{Output, json, text};
use crate::cli::{CliError, SocketArguments};
use crate::control::Client;
use crate::control::protocol::ConfigurationReport;

/// Longest wait for the switch.
const TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Have the running switch read its configuration file again, and say what became of it
///
/// `systemctl reload palisade` runs this command. A rejected file changes nothing. The policy directory is read again, too; the
/// status has its errors.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade reload
  palisade reload --output json | jq .restart     keys that wait for a restart

Exit codes: 0 accepted, 1 rejected or failed in part, 2 no answer.")]
pub(in crate::cli) struct ReloadArguments {
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    socket: SocketArguments,
}

pub(in crate::cli) fn reload(arguments: &ReloadArguments) -> Result<ExitCode, CliError> {
    let client = arguments.socket.client();
    let reloads = client.reload()?.reloads;
    let report = wait_for_report(&client, reloads)?;
    match arguments.output {
        Output::Json => json(&report)?,
        Output::Table | Output::Wide => text(&lines(&report))?,
    }
    let is_done = report.rejected.is_empty() && report.failed.is_empty();
    Ok(ExitCode::from(u8::from(!is_done)))
}

fn wait_for_report(client: &Client, reloads: u64) -> Result<ConfigurationReport, CliError> {
    let start = Instant::now();
    loop {
        if let Some(report) = client.status()?.configuration.filter(|report| report.reloads > reloads) {
            return Ok(report);
        }
        if start.elapsed() > TIMEOUT {
            return Err(CliError::Message(
                "the switch has not read its configuration: its log says why".to_owned(),
            ));
        }
        sleep(POLL_INTERVAL);
    }
}

fn lines(report: &ConfigurationReport) -> String {
    let file = report.file.display();
    let mut lines: Vec<String> = report
        .rejected
        .iter()
        .map(|error| format!("rejected: {error}; the running configuration stays"))
        .collect();
    lines.extend(report.failed.iter().map(|error| format!("failed: {error}")));
    if !report.restart.is_empty() {
        lines.push(format!("waits for a restart: {}", report.restart.join(", ")));
    }
    if report.rejected.is_empty() {
        lines.insert(0, format!("{file} is read"));
    }
    lines.join("\n") + "\n"
}
