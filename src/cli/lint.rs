//! Command `palisade lint`: finds policies that are valid but probably mistaken.

mod code_scanning;
mod ignored_checks;
mod located_finding;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use self::located_finding::LocatedFinding;
use super::manifests::{ExcludeArguments, Manifests, warn};
use super::{CliError, output, terminal};
use crate::policy::lint::{LintFinding, lint as check};
use crate::policy::parse::{Location, field_positions};
use crate::printable;
use crate::source::load::Rejected;

/// Find policies that are legal but probably wrong
///
/// Each finding ends with the name of its check; docs/lint.md says for each check what it finds and what to do. The
/// annotation palisade.dev/ignore-CHECK on a policy or a Service, with a reason as its value, silences the
/// check for this object. Skips checks that need pods if the manifests hold none.
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
    #[command(flatten)]
    exclude: ExcludeArguments,
}

/// Form of the findings.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Form {
    /// A line each: file:line:column: warning: object field: message [check]
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
    let is_table = matches!(arguments.output, Form::Table);
    let mut manifests = match Manifests::read_with_audited(&arguments.manifests, &arguments.exclude) {
        Err(Rejected::Manifests(errors)) if !is_table => {
            let errors: Vec<_> = errors.into_iter().map(LocatedFinding::of_diagnostic).collect();
            print(&errors, arguments.output)?;
            return Ok(ExitCode::from(2));
        }
        Err(other) if !is_table => {
            let warnings = match &other {
                Rejected::NoObjects { warnings, .. } => warnings.as_slice(),
                _ => &[],
            };
            let warnings: Vec<_> = warnings.iter().cloned().map(LocatedFinding::of_diagnostic).collect();
            print(&warnings, arguments.output)?;
            return Err(CliError::Message(other.to_string()));
        }
        manifests => manifests?,
    };
    if !manifests.has_pods() {
        terminal::note("note: the manifests hold no pods: checks of selectors and peers are skipped");
    }
    let warnings = std::mem::take(&mut manifests.warnings);
    let mut findings: Vec<LocatedFinding> = Vec::new();
    if is_table {
        warn(&warnings);
    } else {
        findings.extend(warnings.into_iter().map(LocatedFinding::of_diagnostic));
    }
    let of_checks = located(&manifests);
    let is_found = of_checks.iter().any(|finding| finding.ignored.is_none());
    findings.extend(of_checks);
    print(&findings, arguments.output)?;
    Ok(if is_found { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Findings of the checks, at their fields, with the annotations that silence them.
fn located(manifests: &Manifests) -> Vec<LocatedFinding> {
    let objects = manifests.lint_subjects();
    let mut found = check(&manifests.objects, &manifests.unread);
    let reasons = ignored_checks::apply(manifests, &objects, &mut found);
    let mut sources: BTreeMap<&str, Vec<(&Location, &LintFinding)>> = BTreeMap::new();
    for finding in &found {
        if let Some(object) = objects.get(&finding.policy) {
            sources.entry(object.source().name()).or_default().push((object, finding));
        }
    }
    let mut located = Vec::with_capacity(found.len());
    for (name, found) in sources {
        let wanted: Vec<_> = found.iter().map(|(object, finding)| (*object, finding.path.as_str())).collect();
        let positions = field_positions(found[0].0.source(), &wanted);
        for ((_, finding), position) in found.into_iter().zip(positions) {
            let ignored = reasons.get(&(&finding.policy, finding.check)).map(|reason| (*reason).to_owned());
            located.push(LocatedFinding::of_check(finding.clone(), name, position, ignored));
        }
    }
    located.sort_by(|a, b| (&a.source, a.line, a.column).cmp(&(&b.source, b.line, b.column)));
    located
}

fn print(findings: &[LocatedFinding], form: Form) -> io::Result<()> {
    match form {
        Form::Table => output::text(&text(findings)),
        Form::Json => output::json(&findings),
        Form::Github => output::document(&code_scanning::github(findings)),
        Form::Sarif => output::json(&code_scanning::sarif(findings)),
    }
}

fn text(findings: &[LocatedFinding]) -> String {
    let (ignored, found): (Vec<_>, Vec<_>) = findings.iter().partition(|finding| finding.ignored.is_some());
    let line = |finding: &LocatedFinding| {
        let LocatedFinding { source, line, column, severity, check, .. } = finding;
        format!(
            "{}:{line}:{column}: {severity}: {} [{check}]\n",
            printable::line(source),
            printable::line(&finding.text())
        )
    };
    let mut text: String = found.iter().copied().map(line).collect();
    if found.is_empty() {
        text.push_str("Nothing found.\n");
    }
    if !ignored.is_empty() {
        let count = ignored.len();
        let findings = if count == 1 { "finding" } else { "findings" };
        let _ = writeln!(text, "Annotations silence {count} {findings}.");
    }
    text
}
