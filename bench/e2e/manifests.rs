//! Manifests of a trial: pods and the policy of all systems, and their renderings for the peers.

use std::collections::BTreeSet;

use palisade::lab::manifests;
use palisade::policy::objects::Object;
use palisade::policy::parse::{Source, parse_sources};
use palisade::policy::{Change, Compiler, Options};
use palisade::render::{ClusterState, Format, Part, RenderError, RenderOptions, difference, render};
use palisade::tables::RuleTables;

use crate::common::policy::PolicySpec;
use crate::error::BenchError;
use crate::rig::Rig;

/// Manifests of the pods and of a policy that keeps [`CHANGED_PORT`](crate::common::policy::CHANGED_PORT) closed.
pub(crate) fn text(rig: &Rig, shape: &PolicySpec) -> Result<String, BenchError> {
    let receivers: BTreeSet<String> = rig.receivers().iter().map(|pod| pod.plan().pod.name.clone()).collect();
    let pods = manifests(rig.lab(), |pod| {
        let role = if receivers.contains(&pod.pod.name) { "receiver" } else { "other" };
        vec![("role".to_owned(), role.to_owned())]
    });
    let policies = shape.network_policies(rig.client_v4()?);
    Ok(format!("{pods}---\n{policies}---\n{}", PolicySpec::closed_policy()))
}

/// Parses manifests.
pub(crate) fn objects(manifests: &str) -> Result<Vec<Object>, BenchError> {
    let parsed = parse_sources(&[Source::new("manifests", manifests)]);
    let parse_error =
        |errors: Vec<_>| BenchError::Other(format!("{} errors in the rig's manifests", errors.len()));
    Ok(parsed.map_err(parse_error)?.objects.into_iter().map(|(object, _)| object).collect())
}

/// Changes that close and open [`CHANGED_PORT`](crate::common::policy::CHANGED_PORT).
pub(crate) fn changes(rig: &Rig) -> Result<[Change; 2], BenchError> {
    let upsert = |policy: &str| Ok::<_, BenchError>(Change::Upsert(objects(policy)?.remove(0)));
    Ok([upsert(&PolicySpec::closed_policy())?, upsert(&PolicySpec::changed_policy(rig.client_v4()?))?])
}

/// Policy in the terms of a peer, with the port of changes closed and open.
pub(crate) struct Renderings {
    format: Format,
    options: RenderOptions,
    tables: [RuleTables; 2],
}

impl Renderings {
    /// Compiles the manifests. The peer knows the interfaces of all pods.
    pub(crate) fn new(format: Format, rig: &Rig, shape: &PolicySpec) -> Result<Renderings, BenchError> {
        let mut compiler = Compiler::from_objects(objects(&text(rig, shape)?)?, Options::default());
        let closed = compiler.tables().clone();
        let [_, open] = changes(rig)?;
        compiler.apply(open);
        let pods = rig.lab().pods();
        let interfaces =
            pods.map(|pod| (pod.plan().pod.clone(), pod.plan().host_interface.clone())).collect();
        let options = RenderOptions { interfaces, ..RenderOptions::default() };
        Ok(Renderings { format, options, tables: [closed, compiler.tables().clone()] })
    }

    /// Renders the policy.
    pub(crate) fn whole(&self) -> Result<Vec<Part>, BenchError> {
        render(self.format, state(&self.tables[0]), &self.options).map_err(refused)
    }

    /// Renders the changes that close and open the port.
    pub(crate) fn changes(&self) -> Result<[Vec<Part>; 2], BenchError> {
        let [closed, open] = self.tables.each_ref().map(state);
        let change = |old, new| difference(self.format, old, new, &self.options).map_err(refused);
        Ok([change(open, closed)?, change(closed, open)?])
    }
}

/// State for formats that need no objects.
fn state(tables: &RuleTables) -> ClusterState<'_> {
    ClusterState { tables, objects: &[] }
}

#[allow(clippy::needless_pass_by_value)] // As `map_err` has it.
fn refused(error: RenderError) -> BenchError {
    BenchError::Other(error.to_string())
}
