//! Rule sets: the rules of one direction that several pods share, and their row for each class.
//!
//! A row depends only on the groups of a class that the rules refer to: the projection of the class onto the
//! rule set. Many classes have the same projection, so rows are flattened once for each projection.

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

/// Rules of one direction that several pods share.
#[derive(Debug, Clone)]
pub(crate) struct RuleSet {
    pub(super) rules: RuleList,
    index: RuleIndex,
    /// Groups that the rules refer to, sorted.
    groups: Vec<GroupId>,
    /// Named ports of peers.
    names: Vec<PortName>,
    /// Acquired uses of the named ports.
    port_uses: Vec<PortUseId>,
    /// Indicates named ports in rules for any peer.
    names_any_peer_ports: bool,
    /// Rows by projection, with the number of classes that have it.
    projections: HashMap<Box<[GroupId]>, ClassProjection, foldhash::fast::RandomState>,
    /// Row of classes that the rules do not refer to.
    default: RowId,
    /// ACL table.
    pub(crate) acl: AclId,
    /// Pods with this rule set, sorted.
    pub(crate) pods: Vec<PodSlot>,
}

#[derive(Debug, Clone)]
struct ClassProjection {
    row: RowId,
    classes: u32,
}

/// Groups and classes that a carry-over changes.
pub(super) struct CarriedOver {
    /// Added groups.
    added: Vec<GroupId>,
    /// Removed groups.
    dropped: Vec<GroupId>,
    /// Stale classes: the table may need another row for them. They have no projection until
    /// [`RuleSet::add_class`].
    pub(super) stale_classes: Vec<ClassId>,
}

impl RuleSet {
    /// Creates a rule set without pods. Interns and acquires its groups and uses of named ports.
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

    /// Adds a pod.
    pub(crate) fn add_pod(&mut self, pod: PodSlot) {
        sorted::insert(&mut self.pods, pod);
    }

    /// Removes a pod.
    pub(crate) fn remove_pod(&mut self, pod: PodSlot) {
        sorted::remove(&mut self.pods, &pod);
    }

    /// Compiles the table for all classes.
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

    /// Adds a class. Returns its row, unless that is the default.
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

    /// Removes a class. Returns `true` if the table has a row for it.
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

    /// Replaces the rules by those of a pod direction, whose difference is static
    /// ([`PodDirection::differs_statically_from`]).
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

    /// Releases all references of a removed rule set.
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

    /// Flags by group position, as a fast set of the groups that the rules refer to.
    fn named_flags(&self) -> Vec<bool> {
        let mut flags = vec![false; self.groups.last().map_or(0, |last| last.position() + 1)];
        for group in &self.groups {
            flags[group.position()] = true;
        }
        flags
    }

    /// Groups that may occur in a projection.
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

    /// Projection of a class. It is empty for the world class, and for a class in none of the groups that the
    /// rules refer to: port groups of such a class matter only to rules that name ports of any peer. Other
    /// classes are not reported to the rule set ([`RuleSets::affected_by`]).
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

    /// Row of a projection. Adds one class to it.
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

    /// Row of a projection. If an address has several owners, the intersection of their rows.
    fn flatten(&self, projection: &[GroupId], members: &Membership) -> Row {
        let owners = projection.split(|&group| group == GroupId::OR);
        let rows = owners.map(|groups| flatten(&self.rules, &self.index, groups, &ports_in(groups, members)));
        rows.reduce(|a, b| intersect(&a, &b)).expect("a split has one part at least")
    }
}

/// Rule sets in use, indexed by group.
#[derive(Debug, Clone, Default)]
pub(crate) struct RuleSets {
    pub(super) keys: Interner<RuleSetId, RuleSetKey>,
    by_id: Vec<Option<RuleSet>>,
    by_group: Vec<Vec<RuleSetId>>,
    naming_any_peer_ports: Vec<RuleSetId>,
    /// Number of rule sets by the origin of their default deny.
    pub(super) default_denies: HashMap<Arc<RuleOrigin>, usize, foldhash::fast::RandomState>,
}

impl RuleSets {
    /// Acquires the rule set of a key; `pod_direction` creates it if necessary. A new rule set is compiled
    /// after [`RuleSets::sweep`] reports it.
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

    /// Releases a rule set.
    pub(crate) fn release(&mut self, id: RuleSetId) {
        self.keys.release(id);
    }

    /// Added rule sets, not yet registered, and removed ones.
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

    /// Registers a rule set for changes of classes.
    pub(crate) fn register(&mut self, id: RuleSetId) {
        let rule_set = self.by_id[id.position()].as_ref().expect("a rule set in use is there");
        for &group in &rule_set.groups {
            name(&mut self.by_group, group, id);
        }
        if rule_set.names_any_peer_ports {
            sorted::insert(&mut self.naming_any_peer_ports, id);
        }
    }

    /// Updates the registration after a carry-over.
    pub(super) fn reregister(&mut self, id: RuleSetId, carried_over: &CarriedOver) {
        for group in &carried_over.dropped {
            sorted::remove(&mut self.by_group[group.position()], &id);
        }
        for &group in &carried_over.added {
            name(&mut self.by_group, group, id);
        }
    }

    /// Rule sets that may have a projection of a class.
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

    /// Mutable rule set in use.
    pub(crate) fn get_mut(&mut self, id: RuleSetId) -> &mut RuleSet {
        self.by_id[id.position()].as_mut().expect("a rule set in use is there")
    }

    /// Rule set in use.
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

/// Ports of a pod in these groups, as far as rules name them.
fn ports_in(groups: &[GroupId], members: &Membership) -> Vec<ContainerPort> {
    let ports = groups.iter().filter_map(|&group| match &**members.groups.key(group) {
        AddressGroup::Port { name, protocol, number } => {
            Some(ContainerPort { name: Some(name.clone()), protocol: *protocol, port: *number })
        }
        _ => None,
    });
    ports.collect()
}
