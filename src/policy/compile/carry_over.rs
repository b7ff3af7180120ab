//! Carry-over: a rule set keeps its table if all of its pods change to the same other rules. Only the classes
//! that the changed rules refer to are compiled again.
//!
//! A policy added to a thousand rules therefore changes some entries of the tables, not all of them. Rules
//! for every peer and rules with named ports may change any row; their pods get a newly compiled rule set.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::HashSet;

use super::classes::Classes;
use super::enforced_pod::EnforcedPod;
use super::output::TablesOutput;
use super::rows::Rows;
use super::rule_sets::RuleSets;
use crate::ids::ClassId;
use crate::policy::resolve::{Membership, PodDirection, RuleSetKey};
use crate::policy::store::{Affected, PodSlot, RuleSetId, Store};
use crate::tables::{Direction, RuleOrigin};

/// Pod and the keys of its ingress and egress rules, `None` if the switch does not enforce policy for it.
pub(super) type AffectedPod = (PodSlot, Option<[RuleSetKey; 2]>);

/// Changes of the pods of a rule set.
#[derive(Default)]
struct DirectionChange<'a> {
    /// Number of affected pods.
    pods: usize,
    /// Key of the next rules of one of the pods.
    next: Option<(&'a RuleSetKey, PodSlot)>,
    /// Indicates that two pods have different keys.
    differ: bool,
}

/// Rule set whose pods all change to the same other rules.
pub(super) struct CarryOver<'a> {
    /// Rule set.
    rule_set: RuleSetId,
    /// Next rules, as one of the pods has them.
    pod_direction: PodDirection<'a>,
}

/// Step 2: keys of the rules of all affected pods.
pub(super) fn affected_pods(store: &Store, affected: &Affected) -> Vec<AffectedPod> {
    let key = |slot, direction| Some(pod_direction(store, slot, direction)?.key());
    let keys = |slot| Some([key(slot, Direction::Ingress)?, key(slot, Direction::Egress)?]);
    affected.pods.union(&affected.reselected_pods).map(|&slot| (slot, keys(slot))).collect()
}

/// Step 2: rule sets that may carry over.
pub(super) fn carry_overs<'a>(
    store: &'a Store,
    enforced: &BTreeMap<PodSlot, EnforcedPod>,
    rule_sets: &RuleSets,
    affected: &[AffectedPod],
) -> Vec<CarryOver<'a>> {
    let mut changes: BTreeMap<RuleSetId, DirectionChange<'_>> = BTreeMap::new();
    for (slot, keys) in affected {
        let Some(enforced) = enforced.get(slot) else { continue };
        for (place, rule_set) in [enforced.ingress, enforced.egress].into_iter().enumerate() {
            let change = changes.entry(rule_set).or_default();
            change.pods += 1;
            if let Some(keys) = keys {
                let next = (&keys[place], *slot);
                change.differ |= change.next.is_some_and(|(key, _)| key != next.0);
                change.next = Some(next);
            }
        }
    }
    let mut taken: HashSet<&RuleSetKey> = HashSet::default();
    let mut carried = Vec::new();
    for (id, change) in changes {
        let Some((key, slot)) = change.next else { continue };
        if change.differ || change.pods < rule_sets.get(id).pods.len() {
            continue;
        }
        let pod_direction =
            pod_direction(store, slot, key.direction()).expect("an affected pod with a key is enforced");
        if rule_sets.can_carry_over(id, key, &pod_direction) && taken.insert(key) {
            carried.push(CarryOver { rule_set: id, pod_direction });
        }
    }
    carried
}

impl RuleSets {
    /// Tests whether a rule set can take the rules of a pod direction: the difference must be static.
    fn can_carry_over(&self, id: RuleSetId, key: &RuleSetKey, pod_direction: &PodDirection<'_>) -> bool {
        self.keys.find(key).is_none()
            && self.keys.key(id).differs_only_in_policies(key)
            && pod_direction.differs_statically_from(&self.get(id).rules)
    }

    /// Carries over the rule sets whose default deny permits it. Returns the stale classes of each.
    ///
    /// The origin of the default deny lists all policies that isolate a pod, and rows name this rule. Its
    /// name must change in all rows at once, or the rule set does not carry over.
    pub(super) fn carry_over(
        &mut self,
        changes: Vec<CarryOver<'_>>,
        classes: &Classes,
        members: &mut Membership,
        rows: &mut Rows,
        output: &mut TablesOutput,
    ) -> BTreeMap<RuleSetId, Vec<ClassId>> {
        let mut by_deny: BTreeMap<Option<Arc<RuleOrigin>>, Vec<CarryOver<'_>>> = BTreeMap::new();
        for carry_over in changes {
            let deny = self.get(carry_over.rule_set).rules.default_deny().cloned();
            by_deny.entry(deny).or_default().push(carry_over);
        }
        let mut stale_classes = BTreeMap::new();
        for (before, changes) in by_deny {
            if before.is_none_or(|before| self.rename_deny(&before, &changes, rows, output)) {
                for carry_over in changes {
                    stale_classes.insert(
                        carry_over.rule_set,
                        self.carry_over_one(&carry_over, classes, members, rows),
                    );
                }
            }
        }
        stale_classes
    }

    /// Renames the default deny of the carried rule sets. Returns `false` if other rule sets use it.
    fn rename_deny(
        &mut self,
        before: &Arc<RuleOrigin>,
        changes: &[CarryOver<'_>],
        rows: &mut Rows,
        output: &mut TablesOutput,
    ) -> bool {
        let mut names = changes.iter().filter_map(|carry_over| carry_over.pod_direction.default_deny());
        let Some(next) = names.next().filter(|next| names.all(|name| name == *next)) else { return false };
        if next == **before {
            return true;
        }
        let next = Arc::new(next);
        if self.default_denies.contains_key(&next) || self.default_denies.get(before) != Some(&changes.len())
        {
            return false;
        }
        self.default_denies.remove(before);
        self.default_denies.insert(next.clone(), changes.len());
        rows.rename_rule(before, next, output);
        true
    }

    fn carry_over_one(
        &mut self,
        carry_over: &CarryOver<'_>,
        classes: &Classes,
        members: &mut Membership,
        rows: &mut Rows,
    ) -> Vec<ClassId> {
        let carried_over =
            self.get_mut(carry_over.rule_set).change_rules(&carry_over.pod_direction, classes, members, rows);
        self.reregister(carry_over.rule_set, &carried_over);
        self.keys.rename(carry_over.rule_set, carry_over.pod_direction.key());
        carried_over.stale_classes
    }
}

/// Direction of a pod for which the switch enforces policy.
fn pod_direction(store: &Store, slot: PodSlot, direction: Direction) -> Option<PodDirection<'_>> {
    let stored = store.live_pod(slot).filter(|stored| store.is_local(&stored.pod))?;
    Some(PodDirection::new(store, stored, direction))
}
