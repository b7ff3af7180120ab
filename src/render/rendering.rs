//! State of a cluster, and its rendering in the terms of one system.

use super::output::{Part, RenderError, RenderOptions};
use super::plan::{Family, Plan};
use crate::policy::objects::Object;
use crate::tables::RuleTables;

/// Compiled tables, and the objects from which they come.
#[derive(Debug, Clone, Copy)]
pub struct ClusterState<'a> {
    /// Tables, which have passed their check.
    pub tables: &'a RuleTables,
    /// Objects of policy: more than the tables are about if these are of one node.
    pub objects: &'a [Object],
}

/// State in the terms of one system.
pub(super) trait Rendering: Sized {
    /// State in these terms: empty if the chosen pod is not in it.
    fn new(state: ClusterState, options: &RenderOptions) -> Result<Self, RenderError>;

    /// Whole state.
    fn parts(&self) -> Vec<Part>;

    /// Change from another state to this.
    fn parts_since(&self, old: &Self) -> Vec<Part>;
}

/// Plans of both families.
pub(super) fn plans(tables: &RuleTables, options: &RenderOptions) -> [Plan; 2] {
    Family::ALL.map(|family| Plan::new(tables, family, options.pod.as_ref()))
}
