//! Commands `palisade shadow report`, `promote` and `drop`: candidate tables beside those in force.

use std::fmt::Write;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::cli::output::{Output, json, or_dash, render, set_form, table, text};
use crate::cli::{CliError, SocketArguments};
use crate::control::protocol::{ShadowReport, ShadowVerdict};
use crate::tables::Verdict;

/// Rehearse policies on live traffic before they are enforced
///
/// `palisade apply --shadow` loads policies as a candidate beside the tables in force. The switch judges its flows by both,
/// once a second or less often, and the sampled packets that policy denies. Only the tables in force decide about packets.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade apply --shadow policies/   load a candidate; nothing changes
  palisade shadow report              the connections that it would cut or let pass, and by which policy
  palisade shadow promote             enforce it
  palisade shadow drop                forget it

Exit codes of report: 0 no difference was seen, 1 some were, 2 failure.")]
pub(in crate::cli) struct ShadowArguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    socket: SocketArguments,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the connections on which the candidate and the tables in force differ
    Report {
        /// Form of the report
        #[arg(short, long, default_value = "table", global = true)]
        output: Output,
    },
    /// Enforce the candidate in place of the tables in force
    Promote {
        /// Enforce it even if it knows none of the attached pods, whose traffic is dropped then
        #[arg(long)]
        allow_empty: bool,
        /// Enforce it even if other tables have come into force since its load
        #[arg(long)]
        replace: bool,
    },
    /// Forget the candidate
    Drop,
}

pub(in crate::cli) fn shadow(arguments: &ShadowArguments) -> Result<ExitCode, CliError> {
    let client = arguments.socket.client();
    match &arguments.command {
        Command::Report { output } => {
            set_form(*output);
            let report = client.shadow()?;
            match output {
                Output::Json => json(&report)?,
                Output::Table | Output::Wide => text(&as_table(&report))?,
            }
            return Ok(ExitCode::from(u8::from(!report.disagreements.is_empty())));
        }
        Command::Promote { allow_empty, replace } => {
            let loaded = client.promote_shadow(*allow_empty, *replace)?;
            text(&format!("the candidate is in force, generation {}\n", loaded.generation))?;
        }
        Command::Drop => {
            client.delete_shadow()?;
            text("the candidate is forgotten\n")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn as_table(report: &ShadowReport) -> String {
    let mut table = table(["from", "to", "port", "in force", "candidate", "flows", "running", "denied"])
        .left_out_first(&["running", "denied", "flows"]);
    for found in &report.disagreements {
        let port = match found.port {
            0 => found.protocol.to_string(),
            port => format!("{} {port}", found.protocol),
        };
        table.add_row([
            found.source.clone(),
            found.destination.clone(),
            port,
            verdict(&found.enforced),
            verdict(&found.candidate),
            found.flows.to_string(),
            found.running.to_string(),
            found.denied.to_string(),
        ]);
    }
    let mut page = render(&table, "The candidate and the tables in force agree on all that was seen.");
    // Writing to a string cannot fail.
    if report.left_out > 0 {
        let _ = writeln!(page, "{} more found no place in this list", report.left_out);
    }
    if report.evicted > 0 {
        let _ = writeln!(page, "{} flows were evicted meanwhile, perhaps unseen", report.evicted);
    }
    if report.unjudged > 0 {
        let _ =
            writeln!(page, "{} sampled packets were not judged, because pods came and went", report.unjudged);
    }
    let _ = writeln!(page, "flows judged: {} in the last of {} walks", report.flows, report.walks);
    page
}

fn verdict(verdict: &ShadowVerdict) -> String {
    let said = match verdict.verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
    };
    format!("{said}: {}", or_dash(verdict.decided_by.as_ref()))
}
