//! One numbering for equal tables.

use std::collections::{BTreeMap, BTreeSet};

use super::{Acl, Decision, PodPolicy, PortSpan, Row, RuleTables};
use crate::ids::{AclId, ClassId, RowId, RuleId};

impl RuleTables {
    /// The same tables, numbered in an order that follows from their content alone.
    ///
    /// Two tables that differ in numbers only come out equal, to the byte in JSON. Rules go by their order, rows
    /// and ACL tables by content, classes by their first prefix; there are no gaps, equal entries become one, and
    /// what no pod's table leads to is left out. Class 0 stays class 0. The tables must have passed their check.
    #[must_use]
    pub fn canonical(&self) -> RuleTables {
        // The first round takes from ACL tables what says nothing; the second leaves out what only that led to.
        self.renumbered().renumbered()
    }

    fn renumbered(&self) -> RuleTables {
        let acls = entries(&self.acls, self.pods.values().flat_map(|pod| [pod.ingress, pod.egress]));
        let used_rows = acls.iter().flat_map(|(_, acl)| acl.rows.values().copied().chain([acl.default]));
        let rows = entries(&self.rows, used_rows);
        let rules =
            entries(&self.rules, rows.iter().flat_map(|(_, row)| row.decisions().map(Decision::rule)));

        let classes = self.classes_in_order();
        let rules = Numbered::new(rules);
        let rows = Numbered::new(rows.into_iter().map(|(id, row)| (id, renumber_row(row, &rules.numbers))));
        let acls = acls.into_iter().map(|(id, acl)| (id, renumber_acl(acl, &classes, &rows.numbers)));
        let acls = Numbered::new(acls);
        let renumber_pod = |pod: &PodPolicy| PodPolicy {
            addresses: pod.addresses.clone(),
            ingress: AclId(acls.numbers[&pod.ingress]),
            egress: AclId(acls.numbers[&pod.egress]),
        };
        RuleTables {
            format: self.format,
            prefixes: self.prefixes.iter().map(|(&prefix, class)| (prefix, classes[class])).collect(),
            pods: self.pods.iter().map(|(name, pod)| (name.clone(), renumber_pod(pod))).collect(),
            rules: rules.table(RuleId, |&rule| rule.clone()),
            rows: rows.table(RowId, Clone::clone),
            acls: acls.table(AclId, Clone::clone),
        }
    }

    /// Classes in the order of their first prefixes. A class that no prefix leads to has no number.
    fn classes_in_order(&self) -> BTreeMap<ClassId, ClassId> {
        let mut classes = BTreeMap::from([(ClassId::WORLD, ClassId::WORLD)]);
        for &class in self.prefixes.values() {
            let next = ClassId(classes.len() as u32);
            classes.entry(class).or_insert(next);
        }
        classes
    }
}

/// The entries that are used, by id.
fn entries<K: Ord + Copy, V>(table: &BTreeMap<K, V>, used: impl Iterator<Item = K>) -> Vec<(K, &V)> {
    let used: BTreeSet<K> = used.collect();
    used.into_iter().filter_map(|id| Some((id, table.get(&id)?))).collect()
}

/// Entries without repetition in their order, and the place of each by the id that it had.
struct Numbered<K, T> {
    entries: Vec<T>,
    numbers: BTreeMap<K, u32>,
}

impl<K: Ord + Copy, T: Ord> Numbered<K, T> {
    fn new(entries: impl IntoIterator<Item = (K, T)>) -> Numbered<K, T> {
        let mut sorted: Vec<(K, T)> = entries.into_iter().collect();
        sorted.sort_unstable_by(|(_, a), (_, b)| a.cmp(b));
        let mut numbered = Numbered { entries: Vec::new(), numbers: BTreeMap::new() };
        for (id, entry) in sorted {
            if numbered.entries.last() != Some(&entry) {
                numbered.entries.push(entry);
            }
            numbered.numbers.insert(id, numbered.entries.len() as u32 - 1);
        }
        numbered
    }

    fn table<V>(&self, id: impl Fn(u32) -> K, value: impl Fn(&T) -> V) -> BTreeMap<K, V> {
        (0..).map(id).zip(self.entries.iter().map(value)).collect()
    }
}

fn renumber_row(row: &Row, rules: &BTreeMap<RuleId, u32>) -> Row {
    let renumber = |decision: Decision| Decision::new(decision.verdict(), RuleId(rules[&decision.rule()]));
    let other = renumber(row.other);
    // Two rules that were equal are one: their spans may have become one too.
    let spans = |spans: &[PortSpan]| {
        let mut merged: Vec<PortSpan> = Vec::with_capacity(spans.len());
        for &PortSpan { first, last, decision } in spans {
            let decision = renumber(decision);
            match merged.last_mut() {
                _ if decision == other => {}
                Some(before) if before.last + 1 == first && before.decision == decision => before.last = last,
                _ => merged.push(PortSpan { first, last, decision }),
            }
        }
        merged
    };
    Row { tcp: spans(&row.tcp), udp: spans(&row.udp), sctp: spans(&row.sctp), other }
}

fn renumber_acl(acl: &Acl, classes: &BTreeMap<ClassId, ClassId>, rows: &BTreeMap<RowId, u32>) -> Acl {
    let default = RowId(rows[&acl.default]);
    let renumbered = acl.rows.iter().filter_map(|(class, row)| {
        let row = RowId(rows[row]);
        Some((*classes.get(class)?, row)).filter(|_| row != default)
    });
    Acl { rows: renumbered.collect(), default }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tables::generate;
    use crate::tables::{Classifier, RuleOrigin};

    fn json(tables: &RuleTables) -> String {
        serde_json::to_string(tables).unwrap()
    }

    proptest! {
        #[test]
        fn tables_that_differ_in_numbers_come_out_equal(
            tables in generate::rule_tables(),
            numbering in generate::numbering(),
        ) {
            let renumbered = numbering.apply(&tables);
            prop_assert_eq!(renumbered.check(), Ok(()));
            prop_assert_eq!(json(&renumbered.canonical()), json(&tables.canonical()));
        }

        #[test]
        fn canonical_tables_stay_as_they_are_and_pass_the_check(tables in generate::rule_tables()) {
            let canonical = tables.canonical();
            prop_assert_eq!(canonical.check(), Ok(()));
            prop_assert_eq!(&canonical.canonical(), &canonical);
        }

        #[test]
        fn canonical_tables_judge_alike(
            tables in generate::rule_tables(),
            flows in proptest::collection::vec(generate::flow(), 50),
        ) {
            let canonical = tables.canonical();
            let (before, after) = (Classifier::new(&tables).unwrap(), Classifier::new(&canonical).unwrap());
            let name = |tables: &RuleTables, decision: Option<Decision>| -> Option<(bool, RuleOrigin)> {
                decision.map(|decision| (decision.is_allow(), tables.rules[&decision.rule()].clone()))
            };
            for flow in flows {
                let (before, after) = (before.judge(&flow), after.judge(&flow));
                prop_assert_eq!(name(&tables, before.egress), name(&canonical, after.egress));
                prop_assert_eq!(name(&tables, before.ingress), name(&canonical, after.ingress));
            }
        }
    }
}
