//! Canonical numbering of rule tables.

use super::decision::Decision;
use super::persistent_map::PersistentMap;
use super::row::{PortSpan, Row};
use super::rule_tables::{Acl, PodPolicy, RuleTables};
use crate::ids::{AclId, ClassId, RowId, RuleId};

impl RuleTables {
    /// Renumbers the tables in an order that follows from their content alone.
    ///
    /// Tables that differ in ids only become equal, to the byte in JSON. Rules are sorted by value, rows and
    /// ACL tables by content, classes by their first prefix. There are no gaps, equal entries are merged, and
    /// entries that no pod uses are dropped. Class 0 keeps its id. The tables must have passed their check.
    #[must_use]
    pub fn canonical(&self) -> RuleTables {
        let classes = self.classes_in_order();
        // All entries get a rank first, used or not: equal rules make rows equal, and rows equal to a default
        // are dropped, which determines the entries in use. Ranks keep their order if unused entries are
        // dropped.
        let rules = Ranks::new(self.rules.iter().map(|(id, rule)| (id.0, rule)));
        let rows = Ranks::new(
            self.rows.iter().map(|(id, row)| (id.0, renumber_row(row, |rule| RuleId(rules.of(rule.0))))),
        );
        let mut used_acls: Vec<AclId> =
            self.pods.values().flat_map(|pod| [pod.ingress, pod.egress]).collect();
        used_acls.sort_unstable();
        used_acls.dedup();
        let acls = Ranks::new(used_acls.into_iter().filter_map(|id| {
            let acl = self.acls.get(&id)?;
            Some((id.0, RankedAcl::new(acl, &classes, &rows)))
        }));

        let row_numbers = numbers(rows.entries.len(), acls.entries.iter().flat_map(RankedAcl::rows));
        let used_rows: Vec<&Row> = used(&rows.entries, &row_numbers).collect();
        let decisions = used_rows.iter().flat_map(|row| row.decisions());
        let rule_numbers = numbers(rules.entries.len(), decisions.map(|decision| decision.rule().0));
        let final_row = |row: &&Row| renumber_row(row, |rule| RuleId(rule_numbers[rule.index()]));
        let final_pod = |pod: &PodPolicy| PodPolicy {
            addresses: pod.addresses.clone(),
            ingress: AclId(acls.of(pod.ingress.0)),
            egress: AclId(acls.of(pod.egress.0)),
        };
        RuleTables {
            format: self.format,
            rules: table(RuleId, used(&rules.entries, &rule_numbers).map(|&rule| rule.clone())),
            prefixes: self.prefixes.iter().map(|(&prefix, class)| (prefix, classes[class.index()])).collect(),
            rows: table(RowId, used_rows.iter().map(final_row)),
            acls: table(AclId, acls.entries.iter().map(|acl| acl.numbered(&row_numbers))),
            pods: self.pods.iter().map(|(name, pod)| (name.clone(), final_pod(pod))).collect(),
        }
    }

    /// Numbers of the classes, in the order of their first prefixes. A class without a prefix has none.
    fn classes_in_order(&self) -> Vec<ClassId> {
        let last = self.prefixes.values().map(|class| class.index()).max().unwrap_or(0);
        let mut numbers = vec![NO_CLASS; last + 1];
        numbers[ClassId::WORLD.index()] = ClassId::WORLD;
        let mut next = 1;
        for class in self.prefixes.values() {
            if numbers[class.index()] == NO_CLASS {
                numbers[class.index()] = ClassId(next);
                next += 1;
            }
        }
        numbers
    }
}

const NO_CLASS: ClassId = ClassId(u32::MAX);
const UNUSED: u32 = u32::MAX;

/// Distinct entries in order, and the rank of each id.
struct Ranks<T> {
    entries: Vec<T>,
    by_id: Vec<u32>,
}

impl<T: Ord> Ranks<T> {
    fn new(entries: impl Iterator<Item = (u32, T)>) -> Ranks<T> {
        let mut sorted: Vec<(u32, T)> = entries.collect();
        let last = sorted.iter().map(|&(id, _)| id as usize).max();
        sorted.sort_unstable_by(|(_, a), (_, b)| a.cmp(b));
        let mut ranks = Ranks { entries: Vec::with_capacity(sorted.len()), by_id: Vec::new() };
        ranks.by_id.resize(last.map_or(0, |last| last + 1), UNUSED);
        for (id, entry) in sorted {
            if ranks.entries.last() != Some(&entry) {
                ranks.entries.push(entry);
            }
            ranks.by_id[id as usize] = ranks.entries.len() as u32 - 1;
        }
        ranks
    }

    fn of(&self, id: u32) -> u32 {
        self.by_id[id as usize]
    }
}

/// ACL table with rows by rank.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct RankedAcl {
    named: Vec<(ClassId, u32)>,
    default: u32,
}

impl RankedAcl {
    /// Converts `acl`. Drops classes without a prefix, and rows equal to the default.
    fn new(acl: &Acl, classes: &[ClassId], rows: &Ranks<Row>) -> RankedAcl {
        let default = rows.of(acl.default.0);
        let named = acl.rows.iter().filter_map(|(class, row)| {
            let class = classes.get(class.index()).copied().filter(|&class| class != NO_CLASS)?;
            Some((class, rows.of(row.0))).filter(|&(_, row)| row != default)
        });
        let mut named: Vec<(ClassId, u32)> = named.collect();
        named.sort_unstable();
        RankedAcl { named, default }
    }

    fn rows(&self) -> impl Iterator<Item = u32> {
        self.named.iter().map(|&(_, row)| row).chain([self.default])
    }

    fn numbered(&self, rows: &[u32]) -> Acl {
        let row = |rank: u32| RowId(rows[rank as usize]);
        let named = self.named.iter().map(|&(class, rank)| (class, row(rank)));
        Acl { rows: named.collect(), default: row(self.default) }
    }
}

/// Consecutive numbers for the ranks in use.
fn numbers(count: usize, used: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut numbers = vec![UNUSED; count];
    used.for_each(|rank| numbers[rank as usize] = 0);
    for (next, number) in (0..).zip(numbers.iter_mut().filter(|number| **number != UNUSED)) {
        *number = next;
    }
    numbers
}

/// Entries in use.
fn used<'a, T>(entries: &'a [T], numbers: &'a [u32]) -> impl Iterator<Item = &'a T> {
    entries.iter().zip(numbers).filter(|&(_, &number)| number != UNUSED).map(|(entry, _)| entry)
}

fn table<K: Ord, V, const CHUNK: usize>(
    id: impl Fn(u32) -> K,
    entries: impl Iterator<Item = V>,
) -> PersistentMap<K, V, CHUNK> {
    (0..).map(id).zip(entries).collect()
}

fn renumber_row(row: &Row, rule: impl Fn(RuleId) -> RuleId) -> Row {
    let renumber = |decision: Decision| Decision::new(decision.verdict(), rule(decision.rule()));
    let other = renumber(row.other);
    // Merged rules may make adjacent spans equal.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tables::tests::arbitrary;
    use crate::tables::{Classifier, RuleOrigin};

    fn json(tables: &RuleTables) -> String {
        serde_json::to_string(tables).unwrap()
    }

    proptest! {
        #![proptest_config(crate::random::cases(40))]

        #[test]
        fn tables_that_differ_in_numbers_come_out_equal(
            tables in arbitrary::rule_tables(),
            numbering in arbitrary::numbering(),
        ) {
            let renumbered = numbering.apply(&tables);
            prop_assert_eq!(renumbered.check(), Ok(()));
            prop_assert_eq!(json(&renumbered.canonical()), json(&tables.canonical()));
        }

        #[test]
        fn entries_twice_and_entries_unused_change_nothing(tables in arbitrary::rule_tables()) {
            let mut doubled = tables.clone();
            let second = |id: u32| id + 100;
            doubled.rules.extend(tables.rules.iter().map(|(id, rule)| (RuleId(second(id.0)), rule.clone())));
            doubled.rows.extend(tables.rows.iter().map(|(id, row)| {
                (RowId(second(id.0)), renumber_row(row, |rule| RuleId(second(rule.0))))
            }));
            doubled.acls.extend(tables.acls.iter().map(|(id, acl)| {
                let rows = acl.rows.iter().map(|(&class, row)| (class, RowId(second(row.0)))).collect();
                (AclId(second(id.0)), Acl { rows, default: acl.default })
            }));
            for (name, pod) in tables.pods.iter().step_by(2) {
                let ingress = AclId(second(pod.ingress.0));
                doubled.pods.insert(name.clone(), PodPolicy { ingress, ..pod.clone() });
            }
            prop_assert_eq!(doubled.check(), Ok(()));
            prop_assert_eq!(doubled.canonical(), tables.canonical());
        }

        #[test]
        fn canonical_tables_stay_as_they_are_and_pass_the_check(tables in arbitrary::rule_tables()) {
            let canonical = tables.canonical();
            prop_assert_eq!(canonical.check(), Ok(()));
            prop_assert_eq!(&canonical.canonical(), &canonical);
        }

        #[test]
        fn canonical_tables_decide_alike(
            tables in arbitrary::rule_tables(),
            flows in proptest::collection::vec(arbitrary::flow(), 50),
        ) {
            let canonical = tables.canonical();
            let (before, after) = (Classifier::new(&tables).unwrap(), Classifier::new(&canonical).unwrap());
            let name = |tables: &RuleTables, decision: Option<Decision>| -> Option<(bool, RuleOrigin)> {
                decision.map(|decision| (decision.is_allow(), tables.rules[&decision.rule()].clone()))
            };
            for flow in flows {
                let (before, after) = (before.decide_flow(&flow), after.decide_flow(&flow));
                prop_assert_eq!(name(&tables, before.egress), name(&canonical, after.egress));
                prop_assert_eq!(name(&tables, before.ingress), name(&canonical, after.ingress));
            }
        }
    }
}
