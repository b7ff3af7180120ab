//! Manifests for commands that need no running switch.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use glob::{Pattern, PatternError};

use crate::cli::{CliError, terminal};
use crate::control::Client;
use crate::policy::connectivity::GroupNames;
use crate::policy::evaluate::TableEvaluator;
use crate::policy::explain::PolicyLocations;
use crate::policy::lint::{LintSubject, UnreadWorkload};
use crate::policy::objects::Object;
use crate::policy::parse::{ADDRESSES_ANNOTATION, Diagnostic, IgnoredCheck, Location, Parsed, Skipped};
use crate::policy::{Compiler, Options, audited_policies, policy_of, testcase};
use crate::source::excluded::Excluded;
use crate::source::files;
use crate::source::load::{Compiled, LoadOptions, Rejected, load, load_sources, read_objects};
use crate::tables::{PodName, PolicyRef, RuleTables, ServiceTable};

/// Most names of pods in a note.
const NAMES_MAX: usize = 5;

/// Files that a command leaves out of the directories that it is given.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct ExcludeArguments {
    /// Skip files and directories of this name, or at this path below a given directory if it has a slash: charts, '**/values*.yaml'
    #[arg(long = "exclude", value_name = "PATTERN", value_parser = pattern)]
    patterns: Vec<Pattern>,
}

/// Pattern of `--exclude`, without the slash at the end of a directory and the `./` of a path.
fn pattern(text: &str) -> Result<Pattern, PatternError> {
    Pattern::new(text.trim_start_matches("./").trim_end_matches('/'))
}

impl ExcludeArguments {
    pub(super) fn excluded(&self) -> Excluded {
        Excluded::new(self.patterns.clone())
    }

    /// Options of a compilation for a node, or for all.
    pub(super) fn options(&self, node: Option<&String>) -> LoadOptions {
        LoadOptions { node: node.cloned(), excluded: self.excluded() }
    }
}

/// Objects of manifests with their locations. Policies in audit mode are not enforced, and stand apart.
#[derive(Debug, Default)]
pub(super) struct Manifests {
    pub(super) objects: Vec<Object>,
    locations: Vec<Location>,
    audited: Vec<(Object, Location)>,
    /// Objects that make pods, and are passed over.
    pub(super) unread: Vec<UnreadWorkload>,
    pub(super) warnings: Vec<Diagnostic>,
    /// Annotations that silence checks of lint.
    pub(super) ignored_checks: Vec<IgnoredCheck>,
}

impl Manifests {
    /// Reads files and directories, and prints warnings to standard error, and a note on policies in audit mode.
    pub(super) fn read(paths: &[PathBuf], exclude: &ExcludeArguments) -> Result<Manifests, CliError> {
        let manifests = Manifests::read_silently(paths, exclude)?;
        warn(&manifests.warnings);
        let audited = manifests.audited.iter().map(|(object, _)| object);
        note_audited(&audited_policies(audited), "are not enforced here");
        Ok(manifests)
    }

    /// Reads files and directories. Policies in audit mode are among the objects, and a note on standard error says so.
    pub(super) fn read_with_audited(
        paths: &[PathBuf],
        exclude: &ExcludeArguments,
    ) -> Result<Manifests, Rejected> {
        let mut manifests = Manifests::read_silently(paths, exclude)?;
        let (objects, locations): (Vec<_>, Vec<_>) =
            std::mem::take(&mut manifests.audited).into_iter().unzip();
        note_audited(&audited_policies(&objects), "are checked like the others");
        manifests.objects.extend(objects);
        manifests.locations.extend(locations);
        Ok(manifests)
    }

    fn read_silently(paths: &[PathBuf], exclude: &ExcludeArguments) -> Result<Manifests, Rejected> {
        let sources = files::load(paths, &exclude.excluded()).map_err(Rejected::Files)?;
        let parsed = read_objects(&sources)?;
        let (audited, enforced): (Vec<_>, Vec<_>) =
            parsed.objects.into_iter().partition(|(object, _)| object.is_audited());
        let (objects, locations) = enforced.into_iter().unzip();
        let unread = parsed.skipped.into_iter().filter_map(unread).collect();
        let Parsed { warnings, ignored_checks, .. } = parsed;
        Ok(Manifests { objects, locations, audited, unread, warnings, ignored_checks })
    }

    /// Assigns placeholder addresses to pods that wait for one, the same in all of `several`. Returns the
    /// names of these pods.
    pub(super) fn assign_placeholders(several: &mut [&mut Manifests]) -> BTreeSet<PodName> {
        let mut lists: Vec<&mut Vec<Object>> =
            several.iter_mut().map(|manifests| &mut manifests.objects).collect();
        testcase::assign_placeholders(&mut lists)
    }

    /// Compiles the objects for all nodes.
    pub(super) fn evaluator(&self) -> Result<TableEvaluator, CliError> {
        let compiler = Compiler::from_objects(self.objects.iter().cloned(), Options::default());
        evaluator(compiler.into_tables())
    }

    /// Compiles the objects with the audited policies among them, if there are some.
    pub(super) fn audit_evaluator(&self) -> Result<Option<TableEvaluator>, CliError> {
        if self.audited.is_empty() {
            return Ok(None);
        }
        let audited = self.audited.iter().map(|(object, _)| object);
        let compiler =
            Compiler::from_objects(self.objects.iter().chain(audited).cloned(), Options::default());
        evaluator(compiler.into_tables()).map(Some)
    }

    /// Maps each policy to its location.
    pub(super) fn locations(&self) -> PolicyLocations {
        let named = self.objects.iter().zip(&self.locations);
        named.filter_map(|(object, location)| Some((policy_of(object)?, location.to_string()))).collect()
    }

    /// Maps each policy and Service to its location. Of two with one name it is that of the first.
    pub(super) fn lint_subjects(&self) -> BTreeMap<LintSubject, &Location> {
        let subject = |object: &Object| match object {
            Object::Service(service) => Some(LintSubject::Service {
                kind: "Service",
                namespace: service.namespace.clone(),
                name: service.name.clone(),
            }),
            _ => policy_of(object).map(LintSubject::Policy),
        };
        let located = self.objects.iter().zip(&self.locations).rev();
        located.filter_map(|(object, location)| Some((subject(object)?, location))).collect()
    }

    /// Whether there are pods, or objects that make some.
    pub(super) fn has_pods(&self) -> bool {
        !self.unread.is_empty() || self.objects.iter().any(|object| matches!(object, Object::Pod(_)))
    }

    /// Maps each pod to its addresses.
    pub(super) fn pods(&self) -> BTreeMap<PodName, Vec<IpAddr>> {
        let pods = self.objects.iter().filter_map(|object| match object {
            Object::Pod(pod) => Some((pod.name.clone(), pod.addresses.clone())),
            _ => None,
        });
        pods.collect()
    }
}

/// The workload that a passed-over object is.
fn unread(skipped: Skipped) -> Option<UnreadWorkload> {
    let Skipped { kind, name, location, made_pods } = skipped;
    let (described, labels) = (format!("{kind} ({name}, {location})"), made_pods?);
    let name = name.parse().unwrap_or_else(|_| PodName::new("default", name));
    Some(UnreadWorkload { described, name, labels })
}

/// Compiles manifests with their Services, and prints warnings to standard error, and a note on policies in audit mode.
pub(super) fn compile(paths: &[PathBuf], options: &LoadOptions) -> Result<Compiled, CliError> {
    let compiled = load(paths, options)?;
    warn(&compiled.warnings);
    check_services(&compiled)?;
    compiled.audited.iter().for_each(|audited| note_audited(audited.policies(), "are not enforced"));
    Ok(compiled)
}

/// Checks the Services of compiled manifests, and prints warnings about them to standard error.
pub(super) fn check_services(compiled: &Compiled) -> Result<(), CliError> {
    compiled.service_warnings.iter().for_each(|warning| terminal::note(&format!("warning: {warning}")));
    let checked = compiled.services.iter().try_for_each(ServiceTable::check);
    checked.map_err(|error| CliError::Message(error.to_string()))
}

/// Compiles manifests, or reads compiled tables, with names for groups of pods. Prints warnings to standard error.
pub(super) fn compile_with_names(
    paths: &[PathBuf],
    options: &LoadOptions,
) -> Result<(RuleTables, GroupNames), CliError> {
    let (compiled, objects) = compile_with_objects(paths, options)?;
    Ok((compiled.tables, GroupNames::of(objects.iter())))
}

/// Compiles manifests, or reads compiled tables, which have no objects. Prints warnings to standard error.
pub(super) fn compile_with_objects(
    paths: &[PathBuf],
    options: &LoadOptions,
) -> Result<(Compiled, Vec<Object>), CliError> {
    let sources = files::load(paths, &options.excluded).map_err(Rejected::Files)?;
    let compiled = load_sources(&sources, options)?;
    warn(&compiled.warnings);
    compiled.audited.iter().for_each(|audited| note_audited(audited.policies(), "are not enforced"));
    let objects = read_objects(&sources).map(|parsed| parsed.objects).unwrap_or_default();
    Ok((compiled, objects.into_iter().map(|(object, _)| object).collect()))
}

/// Builds an evaluator of the tables of the running switch: of empty ones, with a note, if it has none.
pub(super) fn running(client: &Client) -> Result<TableEvaluator, CliError> {
    let tables = match client.tables_document() {
        Err(error) if error.status() == Some(404) => {
            terminal::note(
                "note: the switch has no rule tables: this compares with none, which connect no pods",
            );
            RuleTables::default()
        }
        tables => tables?,
    };
    evaluator(tables)
}

/// Builds an evaluator of these tables.
pub(super) fn evaluator(tables: RuleTables) -> Result<TableEvaluator, CliError> {
    TableEvaluator::new(tables).map_err(|error| CliError::Message(error.to_string()))
}

/// Prints warnings to standard error.
pub(super) fn warn(warnings: &[Diagnostic]) {
    let color = terminal::has_colors(&std::io::stderr());
    warnings.iter().for_each(|warning| terminal::report(&warning.report(color)));
}

/// Prints a note on policies in audit mode to standard error, with their fate.
pub(super) fn note_audited(policies: &[PolicyRef], fate: &str) {
    let Some(first) = policies.first() else { return };
    let others = match policies.len() - 1 {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    terminal::note(&format!(
        "note: policies in audit mode (palisade.dev/mode: audit) {fate}: {first}{others}"
    ));
}

/// Notes the pods that are left out because they have no address yet.
pub(super) fn note_pods_without_address(objects: &[Object]) {
    let pods = testcase::without_address(objects);
    let named: Vec<String> = pods.iter().take(NAMES_MAX).map(ToString::to_string).collect();
    let more = if pods.len() > named.len() { ", …" } else { "" };
    let pods = match pods.len() {
        0 => return,
        1 => "1 pod or workload has no address, and is".to_owned(),
        count => format!("{count} pods or workloads have no address, and are"),
    };
    terminal::note(&format!(
        "note: {pods} left out: {}{more}; a running pod has it in status.podIPs, and the annotation {ADDRESSES_ANNOTATION} gives \
         a workload one",
        named.join(", ")
    ));
}
