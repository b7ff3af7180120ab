//! `palisade test`: policy tests as code.

mod junit;
mod live;
mod report;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use regex::Regex;

use super::{Failure, offline, output};
use crate::lab::require_root;
use crate::net::flow::FlowKey;
use crate::policy::cases::{Case, Probe, read_cases};
use crate::policy::explain::{Places, explain};
use crate::policy::finding::Judge;
use crate::policy::oracle::Oracle;
use crate::policy::read::{Diagnostic, Location};
use crate::policy::stand_in::StandIns;
use crate::policy::trial::Trial;
use crate::policy::{Compiler, Options};
use crate::source::files;
use crate::source::load::Rejected;
use crate::tables::Verdict;
use report::{CaseResult, Failed, Report};

/// Warnings of test files that are shown; the rest is counted.
const WARNINGS_SHOWN: usize = 10;

/// Run policy tests
///
/// A test file holds cases: Kubernetes objects, and connections that should be allowed or denied. Every connection is a
/// synthetic packet that goes through the compiled rule tables and the classifier that the switch uses. Nothing needs to
/// run, and no privilege. With --live every pod is a network namespace, and every connection a real one, through a
/// switch that is started for it; that needs root. docs/policy-tests.md describes the format.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade test tests/policies.yaml               run the cases of a file
  palisade test tests/ --filter 'database|cache'  only cases whose name matches
  palisade test tests/ --output junit > out.xml   for a pipeline's report
  sudo palisade test --live tests/policies.yaml   with real packets

Exit codes: 0 all probes got what they expect, 1 some did not, 2 a file is wrong or --live cannot be done.")]
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
    /// Workers of the switch, and queues of every pod
    #[arg(long, value_name = "N", default_value_t = 1, requires = "live")]
    workers: u16,
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
    if arguments.live {
        require_root()?;
    }
    let cases = read(arguments)?;
    let bar = progress(&cases, arguments.output);
    let results = if arguments.live {
        live::run(&cases, arguments.workers, &bar)
    } else {
        cases.iter().map(|case| run(case, &bar)).collect()
    };
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

/// Runs one case.
fn run(case: &Case, bar: &ProgressBar) -> Result<CaseResult, Failure> {
    bar.set_message(case.name.clone());
    let subject = Subject::new(case, StandIns::UNUSED)?;
    let mut result = CaseResult::new(case);
    for (probe, flows) in case.probes.iter().zip(&subject.flows) {
        if let Some(flow) = flows.iter().find(|flow| subject.judge.verdict(flow) != probe.expect) {
            let got = if probe.expect == Verdict::Allow { Verdict::Deny } else { Verdict::Allow };
            result.failures.push(subject.failed(probe, flow, Some(got)));
        }
    }
    bar.inc(case.probes.len() as u64);
    Ok(result)
}

/// A case, ready to be judged.
struct Subject<'c> {
    case: &'c Case,
    trial: Trial,
    judge: Judge,
    /// The flows of each probe.
    flows: Vec<Vec<FlowKey>>,
}

impl Subject<'_> {
    /// Compiles a case. A probe that is no flow (a pod that is not there) makes the file wrong, not the policy.
    fn new(case: &Case, stand_ins: StandIns) -> Result<Subject<'_>, Failure> {
        let trial = Trial::with(case, stand_ins);
        let compiler = Compiler::from_objects(trial.objects().iter().cloned(), Options::default());
        let judge = offline::judge(compiler.into_tables())?;
        let flows = case.probes.iter().map(|probe| {
            trial.flows(probe).map_err(|error| {
                Failure::Sentence(format!("{}: case {:?}: {error}", probe.location, case.name))
            })
        });
        let flows = flows.collect::<Result<_, _>>()?;
        Ok(Subject { case, trial, judge, flows })
    }

    /// What is to be said of a probe that got something else than it expects, on one of its flows.
    fn failed(&self, probe: &Probe, flow: &FlowKey, got: Option<Verdict>) -> Failed {
        let oracle = Oracle::new(self.trial.objects());
        let explanation = explain(&oracle, flow, &self.judge.answer(flow), &places(self.case));
        Failed {
            place: probe.location.to_string(),
            from: probe.from.to_string(),
            to: probe.to.to_string(),
            protocol: probe.protocol,
            port: probe.port,
            expected: probe.expect,
            got,
            seen: None,
            text: explanation.to_string(),
            explanation,
        }
    }
}

fn places(case: &Case) -> Places {
    let of = |location: &Location| location.to_string();
    case.objects
        .iter()
        .filter_map(|(object, location)| Some((super::offline::policy_of(object)?, of(location))))
        .collect()
}
