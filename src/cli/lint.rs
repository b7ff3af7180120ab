//! Command `palisade lint`: finds policies that are valid but probably mistaken.

mod code_scanning;
mod located_finding;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use self::located_finding::LocatedFinding;
use super::manifests::Manifests;
use super::{CliError, output};
use crate::policy::lint::{LintFinding, lint as check};

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
  palisade lint policies/ --output github             # annotations of a pull request
  palisade lint policies/ --output sarif > lint.sarif # for code scanning

Exit codes: 0 nothing found, 1 something found, 2 usage error or failure.")]
pub(super) struct LintArguments {
    /// Files or directories of manifests; - is standard input
    #[arg(required = true, value_name = "FILE|DIR|-")]
    manifests: Vec<PathBuf>,
    /// Form of the findings
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

/// Form of the findings.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Form {
    /// A line each, with file, line, object, field and check
    #[default]
    Table,
    /// For programs
    Json,
    /// Annotations of a pull request, as GitHub Actions reads them
    Github,
    /// SARIF 2.1.0, for code scanning
    Sarif,
}

pub(super) fn lint(arguments: &LintArguments) -> Result<ExitCode, CliError> {
    let manifests = Manifests::read_with_audited(&arguments.manifests)?;
    let places = manifests.lint_subjects();
    let placed = |finding: LintFinding| {
        let location = places.get(&finding.policy).copied();
        LocatedFinding { place: location.map(ToString::to_string).unwrap_or_default(), location, finding }
    };
    let findings: Vec<LocatedFinding<'_>> =
        check(&manifests.objects, &manifests.unread).into_iter().map(placed).collect();
    match arguments.output {
        Form::Table => output::text(&text(&findings))?,
        Form::Json => output::json(&findings)?,
        Form::Github => output::document(&code_scanning::github(&findings))?,
        Form::Sarif => output::json(&code_scanning::sarif(&findings))?,
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn text(findings: &[LocatedFinding<'_>]) -> String {
    if findings.is_empty() {
        return "Nothing found.\n".to_owned();
    }
    let line = |LocatedFinding { place, finding, .. }: &LocatedFinding<'_>| {
        let LintFinding { policy, path, check, message } = finding;
        format!("{place}: {policy} {path}: {message} [{}]\n", check.name())
    };
    findings.iter().map(line).collect()
}
