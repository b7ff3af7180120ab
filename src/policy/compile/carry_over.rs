//! RuleSets that follow: where all pods of one come to have the same other rules, it keeps its table, and only the classes that the
//! rules that come and go are about are looked at again.
//!
//! So a policy more beside one of a thousand rules is some entries of the tables, and not all of them. What is about everyone, or
//! asks for ports by name, changes any row: there the pods get a profile that is made from nothing.

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

/// A pod, and what its rules depend on, in and out, if it is to be judged.
pub(super) type AffectedPod = (PodSlot, Option<[RuleSetKey; 2]>);

/// What becomes of the pods of a profile.
#[derive(Default)]
struct DirectionChange<'a> {
    /// How many are touched.
    pods: usize,
    /// What the rules of one of them depend on now.
    next: Option<(&'a RuleSetKey, PodSlot)>,
    /// Whether those of another one depend on something else.
    differ: bool,
}

/// A profile all of whose pods come to have the same other rules.
struct CarryOver<'a> {
    /// The profile.
    profile: RuleSetId,
    /// The rules, as one of the pods has them.
    subject: PodDirection<'a>,
}

impl Compiler {
    /// Step 2: the touched pods, and what the rules of each depend on if it is to be judged.
    pub(super) fn subjects(&self, touched: &Affected) -> Vec<AffectedPod> {
        let key = |slot, direction| Some(subject(&self.store, slot, direction)?.key());
        let keys = |slot| Some([key(slot, Direction::Ingress)?, key(slot, Direction::Egress)?]);
        touched.pods.union(&touched.subjects).map(|&slot| (slot, keys(slot))).collect()
    }

    /// Step 2, for profiles that follow their pods. Gives the classes that they are to see anew.
    pub(super) fn follow_subjects(&mut self, touched: &[AffectedPod]) -> BTreeMap<RuleSetId, Vec<ClassId>> {
        let mut heirs: BTreeMap<RuleSetId, DirectionChange<'_>> = BTreeMap::new();
        for (slot, keys) in touched {
            let Some(judged) = self.judged.get(slot) else { continue };
            for (place, profile) in [judged.ingress, judged.egress].into_iter().enumerate() {
                let heirs = heirs.entry(profile).or_default();
                heirs.pods += 1;
                if let Some(keys) = keys {
                    let next = (&keys[place], *slot);
                    heirs.differ |= heirs.next.is_some_and(|(key, _)| key != next.0);
                    heirs.next = Some(next);
                }
            }
        }
        let mut taken: HashSet<&RuleSetKey> = HashSet::default();
        let mut following = Vec::new();
        for (id, heirs) in heirs {
            let Some((key, slot)) = heirs.next else { continue };
            if heirs.differ || heirs.pods < self.profiles.get(id).pods.len() {
                continue;
            }
            let subject =
                subject(&self.store, slot, key.direction()).expect("a touched pod with a key is judged");
            if self.profiles.can_follow(id, key, &subject) && taken.insert(key) {
                following.push(CarryOver { profile: id, subject });
            }
        }
        let (members, rows, output) = (&mut self.members, &mut self.rows, &mut self.output);
        self.profiles.follow(following, &self.classes, members, rows, output)
    }
}

impl RuleSets {
    /// Whether a profile can have the rules of a subject with this key rather than going: what differs is about some addresses.
    fn can_follow(&self, id: RuleSetId, key: &RuleSetKey, subject: &PodDirection<'_>) -> bool {
        self.keys.find(key).is_none()
            && self.keys.key(id).is_near(key)
            && subject.is_plainly_after(&self.get(id).rules)
    }

    /// Lets profiles that can follow do so: those whose rows remain what they are but for some classes. These are given by
    /// profile.
    ///
    /// Rows name the rule that denies by default, which is called after all policies that isolate a pod. So it gets another
    /// name in all rows at once, or the profile does not follow.
    fn follow(
        &mut self,
        heirs: Vec<CarryOver<'_>>,
        classes: &Classes,
        members: &mut Membership,
        rows: &mut Rows,
        output: &mut TablesOutput,
    ) -> BTreeMap<RuleSetId, Vec<ClassId>> {
        let mut by_deny: BTreeMap<Option<Arc<RuleOrigin>>, Vec<CarryOver<'_>>> = BTreeMap::new();
        for heir in heirs {
            let deny = self.get(heir.profile).rules.default_deny().cloned();
            by_deny.entry(deny).or_default().push(heir);
        }
        let mut unseen = BTreeMap::new();
        for (before, heirs) in by_deny {
            if before.is_none_or(|before| self.rename_deny(&before, &heirs, rows, output)) {
                for heir in heirs {
                    unseen.insert(heir.profile, self.follow_one(&heir, classes, members, rows));
                }
            }
        }
        unseen
    }

    /// Calls the rule that denies by default as it is called for the heirs, if there are no others who call it as it was.
    fn rename_deny(
        &mut self,
        before: &Arc<RuleOrigin>,
        heirs: &[CarryOver<'_>],
        rows: &mut Rows,
        output: &mut TablesOutput,
    ) -> bool {
        let mut names = heirs.iter().filter_map(|heir| heir.subject.default_deny());
        let Some(next) = names.next().filter(|next| names.all(|name| name == *next)) else { return false };
        if next == **before {
            return true;
        }
        let next = Arc::new(next);
        if self.denying.contains_key(&next) || self.denying.get(before) != Some(&heirs.len()) {
            return false;
        }
        self.denying.remove(before);
        self.denying.insert(next.clone(), heirs.len());
        rows.rename_rule(before, next, output);
        true
    }

    fn follow_one(
        &mut self,
        heir: &CarryOver<'_>,
        classes: &Classes,
        members: &mut Membership,
        rows: &mut Rows,
    ) -> Vec<ClassId> {
        let followed = self.get_mut(heir.profile).follow(&heir.subject, classes, members, rows);
        self.look_otherwise(heir.profile, &followed);
        self.keys.rename(heir.profile, heir.subject.key());
        followed.unseen
    }
}

/// What judges a direction of a pod, if it is one to be judged.
fn subject(store: &Store, slot: PodSlot, direction: Direction) -> Option<PodDirection<'_>> {
    let stored = store.live_pod(slot).filter(|stored| store.is_local(&stored.pod))?;
    Some(PodDirection::new(store, stored, direction))
}
