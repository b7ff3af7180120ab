//! Command `palisade lint`: finds policies that are valid but probably mistaken.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::manifests::Manifests;
use super::{CliError, Output, output};
use crate::policy::explain::PolicyLocations;
use crate::policy::lint::{LintFinding, LintSubject, lint as check};

/// Find policies that are legal but probably wrong
///
/// Finds policies and peers that select nothing, or only pods that policy never sees, rules of a direction
/// that policyTypes lacks, named ports that no pod has or that apply to addresses, rules that another makes
/// redundant, Services that select no pod, rules with the port of a Service whose pods have another, exceptions without effect, blocks that are excepted entirely, blocks that name pods by address,
/// egress isolation that blocks DNS, and tied priorities. Skips checks that need pods if the manifests hold
/// none.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade lint policies/ pods.yaml
  kubectl get networkpolicy,pod,namespace -A -o yaml | palisade lint -

Exit codes: 0 nothing found, 1 something found, 2 usage error or failure.")]
pub(super) struct LintArguments {
    /// Files or directories of manifests; - is standard input
    #[arg(required = true, value_name = "FILE|DIR|-")]
    manifests: Vec<PathBuf>,
    /// Form of the findings
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// Finding with the location of its policy.
#[derive(Debug, Serialize)]
struct LocatedFinding {
    place: String,
    #[serde(flatten)]
    finding: LintFinding,
}

pub(super) fn lint(arguments: &LintArguments) -> Result<ExitCode, CliError> {
    let manifests = Manifests::read_with_audited(&arguments.manifests)?;
    let locations = manifests.locations();
    let placed = |finding: LintFinding| LocatedFinding {
        place: place(&manifests, &locations, &finding.policy),
        finding,
    };
    let findings: Vec<LocatedFinding> =
        check(&manifests.objects, &manifests.unread).into_iter().map(placed).collect();
    match arguments.output {
        Output::Json => output::json(&findings)?,
        Output::Table => output::text(&text(&findings))?,
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Place of the object of a finding.
fn place(manifests: &Manifests, locations: &PolicyLocations, subject: &LintSubject) -> String {
    match subject {
        LintSubject::Policy(policy) => locations.get(policy).cloned().unwrap_or_default(),
        LintSubject::Service { namespace, name, .. } => {
            manifests.location_of_service(namespace, name).unwrap_or_default()
        }
    }
}

fn text(findings: &[LocatedFinding]) -> String {
    if findings.is_empty() {
        return "Nothing found.\n".to_owned();
    }
    let line = |LocatedFinding { place, finding }: &LocatedFinding| {
        let LintFinding { policy, path, check, message } = finding;
        format!("{place}: {policy} {path}: {message} [{}]\n", check.name())
    };
    findings.iter().map(line).collect()
}
