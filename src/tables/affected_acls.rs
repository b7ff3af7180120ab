//! ACL tables whose decisions a change of the tables may affect.

use std::collections::BTreeSet;

use super::classifier::Classifier;
use super::document::{Acl, RuleTables, TablesDiff};
use crate::ids::{AclId, ClassId, RowId};

/// Affected ACL tables of a change. Other tables allow every flow that they allowed before.
#[derive(Debug, Clone, Default)]
pub struct AffectedAcls {
    /// Changed tables.
    acls: BTreeSet<AclId>,
    /// Rows with changed content.
    rows: BTreeSet<RowId>,
    /// Addresses that move from one class to another.
    moves: BTreeSet<(ClassId, ClassId)>,
}

impl AffectedAcls {
    /// Affected tables of `diff`, which leads from the tables `before` to others; with the classifiers of
    /// both.
    pub fn of(
        before: &RuleTables,
        compiled: &Classifier,
        diff: &TablesDiff,
        next: &Classifier,
    ) -> AffectedAcls {
        let moves = diff
            .prefixes
            .keys()
            .map(|&prefix| (compiled.class_covering(prefix), next.class_covering(prefix)));
        AffectedAcls {
            acls: diff.acls.keys().chain(diff.acl_rows.keys()).copied().collect(),
            rows: diff.rows.keys().filter(|id| before.rows.contains_key(id)).copied().collect(),
            moves: moves.filter(|(from, to)| from != to).collect(),
        }
    }

    /// Tests whether `acl`, with id `id` after the change, may decide differently than the table with that id
    /// before.
    pub fn contains(&self, id: AclId, acl: &Acl) -> bool {
        self.acls.contains(&id)
            || self.moves.iter().any(|&(from, to)| acl.row(from) != acl.row(to))
            || !self.rows.is_empty()
                && acl.rows.values().chain([&acl.default]).any(|row| self.rows.contains(row))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::tables::tests::arbitrary;

    proptest! {
        #![proptest_config(crate::random::cases(40))]

        #[test]
        fn tables_that_are_not_affected_decide_as_before(
            before in arbitrary::rule_tables(),
            other in arbitrary::rule_tables(),
            parts in any::<[bool; 4]>(),
            flows in vec(arbitrary::flow(), 40),
        ) {
            // Parts of the difference are dropped, so that some tables stay.
            let mut diff = before.difference(&other);
            let [rows, acls, acl_rows, prefixes] = parts;
            if !rows { diff.rows.clear(); }
            if !acls { diff.acls.clear(); }
            if !acl_rows { diff.acl_rows.clear(); }
            if !prefixes { diff.prefixes.clear(); }
            let mut changes = 0;
            diff.prefixes.retain(|_, _| { changes += 1; changes <= 2 });
            diff.rows.retain(|id, _| id.0 % 3 == 0);
            let mut next = before.clone();
            next.apply(&diff);
            let compiled = Classifier::new(&before).unwrap();
            let updated = compiled.update(&diff, &next);
            let affected = AffectedAcls::of(&before, &compiled, &diff, &updated);
            for (&id, _) in next.acls.iter().filter(|(id, acl)| !affected.contains(**id, acl)) {
                for flow in &flows {
                    let decide = |classifier: &Classifier| {
                        classifier.decide(id, classifier.class(flow.src), flow.protocol, flow.dst_port)
                    };
                    prop_assert_eq!(decide(&compiled), decide(&updated), "{} by table {} after {:?}", flow, id, diff);
                }
            }
        }
    }

    #[test]
    fn a_class_that_a_table_does_not_distinguish_does_not_affect_it() {
        let tables: RuleTables = serde_json::from_value(serde_json::json!({
            "format": 1,
            "rules": {"0": {"why": "not-isolated", "direction": "ingress"}},
            "prefixes": {"10.0.0.0/8": 1},
            "rows": {"0": {"other": {"verdict": "deny", "rule": 0}}, "1": {"other": {"verdict": "allow", "rule": 0}}},
            "acls": {"0": {"rows": {"1": 1}, "default": 0}, "1": {"rows": {"1": 1, "2": 1}, "default": 0}},
            "pods": {},
        }))
        .unwrap();
        let mut next = tables.clone();
        next.prefixes.insert("10.1.0.0/16".parse().unwrap(), ClassId(2));
        let [before, after] = [&tables, &next].map(|tables| Classifier::new(tables).unwrap());
        let affected = AffectedAcls::of(&tables, &before, &tables.difference(&next), &after);
        assert!(affected.contains(AclId(0), &next.acls[&AclId(0)]));
        assert!(!affected.contains(AclId(1), &next.acls[&AclId(1)]));
    }
}
