//! Merges endpoint groups with equal rows and columns of the matrix.
//!
//! The algorithm numbers classes and ACL tables by content in one pass over the rows. It never compares two
//! groups directly.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::endpoint_groups::{EndpointGroup, EndpointPolicy, GroupMembers, Grouping};
use super::traffic::Traffic;
use crate::ids::{AclId, ClassId, RowId};
use crate::policy::evaluate::TableEvaluator;

/// Dense numbers for distinct values.
struct Numbers<T>(HashMap<T, u32>);

impl<T: Eq + std::hash::Hash> Numbers<T> {
    fn of(&mut self, value: T) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(value).or_insert(next)
    }
}

impl<T> Default for Numbers<T> {
    fn default() -> Numbers<T> {
        Numbers(HashMap::new())
    }
}

/// Signature of a group in one family: number of its class, and of its egress and ingress tables.
type Signature = (u32, Vec<(u32, u32)>);

/// Merge key: index of a pod that forms its own group, the kind of the members, and the signatures by family.
type Key = (Option<usize>, bool, [Option<Signature>; 2]);

/// Numbers of classes and ACL tables by content.
#[derive(Default)]
struct Signatures {
    /// Number of the treatment of a class by the tables of pods; 0 for default treatment by all.
    classes: HashMap<ClassId, u32>,
    /// Numbers of ACL tables. Tables that allow the same traffic from the same classes share a number.
    acls: HashMap<AclId, u32>,
}

impl Signatures {
    fn of(evaluator: &TableEvaluator, groups: &[EndpointGroup]) -> Signatures {
        let tables = evaluator.tables();
        let (mut traffics, mut contents, mut steps) =
            (Numbers::default(), Numbers::default(), Numbers::default());
        steps.of((0, 0, 0));
        let mut of_row: HashMap<RowId, u32> = HashMap::new();
        let mut signatures = Signatures::default();
        let policies = groups.iter().flat_map(|group| group.policies.iter().flatten().flatten());
        let acls: BTreeSet<AclId> = policies
            .flat_map(|policy| &policy.acls)
            .flat_map(|&(egress, ingress)| [egress, ingress])
            .collect();
        for id in acls {
            let acl = &tables.acls[&id];
            let mut traffic = |row: RowId| {
                *of_row.entry(row).or_insert_with(|| traffics.of(Traffic::allowed(&tables.rows[&row])))
            };
            let default = traffic(acl.default);
            let rows = acl.rows.iter().map(|(&class, &row)| (class, traffic(row)));
            let rows: Vec<(ClassId, u32)> = rows.filter(|(_, traffic)| *traffic != default).collect();
            for &(class, traffic) in &rows {
                let signature = signatures.classes.entry(class).or_default();
                *signature = steps.of((*signature, id.0 + 1, traffic));
            }
            signatures.acls.insert(id, contents.of((default, rows)));
        }
        signatures
    }

    fn of_policy(&self, policy: &EndpointPolicy) -> Signature {
        let mut acls: Vec<(u32, u32)> =
            policy.acls.iter().map(|(egress, ingress)| (self.acls[egress], self.acls[ingress])).collect();
        acls.sort_unstable();
        acls.dedup();
        (self.classes.get(&policy.class).copied().unwrap_or_default(), acls)
    }
}

/// Merges the groups of one set of tables. Pods and external addresses stay apart; so do single pods with
/// [`Grouping::ByPod`].
pub(super) fn merge_groups(
    evaluator: &TableEvaluator,
    groups: Vec<EndpointGroup>,
    grouping: Grouping,
) -> Vec<EndpointGroup> {
    let signatures = Signatures::of(evaluator, &groups);
    let mut known: BTreeMap<Key, usize> = BTreeMap::new();
    let mut merged: Vec<EndpointGroup> = Vec::new();
    for (at, group) in groups.into_iter().enumerate() {
        let is_pods = matches!(group.kind, GroupMembers::Pods(_));
        let single = (is_pods && grouping == Grouping::ByPod).then_some(at);
        let [v4, v6] = &group.policies[0];
        let signature = [v4, v6].map(|policy| policy.as_ref().map(|policy| signatures.of_policy(policy)));
        let next = merged.len();
        let found = *known.entry((single, is_pods, signature)).or_insert(next);
        if found == next {
            merged.push(group);
            continue;
        }
        match (&mut merged[found].kind, group.kind) {
            (GroupMembers::Pods(pods), GroupMembers::Pods(more)) => pods.extend(more),
            (GroupMembers::External(texts), GroupMembers::External(more)) => texts.extend(more),
            (GroupMembers::Pods(_), GroupMembers::External(_))
            | (GroupMembers::External(_), GroupMembers::Pods(_)) => {
                unreachable!("the two are told apart above")
            }
        }
    }
    for group in &mut merged {
        if let GroupMembers::Pods(pods) = &mut group.kind {
            pods.sort();
            pods.dedup();
        }
    }
    merged
}
