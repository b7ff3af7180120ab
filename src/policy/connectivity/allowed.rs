//! What passes from one group to another, by one set of tables.

use std::collections::HashMap;
use std::sync::Arc;

use super::{EndpointGroup, EndpointPolicy, Traffic};
use crate::ids::RowId;
use crate::policy::evaluate::TableEvaluator;

/// Works out what passes, and remembers it by pair of rows.
pub struct AllowedTraffic<'a> {
    evaluator: &'a TableEvaluator,
    /// Which of the tables of an group's policies these are.
    table: usize,
    /// By the rows that have a say, sorted.
    known: HashMap<Vec<RowId>, Arc<Traffic>>,
}

impl<'a> AllowedTraffic<'a> {
    /// By the tables that have the index `table` in the policies of groups.
    pub fn new(evaluator: &'a TableEvaluator, table: usize) -> AllowedTraffic<'a> {
        AllowedTraffic { evaluator, table, known: HashMap::new() }
    }

    /// What passes in a family. None where the two have no address of it in common, or neither is a pod: such traffic is none
    /// of the switch's.
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
