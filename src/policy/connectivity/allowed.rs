//! Allowed traffic from one endpoint group to another, by one set of tables.

use std::collections::HashMap;
use std::sync::Arc;

use super::endpoint_groups::{EndpointGroup, EndpointPolicy};
use super::traffic::Traffic;
use crate::ids::RowId;
use crate::policy::evaluate::TableEvaluator;

/// Calculator of allowed traffic. Caches results by the rows that decide.
pub struct AllowedTraffic<'a> {
    evaluator: &'a TableEvaluator,
    /// Index of the tables in [`EndpointGroup::policies`].
    table: usize,
    /// Results by the rows that decide, sorted.
    known: HashMap<Vec<RowId>, Arc<Traffic>>,
}

impl<'a> AllowedTraffic<'a> {
    /// Calculator for the tables with index `table` in [`EndpointGroup::policies`].
    pub fn new(evaluator: &'a TableEvaluator, table: usize) -> AllowedTraffic<'a> {
        AllowedTraffic { evaluator, table, known: HashMap::new() }
    }

    /// Returns the allowed traffic of a family. Returns `None` if the two groups have no address of that
    /// family in common, or if neither is a pod: the switch does not carry such traffic.
    pub fn between(
        &mut self,
        from: &EndpointGroup,
        to: &EndpointGroup,
        family: usize,
    ) -> Option<&Arc<Traffic>> {
        let source = from.policies[self.table][family].as_ref()?;
        let destination = to.policies[self.table][family].as_ref()?;
        if source.acls.is_empty() && destination.acls.is_empty() {
            return None;
        }
        let rows = self.rows(source, destination);
        let tables = self.evaluator.tables();
        Some(self.known.entry(rows).or_insert_with_key(|rows| {
            let sides = rows.iter().map(|row| Traffic::allowed(&tables.rows[row]));
            Arc::new(sides.fold(Traffic::everything(), |all, side| all.intersect(&side)))
        }))
    }

    fn rows(&self, source: &EndpointPolicy, destination: &EndpointPolicy) -> Vec<RowId> {
        let acls = &self.evaluator.tables().acls;
        let egress = source.acls.iter().map(|(egress, _)| acls[egress].row(destination.class));
        let ingress = destination.acls.iter().map(|(_, ingress)| acls[ingress].row(source.class));
        let mut rows: Vec<RowId> = egress.chain(ingress).collect();
        rows.sort_unstable();
        rows.dedup();
        rows
    }
}
