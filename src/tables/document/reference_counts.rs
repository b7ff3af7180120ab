//! Reference counts of rule tables, which limit the cost of a check to that of the change.

use std::collections::BTreeMap;

use foldhash::HashMap;

use super::decision::Decision;
use super::row::Row;
use super::rule_tables::{Acl, PodPolicy, RuleTables, TablesDiff, TablesError};
use crate::ids::{AclId, RowId, RuleId};
use crate::limits::{ACL_ENTRIES_MAX, ACLS_MAX, CLASSES_MAX, PREFIXES_MAX, ROWS_MAX, RULES_MAX};

/// Reference counts of checked tables: of rules in rows, of rows in ACL tables, and of ACL tables in pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReferenceCounts {
    rules: Counts<RuleId>,
    rows: Counts<RowId>,
    acls: Counts<AclId>,
}

/// Counts by id, without zeros.
type Counts<Id> = HashMap<Id, i64>;

/// Changes of counts.
#[derive(Default)]
struct CountChanges {
    rules: BTreeMap<RuleId, i64>,
    rows: BTreeMap<RowId, i64>,
    acls: BTreeMap<AclId, i64>,
}

impl ReferenceCounts {
    /// Counts of checked tables.
    pub fn of(tables: &RuleTables) -> ReferenceCounts {
        let mut change = CountChanges::default();
        tables.rows.values().for_each(|row| change.row(row, 1));
        tables.acls.values().for_each(|acl| change.acl(acl, 1));
        tables.pods.values().for_each(|pod| change.pod(pod, 1));
        let mut references = ReferenceCounts::default();
        references.add_changes(change);
        references
    }

    /// Checks `next`, to which `diff` leads from `before`, and updates the counts. An error leaves the counts
    /// unchanged.
    ///
    /// The cost is that of the difference. An error costs a full [`RuleTables::check`], which determines the
    /// message.
    pub fn check_and_apply(
        &mut self,
        before: &RuleTables,
        diff: &TablesDiff,
        next: &RuleTables,
    ) -> Result<(), TablesError> {
        let change = CountChanges::of(before, diff, next);
        if !(is_within_bounds(diff, next) && self.has_no_dangling_ids(&change, diff, next)) {
            next.check()?;
        }
        self.add_changes(change);
        Ok(())
    }

    /// Tests whether every referenced entry exists after the change.
    fn has_no_dangling_ids(&self, change: &CountChanges, diff: &TablesDiff, next: &RuleTables) -> bool {
        // An entry that is neither removed nor referenced by a changed entry exists as before.
        referenced_after(&self.rules, &change.rules, &diff.rules).all(|id| next.rules.contains_key(&id))
            && referenced_after(&self.rows, &change.rows, &diff.rows).all(|id| next.rows.contains_key(&id))
            && referenced_after(&self.acls, &change.acls, &diff.acls).all(|id| next.acls.contains_key(&id))
    }

    fn add_changes(&mut self, change: CountChanges) {
        add(&mut self.rules, change.rules);
        add(&mut self.rows, change.rows);
        add(&mut self.acls, change.acls);
    }
}

impl CountChanges {
    fn of(before: &RuleTables, diff: &TablesDiff, next: &RuleTables) -> CountChanges {
        let mut change = CountChanges::default();
        for id in diff.rows.keys() {
            before.rows.get(id).into_iter().for_each(|row| change.row(row, -1));
            next.rows.get(id).into_iter().for_each(|row| change.row(row, 1));
        }
        for id in diff.acls.keys() {
            before.acls.get(id).into_iter().for_each(|acl| change.acl(acl, -1));
            next.acls.get(id).into_iter().for_each(|acl| change.acl(acl, 1));
        }
        for (id, rows) in diff.acl_rows.iter().filter(|(id, _)| !diff.acls.contains_key(id)) {
            // For a table that stays, only the changed entries matter.
            let [before, next] = [before, next].map(|tables| tables.acls.get(id));
            for class in rows.keys() {
                let [before, next] = [before, next].map(|acl| acl?.rows.get(class));
                before.into_iter().for_each(|row| *change.rows.entry(*row).or_default() -= 1);
                next.into_iter().for_each(|row| *change.rows.entry(*row).or_default() += 1);
            }
        }
        for name in diff.pods.keys() {
            before.pods.get(name).into_iter().for_each(|pod| change.pod(pod, -1));
            next.pods.get(name).into_iter().for_each(|pod| change.pod(pod, 1));
        }
        change
    }

    fn row(&mut self, row: &Row, by: i64) {
        row.decisions().map(Decision::rule).for_each(|rule| *self.rules.entry(rule).or_default() += by);
    }

    fn acl(&mut self, acl: &Acl, by: i64) {
        acl.rows.values().chain([&acl.default]).for_each(|row| *self.rows.entry(*row).or_default() += by);
    }

    fn pod(&mut self, pod: &PodPolicy, by: i64) {
        [pod.ingress, pod.egress].into_iter().for_each(|acl| *self.acls.entry(acl).or_default() += by);
    }
}

/// Ids whose counts or entries change, and that are referenced after the change.
fn referenced_after<'a, Id: Ord + Copy + std::hash::Hash, T>(
    counts: &'a Counts<Id>,
    change: &'a BTreeMap<Id, i64>,
    entries: &'a BTreeMap<Id, Option<T>>,
) -> impl Iterator<Item = Id> + 'a {
    let count = |id: &Id| counts.get(id).unwrap_or(&0) + change.get(id).unwrap_or(&0);
    change.keys().chain(entries.keys()).copied().filter(move |id| count(id) > 0)
}

fn add<Id: Ord + Copy + std::hash::Hash>(counts: &mut Counts<Id>, change: BTreeMap<Id, i64>) {
    for (id, by) in change {
        let count = counts.entry(id).or_default();
        *count += by;
        if *count == 0 {
            counts.remove(&id);
        }
    }
}

/// Tests whether changed entries are canonical and within the limits.
fn is_within_bounds(diff: &TablesDiff, next: &RuleTables) -> bool {
    let prefix = |(prefix, class): (&ipnet::IpNet, &Option<crate::ids::ClassId>)| {
        prefix.addr() == prefix.network() && class.is_none_or(|class| class.index() <= CLASSES_MAX)
    };
    let classes = |acl: &Acl| acl.rows.last_key_value().is_none_or(|(class, _)| class.index() <= CLASSES_MAX);
    diff.rules.iter().all(|(id, rule)| rule.is_none() || id.index() < RULES_MAX)
        && next.prefixes.len() <= PREFIXES_MAX
        && diff.prefixes.iter().all(prefix)
        && diff.rows.keys().all(|id| id.index() <= ROWS_MAX)
        && diff.rows.values().flatten().all(Row::is_canonical)
        && diff.acls.keys().all(|id| id.index() <= ACLS_MAX)
        && diff.acls.values().flatten().all(classes)
        && diff.acl_rows.values().flat_map(BTreeMap::keys).all(|class| class.index() <= CLASSES_MAX)
        && (diff.acls.is_empty() && diff.acl_rows.is_empty() || next.acl_entries() <= ACL_ENTRIES_MAX)
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;
    use crate::ids::ClassId;
    use crate::limits::ROWS_MAX;
    use crate::tables::PodName;
    use crate::tables::tests::arbitrary;

    /// Incomplete difference: entries of the next tables with some missing, and some removals.
    fn careless(from: &RuleTables, to: &RuleTables, keep: &[bool], gone: &[u32]) -> TablesDiff {
        let mut keep = keep.iter().copied().cycle();
        let mut diff = from.difference(to);
        diff.rules.retain(|_, _| keep.next().unwrap_or(true));
        diff.rows.retain(|_, _| keep.next().unwrap_or(true));
        diff.acls.retain(|_, _| keep.next().unwrap_or(true));
        diff.acl_rows.retain(|_, _| keep.next().unwrap_or(true));
        diff.pods.retain(|_, _| keep.next().unwrap_or(true));
        for &id in gone {
            let (table, id) = (id % 4, id / 4);
            match table {
                0 => drop(diff.rules.insert(RuleId(id), None)),
                1 => drop(diff.rows.insert(RowId(id), None)),
                2 => drop(diff.acls.insert(AclId(id), None)),
                _ => drop(diff.pods.insert(PodName::new("default", format!("pod{id}")), None)),
            }
        }
        diff
    }

    proptest! {
        #![proptest_config(crate::random::cases(80))]

        #[test]
        fn says_of_a_change_what_a_check_of_everything_says(
            first in arbitrary::rule_tables(),
            steps in vec((arbitrary::rule_tables(), vec(prop::bool::weighted(0.8), 16), vec(0..40_u32, 0..3)), 1..6),
        ) {
            let mut tables = first;
            let mut references = ReferenceCounts::of(&tables);
            for (to, keep, gone) in steps {
                let diff = careless(&tables, &to, &keep, &gone);
                let mut next = tables.clone();
                next.apply(&diff);
                let expected = next.check();
                prop_assert_eq!(references.check_and_apply(&tables, &diff, &next), expected.clone());
                if expected.is_ok() {
                    tables = next;
                }
                prop_assert_eq!(&references, &ReferenceCounts::of(&tables));
            }
        }

        #[test]
        fn new_entries_beyond_the_limits_are_refused(
            tables in arbitrary::rule_tables(),
            rows in btree_map(prop_oneof![Just(ROWS_MAX as u32), Just(ROWS_MAX as u32 + 1), 0..9_u32], arbitrary::row(4), 1..3),
        ) {
            let rows = rows.into_iter().map(|(id, row)| (RowId(id), Some(row))).collect();
            let diff = TablesDiff { rows, ..TablesDiff::default() };
            let mut next = tables.clone();
            next.apply(&diff);
            prop_assert_eq!(ReferenceCounts::of(&tables).check_and_apply(&tables, &diff, &next), next.check());
        }
    }

    #[test]
    fn a_change_does_not_bring_more_rows_of_acl_tables_than_fit() {
        let rows = (0..1 << 13).map(|class| (ClassId(class), RowId(0))).collect();
        let acl = Acl { rows, default: RowId(0) };
        let acls = (0..ACL_ENTRIES_MAX as u32 >> 13).map(|id| (AclId(id), acl.clone())).collect();
        let mut next = RuleTables { acls, ..RuleTables::default() };
        let diff = TablesDiff { acls: [(AclId(0), Some(acl.clone()))].into(), ..TablesDiff::default() };
        assert!(is_within_bounds(&diff, &next));
        next.acls.insert(AclId(ACLS_MAX as u32), acl);
        assert!(!is_within_bounds(&diff, &next));
    }
}
