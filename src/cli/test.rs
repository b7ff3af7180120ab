//! `palisade test`: policy tests as code.

mod junit;
mod report;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use regex::Regex;

use super::offline::judge;
use super::{Failure, output};
use crate::agent::files;
use crate::agent::load::Rejected;
use crate::net::flow::FlowKey;
use crate::policy::cases::{Case, Probe, read_cases};
use crate::policy::explain::{Places, explain};
use crate::policy::finding::Judge;
use crate::policy::oracle::Oracle;
use crate::policy::read::{Diagnostic, Location};
use crate::policy::trial::Trial;
use crate::policy::{Compiler, Options};
use crate::tables::Verdict;
use report::{CaseResult, Failed, Report};

/// Warnings of test files that are shown; the rest is counted.
const WARNINGS_SHOWN: usize = 10;

/// Run policy tests
///
/// A test file holds cases: Kubernetes objects, and connections that should be allowed or denied. Every connection is a
/// synthetic packet that goes through the compiled rule tables and the classifier that the switch uses. Nothing needs to
/// run, and no privilege. docs/policy-tests.md describes the format.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade test tests/policies.yaml               run the cases of a file
  palisade test tests/ --filter 'database|cache'  only cases whose name matches
  palisade test tests/ --output junit > out.xml   for a pipeline's report

Exit codes: 0 all probes got what they expect, 1 some did not, 2 a file is wrong.")]
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
}

/// The form of the results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
    /// JUnit XML, for pipelines
    Junit,
}

pub(super) fn test(arguments: &TestArguments) -> Result<ExitCode, Failure> {
    let cases = read(arguments)?;
    let bar = progress(&cases, arguments.output);
    let results = cases.iter().map(|case| run(case, &bar)).collect::<Result<Vec<_>, _>>();
    bar.finish_and_clear();
    let report = Report::new(results?);
    match arguments.output {
        Form::Text => output::text(&report.to_string())?,
        Form::Json => output::json(&report)?,
        Form::Junit => output::text(&junit::xml(&report))?,
    }
    Ok(if report.probes.failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn read(arguments: &TestArguments) -> Result<Vec<Case>, Failure> {
    let sources = files::load(&arguments.files).map_err(Rejected::Files)?;
    let (mut cases, mut errors, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
    for source in &sources {
        match read_cases(source) {
            Ok(found) => {
                cases.extend(found.cases);
                warnings.extend(found.warnings);
            }
            Err(found) => errors.extend(found),
        }
    }
    if !errors.is_empty() {
        return Err(Rejected::Manifests(errors).into());
    }
    tell(&warnings);
    let total = cases.len();
    cases.retain(|case| arguments.filter.as_ref().is_none_or(|filter| filter.is_match(&case.name)));
    match (&arguments.filter, cases.is_empty()) {
        (_, false) => Ok(cases),
        (Some(filter), true) => {
            Err(Failure::Sentence(format!("none of {total} cases has a name that matches {filter}")))
        }
        (None, true) => Err(Failure::Sentence("the files hold no cases".to_owned())),
    }
}

fn tell(warnings: &[Diagnostic]) {
    for warning in warnings.iter().take(WARNINGS_SHOWN) {
        eprintln!("{warning}");
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

/// Runs one case. A probe that is no flow (a pod that is not there) makes the file wrong, not the policy.
fn run(case: &Case, bar: &ProgressBar) -> Result<CaseResult, Failure> {
    bar.set_message(case.name.clone());
    let trial = Trial::new(case);
    let compiler = Compiler::from_objects(trial.objects().iter().cloned(), Options::default());
    let judge = judge(compiler.into_tables())?;
    let mut result = CaseResult::new(case);
    for probe in &case.probes {
        let flows = trial.flows(probe).map_err(|error| {
            Failure::Sentence(format!("{}: case {:?}: {error}", probe.location, case.name))
        })?;
        if let Some(flow) = flows.into_iter().find(|flow| judge.verdict(flow) != probe.expect) {
            result.failures.push(failed(case, &trial, &judge, probe, &flow));
        }
    }
    bar.inc(case.probes.len() as u64);
    Ok(result)
}

fn failed(case: &Case, trial: &Trial, judge: &Judge, probe: &Probe, flow: &FlowKey) -> Failed {
    let oracle = Oracle::new(trial.objects());
    let explanation = explain(&oracle, flow, &judge.answer(flow), &places(case));
    Failed {
        place: probe.location.to_string(),
        from: probe.from.to_string(),
        to: probe.to.to_string(),
        protocol: probe.protocol,
        port: probe.port,
        expected: probe.expect,
        got: if probe.expect == Verdict::Allow { Verdict::Deny } else { Verdict::Allow },
        text: explanation.to_string(),
        explanation,
    }
}

fn places(case: &Case) -> Places {
    let of = |location: &Location| location.to_string();
    case.objects
        .iter()
        .filter_map(|(object, location)| Some((super::offline::policy_of(object)?, of(location))))
        .collect()
}
