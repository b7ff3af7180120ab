//! Command `palisade test`: runs policy tests.

mod compiled_case;
mod github;
mod junit;
mod live;
mod named_files;
mod report;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use regex::Regex;

use super::manifests::{ExcludeArguments, note_audited};
use super::{CliError, output, terminal};
use crate::lab::{PodPorts, require_root};
use crate::policy::audited_policies;
use crate::policy::parse::{Diagnostic, Location};
use crate::policy::testcase::{Case, Cases, PlaceholderRange, parse_cases_with};
use crate::printable;
use crate::source::files;
use crate::source::load::Rejected;
use crate::tables::Verdict;
use compiled_case::CompiledCase;
use named_files::NamedFiles;
use report::{CaseResult, Report, Tally};

/// Most warnings of test files to show. The others are counted.
const WARNINGS_SHOWN: usize = 10;

/// Run policy tests
///
/// A test file holds cases: Kubernetes objects or the files that hold them, and connections that should be allowed or denied. Every
/// connection is a synthetic packet that goes through the compiled rule tables and the classifier of the
/// switch. It needs no running switch and no privilege. With --live every pod is a network namespace, and
/// every connection a real one, through a switch that is started for it; that needs root.
/// docs/policy-tests.md describes the format.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade test tests/policies.yaml               run the cases of a file
  palisade test tests/ --filter 'database|cache'  only cases whose name matches
  palisade test tests/ --output junit > out.xml   for a pipeline's report
  sudo palisade test --live tests/policies.yaml   with real packets

Exit codes: 0 all probes got what they expect, 1 some did not or a case has none, 2 a case or a file is wrong (the
others are run all the same) or --live cannot be done.")]
pub(super) struct TestArguments {
    /// Files or directories of cases, YAML or JSON; - is standard input
    #[arg(required = true, value_name = "FILE|DIR|-")]
    files: Vec<PathBuf>,
    /// Only cases whose name matches this regular expression
    #[arg(long, value_name = "RE")]
    filter: Option<Regex>,
    /// Form of the results
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
    /// Make the pods, and send real packets through a running switch
    #[arg(long)]
    live: bool,
    /// Interfaces of the pods with --live: one end of a veth pair, or a tap device of the switch
    #[arg(long, value_enum, default_value_t, requires = "live")]
    ports: PodPorts,
    /// Workers of the switch, and queues of every pod
    #[arg(long, value_name = "N", default_value_t = 1, requires = "live")]
    workers: u16,
    #[command(flatten)]
    exclude: ExcludeArguments,
}

/// Form of the results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
    /// JUnit XML, for pipelines
    Junit,
    /// Annotations of a pull request, as GitHub Actions reads them
    Github,
}

pub(super) fn test(arguments: &TestArguments) -> Result<ExitCode, CliError> {
    if arguments.live {
        require_root()?;
    }
    let suite = read(arguments)?;
    let bar = progress(&suite.cases, arguments.output);
    let results = if arguments.live {
        live::run(&suite.cases, arguments.ports, arguments.workers, &bar)
    } else {
        suite.cases.iter().map(|case| run(case, &bar)).collect()
    };
    bar.finish_and_clear();
    let mut results = results?;
    results.extend(suite.refused);
    let report = Report::new(results);
    match arguments.output {
        Form::Text => output::text(&report.to_string())?,
        Form::Json => output::json(&report)?,
        Form::Junit => output::document(&junit::xml(&report)?)?,
        Form::Github => output::document(&github::annotations(&report))?,
    }
    Ok(match (&report.cases, suite.is_unread) {
        (_, true) | (Tally { refused: 1.., .. }, _) => ExitCode::from(2),
        (Tally { failed: 1.., .. }, _) => ExitCode::from(1),
        _ => ExitCode::SUCCESS,
    })
}

/// Cases of a run.
struct TestSuite {
    cases: Vec<Case>,
    /// Results of invalid cases.
    refused: Vec<CaseResult>,
    /// Whether a part of the files holds something other than cases. That is reported already.
    is_unread: bool,
}

fn read(arguments: &TestArguments) -> Result<TestSuite, CliError> {
    let sources = files::load(&arguments.files, &arguments.exclude.excluded()).map_err(Rejected::Files)?;
    let mut all = Cases::default();
    let mut named = NamedFiles::default();
    for source in &sources {
        let found = parse_cases_with(source, &mut |pattern| named.read(source, pattern));
        all.cases.extend(found.cases);
        all.refused.extend(found.refused);
        all.manifests.extend(found.manifests);
        all.syntax_errors.extend(found.syntax_errors);
        all.warnings.extend(found.warnings);
    }
    print_warnings(&all.warnings);
    let is_unread = !(all.syntax_errors.is_empty() && all.manifests.is_empty());
    if !all.syntax_errors.is_empty() {
        CliError::from(Rejected::Manifests(all.syntax_errors)).report();
    }
    warn_of_manifests(&all.manifests);
    let total = all.cases.len() + all.refused.len();
    let is_wanted = |name: &str| arguments.filter.as_ref().is_none_or(|filter| filter.is_match(name));
    all.cases.retain(|case| is_wanted(&case.name));
    all.refused.retain(|case| is_wanted(&case.name));
    let objects = all.cases.iter().flat_map(|case| &case.objects).map(|(object, _)| object);
    note_audited(&audited_policies(objects), "are not enforced in the cases");
    let refused: Vec<_> = all.refused.iter().map(CaseResult::refused).collect();
    match (&arguments.filter, all.cases.len() + refused.len()) {
        (_, 1..) => Ok(TestSuite { cases: all.cases, refused, is_unread }),
        (_, 0) if is_unread && total == 0 => Err(CliError::Reported),
        (Some(filter), _) => {
            Err(CliError::Message(format!("none of {total} cases has a name that matches {filter}")))
        }
        (None, _) => Err(CliError::Message("the files hold no cases".to_owned())),
    }
}

fn warn_of_manifests(manifests: &[Location]) {
    let more = match manifests {
        [] => return,
        [_] => String::new(),
        [_, rest @ ..] => format!(" and {} more in the same or other files", rest.len()),
    };
    terminal::note(&format!(
        "palisade: {}: a Kubernetes object where a policy test should be{more}: put objects under the resources of a case, \
         beside its probes (docs/policy-tests.md), or ask about them with palisade lint, explain or matrix",
        manifests[0]
    ));
}

fn print_warnings(warnings: &[Diagnostic]) {
    for warning in warnings.iter().take(WARNINGS_SHOWN) {
        terminal::note(&warning.to_string());
    }
    if warnings.len() > WARNINGS_SHOWN {
        eprintln!("{} more warnings are not shown", warnings.len() - WARNINGS_SHOWN);
    }
}

fn progress(cases: &[Case], form: Form) -> ProgressBar {
    if form != Form::Text || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let probes = cases.iter().map(|case| case.probes.len() as u64).sum();
    let style = ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} probes  {wide_msg}");
    ProgressBar::new(probes).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Runs one case.
fn run(case: &Case, bar: &ProgressBar) -> Result<CaseResult, CliError> {
    bar.set_message(printable::line(&case.name).into_owned());
    let compiled = match CompiledCase::new(case, PlaceholderRange::RESERVED)? {
        Ok(compiled) => compiled,
        Err(refused) => return Ok(refused),
    };
    let mut result = CaseResult::new(case);
    for (number, (probe, flows)) in case.probes.iter().zip(&compiled.flows).enumerate() {
        let wrong = flows.iter().find(|flow| compiled.verdict(probe, flow) != probe.expect);
        // Only a probe to a Service without backends has no flow.
        let is_refused = flows.is_empty() && probe.expect == Verdict::Allow;
        if wrong.is_some() || is_refused {
            let got = if probe.expect == Verdict::Allow { Verdict::Deny } else { Verdict::Allow };
            result.failures.push(compiled.failed(number, wrong, Some(got)));
        }
    }
    bar.inc(case.probes.len() as u64);
    Ok(result)
}
