//! Policies that tell the addresses of a class from others.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{ClassId, RowId, RuleId};
use crate::tables::{Decision, PolicyRef, RuleOrigin, RuleTables};

/// Policies with a rule in the row of a class that the default row of the same table does not have, for each wanted class.
pub(super) fn policies<'a>(
    tables: &'a RuleTables,
    wanted: &BTreeSet<ClassId>,
) -> BTreeMap<ClassId, BTreeSet<&'a PolicyRef>> {
    let mut found: BTreeMap<ClassId, BTreeSet<&PolicyRef>> = BTreeMap::new();
    let mut seen: BTreeSet<(ClassId, RowId, RowId)> = BTreeSet::new();
    for acl in tables.acls.values() {
        let common = rules(tables, acl.default);
        for (class, row) in acl.rows.iter().filter(|(class, _)| wanted.contains(class)) {
            // Tables share rows.
            if seen.insert((*class, *row, acl.default)) {
                let own = rules(tables, *row).into_iter().filter(|rule| !common.contains(rule));
                found.entry(*class).or_default().extend(own.filter_map(|rule| policy(tables, rule)));
            }
        }
    }
    found
}

/// Rules of a row.
fn rules(tables: &RuleTables, row: RowId) -> BTreeSet<RuleId> {
    tables.rows.get(&row).map(|row| row.decisions().map(Decision::rule).collect()).unwrap_or_default()
}

/// Policy of a rule. The isolation of a pod is about all addresses.
fn policy(tables: &RuleTables, rule: RuleId) -> Option<&PolicyRef> {
    match tables.rules.get(&rule)? {
        RuleOrigin::Rule { policy, .. } => Some(policy),
        _ => None,
    }
}
