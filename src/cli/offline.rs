//! Manifests that questions are asked about, without a switch.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use crate::cli::{Failure, terminal};
use crate::policy::evaluate::TableEvaluator;
use crate::policy::explain::PolicyLocations;
use crate::policy::objects::Object;
use crate::policy::parse::{Diagnostic, Location};
use crate::policy::{Compiler, ObjectName, Options, testcase};
use crate::source::files;
use crate::source::load::{Rejected, read_objects};
use crate::tables::{PodName, PolicyKind, PolicyRef};

/// Objects of manifests, and where they stand.
#[derive(Debug, Default)]
pub(super) struct Manifests {
    pub(super) objects: Vec<Object>,
    pub(super) locations: Vec<Location>,
}

impl Manifests {
    /// Reads files and directories. Warnings go to standard error.
    pub(super) fn read(paths: &[PathBuf]) -> Result<Manifests, Failure> {
        let sources = files::load(paths).map_err(Rejected::Files)?;
        let parsed = read_objects(&sources)?;
        warn(&parsed.warnings);
        let (objects, locations) = parsed.objects.into_iter().unzip();
        Ok(Manifests { objects, locations })
    }

    /// Pods that wait for an address get one, the same in all of `several`. Returns their names.
    pub(super) fn assign_placeholders(several: &mut [&mut Manifests]) -> BTreeSet<PodName> {
        let mut lists: Vec<&mut Vec<Object>> =
            several.iter_mut().map(|manifests| &mut manifests.objects).collect();
        testcase::assign_placeholders(&mut lists)
    }

    /// Compiles for all nodes.
    pub(super) fn judge(&self) -> Result<TableEvaluator, Failure> {
        let compiler = Compiler::from_objects(self.objects.iter().cloned(), Options::default());
        judge(compiler.into_tables())
    }

    /// Where each policy stands.
    pub(super) fn places(&self) -> PolicyLocations {
        let named = self.objects.iter().zip(&self.locations);
        named.filter_map(|(object, location)| Some((policy_of(object)?, location.to_string()))).collect()
    }

    /// Addresses of every pod.
    pub(super) fn pods(&self) -> BTreeMap<PodName, Vec<IpAddr>> {
        let pods = self.objects.iter().filter_map(|object| match object {
            Object::Pod(pod) => Some((pod.name.clone(), pod.addresses.clone())),
            _ => None,
        });
        pods.collect()
    }
}

/// A judge by these tables.
pub(super) fn judge(tables: crate::tables::RuleTables) -> Result<TableEvaluator, Failure> {
    TableEvaluator::new(tables).map_err(|error| Failure::Sentence(error.to_string()))
}

/// Tells the authors of manifests what they should know.
pub(super) fn warn(warnings: &[Diagnostic]) {
    let color = terminal::has_colors(&std::io::stderr());
    warnings.iter().for_each(|warning| terminal::report(&warning.report(color)));
}

/// The name of a policy.
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
