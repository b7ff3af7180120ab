//! Command `palisade audit report`: flows that policies in audit mode would deny.

use std::fmt::Write;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::cli::output::{Output, json, render, set_form, table, text};
use crate::cli::{CliError, SocketArguments};
use crate::control::protocol::AuditReport;
use crate::printable;

/// Show what policies in audit mode would deny
///
/// A policy with the annotation `palisade.dev/mode: audit` never denies. The switch judges its flows by the tables in force,
/// and by tables in which such policies are enforced too, once a second or less often, and counts those that only the
/// latter deny.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade apply policies/     load policies, some of them in audit mode
  palisade audit report        the connections that these would cut, and by which policy and rule

Exit codes of report: 0 nothing would be denied, 1 something would, 2 failure.")]
pub(in crate::cli) struct AuditArguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    socket: SocketArguments,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the policies in audit mode, and the connections that they would deny
    Report {
        /// Form of the report
        #[arg(short, long, default_value = "table", global = true)]
        output: Output,
    },
}

pub(in crate::cli) fn audit(arguments: &AuditArguments) -> Result<ExitCode, CliError> {
    let Command::Report { output } = &arguments.command;
    set_form(*output);
    let report = arguments.socket.client().audit()?;
    match output {
        Output::Json => json(&report)?,
        Output::Table | Output::Wide => text(&as_table(&report))?,
    }
    let counted = report.policies.iter().any(|policy| policy.flows > 0);
    Ok(ExitCode::from(u8::from(counted || !report.denials.is_empty())))
}

fn as_table(report: &AuditReport) -> String {
    if report.policies.is_empty() {
        return "No policy is in audit mode (annotation `palisade.dev/mode: audit`).\n".to_owned();
    }
    let mut policies = table(["policy in audit mode", "denied flows", "running"]);
    for audited in &report.policies {
        policies.add_row([
            audited.policy.to_string(),
            audited.flows.to_string(),
            audited.running.to_string(),
        ]);
    }
    let mut denials = table(["from", "to", "port", "would be denied by", "flows", "running"])
        .left_out_first(&["running", "flows"]);
    for denial in &report.denials {
        let port = match denial.port {
            0 => denial.protocol.to_string(),
            port => format!("{} {port}", denial.protocol),
        };
        let decided_by = denial.decided_by.as_ref().map(ToString::to_string);
        denials.add_row([
            denial.source.clone(),
            denial.destination.clone(),
            port,
            decided_by.unwrap_or_else(|| "the pod has no tables in the audit".to_owned()),
            denial.flows.to_string(),
            denial.running.to_string(),
        ]);
    }
    let mut page = render(&policies, "");
    page.push('\n');
    page += &render(&denials, "No flow that was seen would be denied.");
    // Writing to a string cannot fail.
    if let Some(problem) = &report.problem {
        let _ = writeln!(page, "no flow is judged: {}", printable::line(problem));
    }
    let mut remark = |count: u64, text: &str| {
        if count > 0 {
            let _ = writeln!(page, "{count} {text}");
        }
    };
    remark(report.left_out, "more flows found no place in this list, and count for their policies");
    remark(
        report.uncounted,
        "flows of the last walk would be denied and are not counted: there are too many",
    );
    remark(report.evicted, "flows were evicted meanwhile, perhaps unseen");
    remark(report.discarded, "walks do not count, because a change was going on at their end");
    let _ = writeln!(page, "flows judged: {} in the last of {} walks", report.flows, report.walks);
    page
}
