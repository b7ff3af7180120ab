//! Rows and the rules that they name, shared by all tables.

use std::sync::Arc;

use foldhash::HashMap;

use crate::ids::{RowId, RuleId};
use crate::policy::store::Interner;
use crate::tables::{Decision, PortSpan, Row, RuleOrigin};

use super::output::TablesOutput;

/// Ids of rules by their index among the origins of one list. A cache for one table: each name is looked up
/// once.
pub(crate) type RuleNames = HashMap<u32, RuleId>;

/// Rows and rules in use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rows {
    rows: Interner<RowId, Row>,
    rules: Interner<RuleId, RuleOrigin>,
}

impl Rows {
    /// Acquires a row. The row names rules by their index in `origins`. `names` is a cache for these origins
    /// and for one change: afterwards an id may belong to another rule.
    pub(crate) fn acquire(&mut self, row: Row, origins: &[Arc<RuleOrigin>], names: &mut RuleNames) -> RowId {
        let row = self.name_rules(row, origins, names);
        let id = self.rows.intern(row);
        self.rows.acquire(id);
        id
    }

    /// Releases a row.
    pub(crate) fn release(&mut self, id: RowId) {
        self.rows.release(id);
    }

    /// Renames a rule to an unused name. Rows that refer to it stay unchanged.
    pub(crate) fn rename_rule(
        &mut self,
        before: &RuleOrigin,
        next: Arc<RuleOrigin>,
        output: &mut TablesOutput,
    ) {
        if let Some(id) = self.rules.find(before) {
            output.set_rule(id, Some((*next).clone()));
            self.rules.rename(id, next);
        }
    }

    /// Frees unreferenced rows and rules, and writes changes to the output.
    pub(crate) fn sweep(&mut self, output: &mut TablesOutput) {
        let rows = self.rows.sweep();
        for (id, row) in &rows.removed {
            for rule in rules_of(row) {
                self.rules.release(rule);
            }
            output.set_row(*id, None);
        }
        for id in rows.added {
            let row = self.rows.key(id).clone();
            for rule in rules_of(&row) {
                self.rules.acquire(rule);
            }
            output.set_row(id, Some((*row).clone()));
        }
        let rules = self.rules.sweep();
        for (id, _) in rules.removed {
            output.set_rule(id, None);
        }
        for id in rules.added {
            output.set_rule(id, Some((**self.rules.key(id)).clone()));
        }
    }

    fn name_rules(&mut self, mut row: Row, origins: &[Arc<RuleOrigin>], names: &mut RuleNames) -> Row {
        let mut name = |decision: &mut Decision| {
            let place = decision.rule();
            let rule =
                names.entry(place.0).or_insert_with(|| self.rules.intern(origins[place.index()].clone()));
            *decision = Decision::new(decision.verdict(), *rule);
        };
        name(&mut row.other);
        let spans = row.tcp.iter_mut().chain(&mut row.udp).chain(&mut row.sctp);
        spans.for_each(|PortSpan { decision, .. }| name(decision));
        row
    }
}

fn rules_of(row: &Row) -> Vec<RuleId> {
    let mut rules: Vec<RuleId> = row.decisions().map(Decision::rule).collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}
