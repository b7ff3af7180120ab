//! RuleSets: the rules of one direction that some pods share, and what they come to for each class.
//!
//! A row depends only on the groups of a class that the rules name: the class as known from the rule_set. Many classes look
//! alike from one rule_set, so rows are painted once for each projection.

use std::collections::HashMap;
use std::sync::Arc;

use crate::ids::{AclId, ClassId, RowId};
use crate::policy::objects::ContainerPort;
use crate::policy::resolve::{
    AddressGroup, Membership, PodDirection, PortName, RuleIndex, RuleList, RuleSetKey,
};
use crate::policy::store::{GroupId, Interner, PodSlot, PortUseId, RuleSetId, Slot, sorted};
use crate::tables::{Acl, Row, RuleOrigin};

use super::classes::{Classes, class_key, groups_in};
use super::flatten::{flatten, intersect};
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
    names_any_peer_ports: bool,
    /// Rows by what the rule_set sees of a class, and how many classes look so.
    projections: HashMap<Box<[GroupId]>, ClassProjection, foldhash::fast::RandomState>,
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

/// What a rule_set that has other rules names and sees otherwise.
pub(super) struct CarriedOver {
    /// Groups that it names now.
    added: Vec<GroupId>,
    /// Groups that it named.
    dropped: Vec<GroupId>,
    /// Classes that the table may say something else of: the rule_set sees none of them until [`RuleSet::add_class`].
    pub(super) stale_classes: Vec<ClassId>,
}

impl RuleSet {
    /// A rule_set of nobody yet; its groups and uses of ports are interned and held.
    pub(crate) fn new(rules: RuleList, members: &mut Membership) -> RuleSet {
        let index = RuleIndex::of(&rules);
        let groups = index.groups();
        for &group in &groups {
            members.groups.acquire(group);
        }
        let asked = rules.port_uses();
        let names_any_peer_ports = asked.iter().any(|(group, _)| group.is_none());
        let mut names: Vec<PortName> = asked.iter().map(|(_, name)| name.clone()).collect();
        names.sort_unstable();
        names.dedup();
        let port_uses: Vec<PortUseId> =
            asked.into_iter().map(|asked| members.port_uses.intern(asked)).collect();
        for &port_use in &port_uses {
            members.port_uses.acquire(port_use);
        }
        RuleSet {
            index,
            rules,
            groups,
            names,
            port_uses,
            names_any_peer_ports,
            projections: HashMap::default(),
            default: RowId::default(),
            acl: AclId::default(),
            pods: Vec::new(),
        }
    }

    /// A pod gets the rule_set.
    pub(crate) fn add_pod(&mut self, pod: PodSlot) {
        sorted::insert(&mut self.pods, pod);
    }

    /// A pod has another rule_set.
    pub(crate) fn remove_pod(&mut self, pod: PodSlot) {
        sorted::remove(&mut self.pods, &pod);
    }

    /// The whole table, for all classes there are.
    pub(crate) fn compile(&mut self, classes: &Classes, members: &Membership, rows: &mut Rows) -> Acl {
        let mut names = RuleNames::default();
        self.default = self.add_projection(Vec::new(), members, rows, &mut names);
        let named = self.named_flags();
        let mut known: Vec<ClassId> =
            self.visible_groups(members).flat_map(|group| classes.in_group(group)).copied().collect();
        known.sort_unstable();
        known.dedup();
        let mut found = Vec::with_capacity(known.len());
        for class in known {
            let projection = self.projection(classes.groups(class), members, |group| {
                named.get(group.position()) == Some(&true)
            });
            if !projection.is_empty() {
                let row = self.add_projection(projection, members, rows, &mut names);
                if row != self.default {
                    found.push((class, row));
                }
            }
        }
        Acl { rows: found.into_iter().collect(), default: self.default }
    }

    /// A class added: the row that the table now has for it.
    pub(crate) fn add_class(
        &mut self,
        key: &[GroupId],
        members: &Membership,
        rows: &mut Rows,
    ) -> Option<RowId> {
        let projection = self.projection(key, members, |group| self.groups.binary_search(&group).is_ok());
        if projection.is_empty() {
            return None;
        }
        Some(self.add_projection(projection, members, rows, &mut RuleNames::default()))
            .filter(|&row| row != self.default)
    }

    /// A class dropped: whether the table had a row for it.
    pub(crate) fn remove_class(&mut self, key: &[GroupId], members: &Membership, rows: &mut Rows) -> bool {
        let projection = self.projection(key, members, |group| self.groups.binary_search(&group).is_ok());
        if projection.is_empty() {
            return false;
        }
        let known = self.projections.get_mut(&*projection).expect("a class that was there has a projection");
        let row = known.row;
        known.classes -= 1;
        if known.classes == 0 {
            self.projections.remove(&*projection);
            rows.release(row);
        }
        row != self.default
    }

    /// The rule_set gets the rules of a pod_direction, which differ plainly from those it has ([`PodDirection::differs_statically_from`]).
    pub(super) fn change_rules(
        &mut self,
        pod_direction: &PodDirection<'_>,
        classes: &Classes,
        members: &mut Membership,
        rows: &mut Rows,
    ) -> CarriedOver {
        let before = std::mem::take(&mut self.rules);
        let (rules, changed) = pod_direction.rules_reusing(before, &mut |group| members.groups.intern(group));
        let mut stale_classes: Vec<ClassId> =
            changed.iter().flat_map(|&group| classes.in_group(group)).copied().collect();
        stale_classes.sort_unstable();
        stale_classes.dedup();
        for &class in &stale_classes {
            self.remove_class(classes.groups(class), members, rows);
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
        let (added, dropped) = (missing(&self.groups, &groups), missing(&groups, &self.groups));
        added.iter().for_each(|&group| members.groups.acquire(group));
        dropped.iter().for_each(|&group| members.groups.release(group));
        self.groups = groups;
        CarriedOver { added, dropped, stale_classes }
    }

    /// The rule_set goes, and lets go of all it holds.
    pub(crate) fn release_all(self, members: &mut Membership, rows: &mut Rows) {
        for &group in &self.groups {
            members.groups.release(group);
        }
        for &port_use in &self.port_uses {
            members.port_uses.release(port_use);
        }
        for projection in self.projections.into_values() {
            rows.release(projection.row);
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

    /// The groups by which a class can be known.
    fn visible_groups<'a>(&'a self, members: &'a Membership) -> impl Iterator<Item = GroupId> {
        let ports = self.names_any_peer_ports.then(|| members.ports_of_pods());
        let asked = ports.into_iter().flatten().filter(|&group| self.names_port(group, members));
        self.groups.iter().copied().chain(asked)
    }

    fn names_port(&self, group: GroupId, members: &Membership) -> bool {
        match &**members.groups.key(group) {
            AddressGroup::Port { name, protocol, .. } => {
                self.names.iter().any(|asked| asked.is(name, *protocol))
            }
            _ => false,
        }
    }

    /// What the rule_set sees of a class. Nothing is what it sees of the rest of the world, and of a class in none of the groups that
    /// its rules name: ports that such a class has concern it only where rules ask for those of any peer. Of other classes it is not
    /// told when they come and go ([`RuleSets::affected_by`]).
    fn projection(
        &self,
        key: &[GroupId],
        members: &Membership,
        named: impl Fn(GroupId) -> bool,
    ) -> Vec<GroupId> {
        if !self.names_any_peer_ports && !groups_in(key).any(&named) {
            return Vec::new();
        }
        let visible =
            |&group: &GroupId| named(group) || (!self.names.is_empty() && self.names_port(group, members));
        if key.contains(&GroupId::OR) {
            let owners = key.split(|&group| group == GroupId::OR);
            return class_key(
                owners.map(|groups| groups.iter().copied().filter(visible).collect()).collect(),
            );
        }
        key.iter().copied().filter(visible).collect()
    }

    /// The row of a projection, with one class more that looks so.
    fn add_projection(
        &mut self,
        projection: Vec<GroupId>,
        members: &Membership,
        rows: &mut Rows,
        names: &mut RuleNames,
    ) -> RowId {
        if let Some(known) = self.projections.get_mut(&*projection) {
            known.classes += 1;
            return known.row;
        }
        let row = rows.acquire(self.flatten(&projection, members), &self.rules.origins, names);
        self.projections.insert(projection.into(), ClassProjection { row, classes: 1 });
        row
    }

    /// The row of a projection: where an address has several owners, what passes for each of them.
    fn flatten(&self, projection: &[GroupId], members: &Membership) -> Row {
        let owners = projection.split(|&group| group == GroupId::OR);
        let rows = owners.map(|groups| flatten(&self.rules, &self.index, groups, &ports_in(groups, members)));
        rows.reduce(|a, b| intersect(&a, &b)).expect("a split has one part at least")
    }
}

/// The rule_sets in use, and where they look.
#[derive(Debug, Default)]
pub(crate) struct RuleSets {
    pub(super) keys: Interner<RuleSetId, RuleSetKey>,
    by_id: Vec<Option<RuleSet>>,
    by_group: Vec<Vec<RuleSetId>>,
    naming_any_peer_ports: Vec<RuleSetId>,
    /// How many rule_sets deny by default under each name.
    pub(super) default_denies: HashMap<Arc<RuleOrigin>, usize, foldhash::fast::RandomState>,
}

impl RuleSets {
    /// The rule_set of pod_directions with this key, held once more; `pod_direction` makes one. It has its rules, but is not compiled before
    /// its birth is known by [`RuleSets::sweep`].
    pub(crate) fn acquire<'a>(
        &mut self,
        key: RuleSetKey,
        pod_direction: impl FnOnce() -> PodDirection<'a>,
        members: &mut Membership,
    ) -> RuleSetId {
        let id = self.keys.intern(key);
        self.keys.acquire(id);
        if self.by_id.len() <= id.position() {
            self.by_id.resize_with(id.position() + 1, || None);
        }
        if self.by_id[id.position()].is_none() {
            let rules = pod_direction().rules(&mut |group| members.groups.intern(group));
            if let Some(deny) = rules.default_deny() {
                *self.default_denies.entry(deny.clone()).or_default() += 1;
            }
            self.by_id[id.position()] = Some(RuleSet::new(rules, members));
        }
        id
    }

    /// A rule_set is held once less.
    pub(crate) fn release(&mut self, id: RuleSetId) {
        self.keys.release(id);
    }

    /// The rule_sets that added, not yet affected anywhere, and those that dropped, with what they were.
    pub(crate) fn sweep(&mut self) -> (Vec<RuleSetId>, Vec<(RuleSetId, RuleSet)>) {
        let swept = self.keys.sweep();
        let mut removed = Vec::new();
        for (id, _) in swept.removed {
            let rule_set = self.by_id[id.position()].take().expect("a rule set in use is there");
            for group in &rule_set.groups {
                sorted::remove(&mut self.by_group[group.position()], &id);
            }
            sorted::remove(&mut self.naming_any_peer_ports, &id);
            if let Some(deny) = rule_set.rules.default_deny() {
                let default_denies = self.default_denies.get_mut(deny).expect("it was counted");
                *default_denies -= 1;
                if *default_denies == 0 {
                    self.default_denies.remove(deny);
                }
            }
            removed.push((id, rule_set));
        }
        (swept.added, removed)
    }

    /// A rule_set begins to be told of classes that come and go.
    pub(crate) fn register(&mut self, id: RuleSetId) {
        let rule_set = self.by_id[id.position()].as_ref().expect("a rule set in use is there");
        for &group in &rule_set.groups {
            name(&mut self.by_group, group, id);
        }
        if rule_set.names_any_peer_ports {
            sorted::insert(&mut self.naming_any_peer_ports, id);
        }
    }

    /// A rule_set looks where its other rules make it look.
    pub(super) fn reregister(&mut self, id: RuleSetId, carried_over: &CarriedOver) {
        for group in &carried_over.dropped {
            sorted::remove(&mut self.by_group[group.position()], &id);
        }
        for &group in &carried_over.added {
            name(&mut self.by_group, group, id);
        }
    }

    /// The rule_sets that may see a class.
    pub(crate) fn affected_by(&self, key: &[GroupId], members: &Membership) -> Vec<RuleSetId> {
        let mut affected = Vec::new();
        for group in groups_in(key) {
            affected.extend(self.by_group.get(group.position()).into_iter().flatten().copied());
            if !self.naming_any_peer_ports.is_empty() && members.is_port_of_pods(group) {
                affected.extend(&self.naming_any_peer_ports);
            }
        }
        affected.sort_unstable();
        affected.dedup();
        affected
    }

    /// A rule_set in use.
    pub(crate) fn get_mut(&mut self, id: RuleSetId) -> &mut RuleSet {
        self.by_id[id.position()].as_mut().expect("a rule set in use is there")
    }

    /// A rule_set in use.
    pub(crate) fn get(&self, id: RuleSetId) -> &RuleSet {
        self.by_id[id.position()].as_ref().expect("a rule set in use is there")
    }
}

fn name(by_group: &mut Vec<Vec<RuleSetId>>, group: GroupId, id: RuleSetId) {
    if by_group.len() <= group.position() {
        by_group.resize_with(group.position() + 1, Vec::new);
    }
    sorted::insert(&mut by_group[group.position()], id);
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
