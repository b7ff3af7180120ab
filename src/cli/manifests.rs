//! Manifests for commands that need no running switch.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use crate::cli::{CliError, terminal};
use crate::policy::evaluate::TableEvaluator;
use crate::policy::explain::PolicyLocations;
use crate::policy::objects::Object;
use crate::policy::parse::{Diagnostic, Location};
use crate::policy::{Compiler, ObjectName, Options, testcase};
use crate::source::files;
use crate::source::load::{LoadOptions, Rejected, load, read_objects};
use crate::tables::{PodName, PolicyKind, PolicyRef, RuleTables};

/// Objects of manifests with their locations.
#[derive(Debug, Default)]
pub(super) struct Manifests {
    pub(super) objects: Vec<Object>,
    pub(super) locations: Vec<Location>,
}

impl Manifests {
    /// Reads files and directories, and prints warnings to standard error.
    pub(super) fn read(paths: &[PathBuf]) -> Result<Manifests, CliError> {
        let sources = files::load(paths).map_err(Rejected::Files)?;
        let parsed = read_objects(&sources)?;
        warn(&parsed.warnings);
        let (objects, locations) = parsed.objects.into_iter().unzip();
        Ok(Manifests { objects, locations })
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

    /// Maps each policy to its location.
    pub(super) fn locations(&self) -> PolicyLocations {
        let named = self.objects.iter().zip(&self.locations);
        named.filter_map(|(object, location)| Some((policy_of(object)?, location.to_string()))).collect()
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

/// Compiles manifests, and prints warnings to standard error.
pub(super) fn compile(paths: &[PathBuf], node: Option<&String>) -> Result<RuleTables, CliError> {
    let compiled = load(paths, &LoadOptions { node: node.cloned() })?;
    warn(&compiled.warnings);
    Ok(compiled.tables)
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

/// Reference to a policy object; `None` for other objects.
pub(super) fn policy_of(object: &Object) -> Option<PolicyRef> {
    match ObjectName::of(object) {
        ObjectName::NetworkPolicy { namespace, name } => {
            Some(PolicyRef { kind: PolicyKind::NetworkPolicy, namespace, name })
        }
        ObjectName::ClusterNetworkPolicy { kind, name } => {
            Some(PolicyRef { kind, namespace: String::new(), name })
        }
        ObjectName::Pod(_) | ObjectName::Namespace(_) | ObjectName::Node(_) => None,
    }
}
