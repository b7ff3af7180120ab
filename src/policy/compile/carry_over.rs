//! RuleSets that follow: where all pods of one come to have the same other rules, it keeps its table, and only the classes that the
//! rules that come and go are about are looked at again.
//!
//! So a policy more beside one of a thousand rules is some entries of the tables, and not all of them. What is about everyone, or
//! asks for ports by name, changes any row: there the pods get a rule_set that is made from nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::HashSet;

use super::Compiler;
use super::classes::Classes;
use super::output::TablesOutput;
use super::rows::Rows;
use super::rule_sets::RuleSets;
use crate::ids::ClassId;
use crate::policy::resolve::{Membership, PodDirection, RuleSetKey};
use crate::policy::store::{Affected, PodSlot, RuleSetId, Store};
use crate::tables::{Direction, RuleOrigin};

/// A pod, and what its rules depend on, in and out, if it is to be enforced.
pub(super) type AffectedPod = (PodSlot, Option<[RuleSetKey; 2]>);

/// What becomes of the pods of a rule_set.
#[derive(Default)]
struct DirectionChange<'a> {
    /// How many are affected.
    pods: usize,
    /// What the rules of one of them depend on now.
    next: Option<(&'a RuleSetKey, PodSlot)>,
    /// Whether those of another one depend on something else.
    differ: bool,
}

/// A rule_set all of whose pods come to have the same other rules.
struct CarryOver<'a> {
    /// The rule_set.
    rule_set: RuleSetId,
    /// The rules, as one of the pods has them.
    pod_direction: PodDirection<'a>,
}

impl Compiler {
    /// Step 2: the affected pods, and what the rules of each depend on if it is to be enforced.
    pub(super) fn pod_directions(&self, affected: &Affected) -> Vec<AffectedPod> {
        let key = |slot, direction| Some(pod_direction(&self.store, slot, direction)?.key());
        let keys = |slot| Some([key(slot, Direction::Ingress)?, key(slot, Direction::Egress)?]);
        affected.pods.union(&affected.reselected_pods).map(|&slot| (slot, keys(slot))).collect()
    }

    /// Step 2, for rule_sets that follow their pods. Gives the classes that they are to see anew.
    pub(super) fn follow_subjects(&mut self, affected: &[AffectedPod]) -> BTreeMap<RuleSetId, Vec<ClassId>> {
        let mut changes: BTreeMap<RuleSetId, DirectionChange<'_>> = BTreeMap::new();
        for (slot, keys) in affected {
            let Some(enforced) = self.enforced.get(slot) else { continue };
            for (place, rule_set) in [enforced.ingress, enforced.egress].into_iter().enumerate() {
                let changes = changes.entry(rule_set).or_default();
                changes.pods += 1;
                if let Some(keys) = keys {
                    let next = (&keys[place], *slot);
                    changes.differ |= changes.next.is_some_and(|(key, _)| key != next.0);
                    changes.next = Some(next);
                }
            }
        }
        let mut taken: HashSet<&RuleSetKey> = HashSet::default();
        let mut carried = Vec::new();
        for (id, changes) in changes {
            let Some((key, slot)) = changes.next else { continue };
            if changes.differ || changes.pods < self.rule_sets.get(id).pods.len() {
                continue;
            }
            let pod_direction = pod_direction(&self.store, slot, key.direction())
                .expect("an affected pod with a key is enforced");
            if self.rule_sets.can_carry_over(id, key, &pod_direction) && taken.insert(key) {
                carried.push(CarryOver { rule_set: id, pod_direction });
            }
        }
        let (members, rows, output) = (&mut self.members, &mut self.rows, &mut self.output);
        self.rule_sets.carry_over(carried, &self.classes, members, rows, output)
    }
}

impl RuleSets {
    /// Whether a rule_set can have the rules of a pod_direction with this key rather than going: what differs is about some addresses.
    fn can_carry_over(&self, id: RuleSetId, key: &RuleSetKey, pod_direction: &PodDirection<'_>) -> bool {
        self.keys.find(key).is_none()
            && self.keys.key(id).differs_only_in_policies(key)
            && pod_direction.differs_statically_from(&self.get(id).rules)
    }

    /// Lets rule_sets that can follow do so: those whose rows remain what they are but for some classes. These are given by
    /// rule_set.
    ///
    /// Rows name the rule that denies by default, which is called after all policies that isolate a pod. So it gets another
    /// name in all rows at once, or the rule_set does not follow.
    fn carry_over(
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

    /// Calls the rule that denies by default as it is called for the changes, if there are no others who call it as it was.
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

/// What judges a direction of a pod, if it is one to be enforced.
fn pod_direction(store: &Store, slot: PodSlot, direction: Direction) -> Option<PodDirection<'_>> {
    let stored = store.live_pod(slot).filter(|stored| store.is_local(&stored.pod))?;
    Some(PodDirection::new(store, stored, direction))
}
