//! RuleSets: the rules of one direction that some pods share, and what they come to for each class.
//!
//! A row depends only on the groups of a class that the rules name: the class as seen from the profile. Many classes look
//! alike from one profile, so rows are painted once for each sight.

use std::collections::HashMap;
use std::sync::Arc;

use crate::ids::{AclId, ClassId, RowId};
use crate::policy::objects::ContainerPort;
use crate::policy::resolve::{
    AddressGroup, Membership, PodDirection, PortName, RuleIndex, RuleList, RuleSetKey,
};
use crate::policy::store::{GroupId, Interner, PodSlot, PortUseId, RuleSetId, Slot, sorted};
use crate::tables::{Acl, Row, RuleOrigin};

use super::classes::{Classes, distinct, join};
use super::flatten::{meet, paint};
use super::rows::{Rows, RuleNames};

/// The rules of one direction that some pods share.
#[derive(Debug)]
pub(crate) struct RuleSet {
    pub(super) rules: RuleList,
    index: RuleIndex,
    /// Groups that the rules name, sorted.
    groups: Vec<GroupId>,
    /// Ports of peers that the rules ask for by name.
    names: Vec<PortName>,
    /// The same, as they are held.
    port_uses: Vec<PortUseId>,
    /// Whether rules ask for ports of any peer by name.
    asks_everyone: bool,
    /// Rows by what the profile sees of a class, and how many classes look so.
    sights: HashMap<Box<[GroupId]>, ClassProjection, foldhash::fast::RandomState>,
    /// The row of classes that the rules do not name.
    default: RowId,
    /// Its table.
    pub(crate) acl: AclId,
    /// Pods that have it, sorted.
    pub(crate) pods: Vec<PodSlot>,
}

#[derive(Debug)]
struct ClassProjection {
    row: RowId,
    classes: u32,
}

/// What a profile that has other rules names and sees otherwise.
pub(super) struct CarriedOver {
    /// Groups that it names now.
    came: Vec<GroupId>,
    /// Groups that it named.
    went: Vec<GroupId>,
    /// Classes that the table may say something else of: the profile sees none of them until [`RuleSet::class_born`].
    pub(super) unseen: Vec<ClassId>,
}

impl RuleSet {
    /// A profile of nobody yet; its groups and uses of ports are interned and held.
    pub(crate) fn new(rules: RuleList, members: &mut Membership) -> RuleSet {
        let index = RuleIndex::of(&rules);
        let groups = index.groups();
        for &group in &groups {
            members.groups.hold(group);
        }
        let asked = rules.port_uses();
        let asks_everyone = asked.iter().any(|(group, _)| group.is_none());
        let mut names: Vec<PortName> = asked.iter().map(|(_, name)| name.clone()).collect();
        names.sort_unstable();
        names.dedup();
        let port_uses: Vec<PortUseId> =
            asked.into_iter().map(|asked| members.port_uses.intern(asked)).collect();
        for &port_use in &port_uses {
            members.port_uses.hold(port_use);
        }
        RuleSet {
            index,
            rules,
            groups,
            names,
            port_uses,
            asks_everyone,
            sights: HashMap::default(),
            default: RowId::default(),
            acl: AclId::default(),
            pods: Vec::new(),
        }
    }

    /// A pod gets the profile.
    pub(crate) fn add_pod(&mut self, pod: PodSlot) {
        sorted::insert(&mut self.pods, pod);
    }

    /// A pod has another profile.
    pub(crate) fn remove_pod(&mut self, pod: PodSlot) {
        sorted::remove(&mut self.pods, &pod);
    }

    /// The whole table, for all classes there are.
    pub(crate) fn compile(&mut self, classes: &Classes, members: &Membership, rows: &mut Rows) -> Acl {
        let mut names = RuleNames::default();
        self.default = self.enter(Vec::new(), members, rows, &mut names);
        let named = self.named_flags();
        let mut seen: Vec<ClassId> =
            self.visible_groups(members).flat_map(|group| classes.in_group(group)).copied().collect();
        seen.sort_unstable();
        seen.dedup();
        let mut found = Vec::with_capacity(seen.len());
        for class in seen {
            let sight = self
                .sight(classes.groups(class), members, |group| named.get(group.position()) == Some(&true));
            if !sight.is_empty() {
                let row = self.enter(sight, members, rows, &mut names);
                if row != self.default {
                    found.push((class, row));
                }
            }
        }
        Acl { rows: found.into_iter().collect(), default: self.default }
    }

    /// A class came: the row that the table now has for it.
    pub(crate) fn class_born(
        &mut self,
        key: &[GroupId],
        members: &Membership,
        rows: &mut Rows,
    ) -> Option<RowId> {
        let sight = self.sight(key, members, |group| self.groups.binary_search(&group).is_ok());
        if sight.is_empty() {
            return None;
        }
        Some(self.enter(sight, members, rows, &mut RuleNames::default())).filter(|&row| row != self.default)
    }

    /// A class went: whether the table had a row for it.
    pub(crate) fn class_gone(&mut self, key: &[GroupId], members: &Membership, rows: &mut Rows) -> bool {
        let sight = self.sight(key, members, |group| self.groups.binary_search(&group).is_ok());
        if sight.is_empty() {
            return false;
        }
        let seen = self.sights.get_mut(&*sight).expect("a class that was there was seen");
        let row = seen.row;
        seen.classes -= 1;
        if seen.classes == 0 {
            self.sights.remove(&*sight);
            rows.release(row);
        }
        row != self.default
    }

    /// The profile gets the rules of a subject, which differ plainly from those it has ([`PodDirection::is_plainly_after`]).
    pub(super) fn follow(
        &mut self,
        subject: &PodDirection<'_>,
        classes: &Classes,
        members: &mut Membership,
        rows: &mut Rows,
    ) -> CarriedOver {
        let before = std::mem::take(&mut self.rules);
        let (rules, changed) = subject.follow(before, &mut |group| members.groups.intern(group));
        let mut unseen: Vec<ClassId> =
            changed.iter().flat_map(|&group| classes.in_group(group)).copied().collect();
        unseen.sort_unstable();
        unseen.dedup();
        for &class in &unseen {
            self.class_gone(classes.groups(class), members, rows);
        }
        self.index = RuleIndex::of(&rules);
        self.rules = rules;
        let groups = self.index.groups();
        let missing = |one: &[GroupId], other: &[GroupId]| -> Vec<GroupId> {
            changed
                .iter()
                .filter(|group| one.binary_search(group).is_err() && other.binary_search(group).is_ok())
                .copied()
                .collect()
        };
        let (came, went) = (missing(&self.groups, &groups), missing(&groups, &self.groups));
        came.iter().for_each(|&group| members.groups.hold(group));
        went.iter().for_each(|&group| members.groups.release(group));
        self.groups = groups;
        CarriedOver { came, went, unseen }
    }

    /// The profile goes, and lets go of all it holds.
    pub(crate) fn dissolve(self, members: &mut Membership, rows: &mut Rows) {
        for &group in &self.groups {
            members.groups.release(group);
        }
        for &port_use in &self.port_uses {
            members.port_uses.release(port_use);
        }
        for sight in self.sights.into_values() {
            rows.release(sight.row);
        }
    }

    /// Whether the rules name a group, by its position: for asking often.
    fn named_flags(&self) -> Vec<bool> {
        let mut flags = vec![false; self.groups.last().map_or(0, |last| last.position() + 1)];
        for group in &self.groups {
            flags[group.position()] = true;
        }
        flags
    }

    /// The groups by which a class can be seen.
    fn visible_groups<'a>(&'a self, members: &'a Membership) -> impl Iterator<Item = GroupId> {
        let ports = self.asks_everyone.then(|| members.ports_of_pods());
        let asked = ports.into_iter().flatten().filter(|&group| self.asks_for(group, members));
        self.groups.iter().copied().chain(asked)
    }

    fn asks_for(&self, group: GroupId, members: &Membership) -> bool {
        match &**members.groups.key(group) {
            AddressGroup::Port { name, protocol, .. } => {
                self.names.iter().any(|asked| asked.is(name, *protocol))
            }
            _ => false,
        }
    }

    /// What the profile sees of a class. Nothing is what it sees of the rest of the world, and of a class in none of the groups that
    /// its rules name: ports that such a class has concern it only where rules ask for those of any peer. Of other classes it is not
    /// told when they come and go ([`RuleSets::looking_at`]).
    fn sight(&self, key: &[GroupId], members: &Membership, named: impl Fn(GroupId) -> bool) -> Vec<GroupId> {
        if !self.asks_everyone && !distinct(key).any(&named) {
            return Vec::new();
        }
        let visible =
            |&group: &GroupId| named(group) || (!self.names.is_empty() && self.asks_for(group, members));
        if key.contains(&GroupId::OR) {
            let holders = key.split(|&group| group == GroupId::OR);
            return join(holders.map(|groups| groups.iter().copied().filter(visible).collect()).collect());
        }
        key.iter().copied().filter(visible).collect()
    }

    /// The row of a sight, with one class more that looks so.
    fn enter(
        &mut self,
        sight: Vec<GroupId>,
        members: &Membership,
        rows: &mut Rows,
        names: &mut RuleNames,
    ) -> RowId {
        if let Some(seen) = self.sights.get_mut(&*sight) {
            seen.classes += 1;
            return seen.row;
        }
        let row = rows.hold(self.paint(&sight, members), &self.rules.origins, names);
        self.sights.insert(sight.into(), ClassProjection { row, classes: 1 });
        row
    }

    /// The row of a sight: where an address has several holders, what passes for each of them.
    fn paint(&self, sight: &[GroupId], members: &Membership) -> Row {
        let holders = sight.split(|&group| group == GroupId::OR);
        let rows = holders.map(|groups| paint(&self.rules, &self.index, groups, &ports_in(groups, members)));
        rows.reduce(|a, b| meet(&a, &b)).expect("a split has one part at least")
    }
}

/// The profiles in use, and where they look.
#[derive(Debug, Default)]
pub(crate) struct RuleSets {
    pub(super) keys: Interner<RuleSetId, RuleSetKey>,
    by_id: Vec<Option<RuleSet>>,
    naming: Vec<Vec<RuleSetId>>,
    asking_everyone: Vec<RuleSetId>,
    /// How many profiles deny by default under each name.
    pub(super) denying: HashMap<Arc<RuleOrigin>, usize, foldhash::fast::RandomState>,
}

impl RuleSets {
    /// The profile of subjects with this key, held once more; `subject` makes one. It has its rules, but is not compiled before
    /// its birth is seen by [`RuleSets::sweep`].
    pub(crate) fn hold<'a>(
        &mut self,
        key: RuleSetKey,
        subject: impl FnOnce() -> PodDirection<'a>,
        members: &mut Membership,
    ) -> RuleSetId {
        let id = self.keys.intern(key);
        self.keys.hold(id);
        if self.by_id.len() <= id.position() {
            self.by_id.resize_with(id.position() + 1, || None);
        }
        if self.by_id[id.position()].is_none() {
            let rules = subject().rules(&mut |group| members.groups.intern(group));
            if let Some(deny) = rules.default_deny() {
                *self.denying.entry(deny.clone()).or_default() += 1;
            }
            self.by_id[id.position()] = Some(RuleSet::new(rules, members));
        }
        id
    }

    /// A profile is held once less.
    pub(crate) fn release(&mut self, id: RuleSetId) {
        self.keys.release(id);
    }

    /// The profiles that came, not yet looking anywhere, and those that went, with what they were.
    pub(crate) fn sweep(&mut self) -> (Vec<RuleSetId>, Vec<(RuleSetId, RuleSet)>) {
        let swept = self.keys.sweep();
        let mut gone = Vec::new();
        for (id, _) in swept.gone {
            let profile = self.by_id[id.position()].take().expect("a profile in use is there");
            for group in &profile.groups {
                sorted::remove(&mut self.naming[group.position()], &id);
            }
            sorted::remove(&mut self.asking_everyone, &id);
            if let Some(deny) = profile.rules.default_deny() {
                let denying = self.denying.get_mut(deny).expect("it was counted");
                *denying -= 1;
                if *denying == 0 {
                    self.denying.remove(deny);
                }
            }
            gone.push((id, profile));
        }
        (swept.born, gone)
    }

    /// A profile begins to be told of classes that come and go.
    pub(crate) fn look(&mut self, id: RuleSetId) {
        let profile = self.by_id[id.position()].as_ref().expect("a profile in use is there");
        for &group in &profile.groups {
            name(&mut self.naming, group, id);
        }
        if profile.asks_everyone {
            sorted::insert(&mut self.asking_everyone, id);
        }
    }

    /// A profile looks where its other rules make it look.
    pub(super) fn look_otherwise(&mut self, id: RuleSetId, followed: &CarriedOver) {
        for group in &followed.went {
            sorted::remove(&mut self.naming[group.position()], &id);
        }
        for &group in &followed.came {
            name(&mut self.naming, group, id);
        }
    }

    /// The profiles that may see a class.
    pub(crate) fn looking_at(&self, key: &[GroupId], members: &Membership) -> Vec<RuleSetId> {
        let mut looking = Vec::new();
        for group in distinct(key) {
            looking.extend(self.naming.get(group.position()).into_iter().flatten().copied());
            if !self.asking_everyone.is_empty() && members.is_port_of_pods(group) {
                looking.extend(&self.asking_everyone);
            }
        }
        looking.sort_unstable();
        looking.dedup();
        looking
    }

    /// A profile in use.
    pub(crate) fn get_mut(&mut self, id: RuleSetId) -> &mut RuleSet {
        self.by_id[id.position()].as_mut().expect("a profile in use is there")
    }

    /// A profile in use.
    pub(crate) fn get(&self, id: RuleSetId) -> &RuleSet {
        self.by_id[id.position()].as_ref().expect("a profile in use is there")
    }
}

fn name(naming: &mut Vec<Vec<RuleSetId>>, group: GroupId, id: RuleSetId) {
    if naming.len() <= group.position() {
        naming.resize_with(group.position() + 1, Vec::new);
    }
    sorted::insert(&mut naming[group.position()], id);
}

/// The ports of a pod in these groups, as far as rules ask for them.
fn ports_in(groups: &[GroupId], members: &Membership) -> Vec<ContainerPort> {
    let ports = groups.iter().filter_map(|&group| match &**members.groups.key(group) {
        AddressGroup::Port { name, protocol, number } => {
            Some(ContainerPort { name: Some(name.clone()), protocol: *protocol, port: *number })
        }
        _ => None,
    });
    ports.collect()
}
