//! Policy compiler: keeps rule tables current while objects change.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::acls::AclTables;
use super::address_map::AddressMap;
use super::carry_over::{AffectedPod, affected_pods, carry_overs};
use super::classes::Classes;
use super::enforced_pod::EnforcedPod;
use super::output::{RowChanges, TablesOutput};
use super::rows::Rows;
use super::rule_sets::RuleSets;
use crate::ids::ClassId;
use crate::policy::objects::{NetworkPolicy, Object, Pod};
use crate::policy::resolve::{AddressGroup, AddressOwner, Membership, PodDirection, RuleSetKey};
use crate::policy::store::{Affected, Change, GroupId, ObjectName, PodSlot, RuleSetId, Store, Sweep};
use crate::tables::{Direction, PodName, PodPolicy, PolicyRef, RuleTables, TablesDiff};

/// Options of a compiler.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Node of the switch; only its pods get tables. `None` compiles for all pods.
    pub node: Option<String>,
}

/// Objects, and the rule tables that follow from them.
#[derive(Debug, Clone)]
pub struct Compiler {
    pub(super) store: Store,
    pub(super) members: Membership,
    pub(super) addresses: AddressMap,
    pub(super) classes: Classes,
    pub(super) rule_sets: RuleSets,
    pub(super) acls: AclTables,
    pub(super) rows: Rows,
    pub(super) enforced: BTreeMap<PodSlot, EnforcedPod>,
    pub(super) output: TablesOutput,
}

impl Compiler {
    /// Compiler without objects.
    pub fn new(options: Options) -> Compiler {
        Compiler {
            store: Store::new(options.node),
            members: Membership::default(),
            addresses: AddressMap::default(),
            classes: Classes::new(),
            rule_sets: RuleSets::default(),
            acls: AclTables::default(),
            rows: Rows::default(),
            enforced: BTreeMap::new(),
            output: TablesOutput::default(),
        }
    }

    /// Compiles objects from scratch. The same objects in any order yield the same tables, ids included. Of
    /// objects with one name the last counts.
    pub fn from_objects(objects: impl IntoIterator<Item = Object>, options: Options) -> Compiler {
        let by_name: BTreeMap<ObjectName, Object> =
            objects.into_iter().map(|object| (ObjectName::of(&object), object)).collect();
        let mut compiler = Compiler::new(options);
        let mut affected = Affected::default();
        for object in by_name.into_values() {
            compiler.store.apply(Change::Upsert(object), &mut affected);
        }
        compiler.update(&affected);
        compiler.output.reset_diff();
        compiler
    }

    /// Applies a change. Returns the difference of the tables.
    pub fn apply(&mut self, change: Change) -> TablesDiff {
        self.apply_all([change])
    }

    /// Applies changes at once. Returns the difference of the tables.
    pub fn apply_all(&mut self, changes: impl IntoIterator<Item = Change>) -> TablesDiff {
        let mut affected = Affected::default();
        for change in changes {
            self.store.apply(change, &mut affected);
        }
        self.update(&affected);
        self.output.take_diff()
    }

    /// Rule tables.
    pub fn tables(&self) -> &RuleTables {
        self.output.tables()
    }

    /// Consumes the compiler and returns the tables.
    pub fn into_tables(self) -> RuleTables {
        self.output.into_tables()
    }

    /// Pods, by name, live or not.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.store.pods()
    }

    /// `NetworkPolicies` of a namespace, by name.
    pub fn network_policies(&self, namespace: &str) -> Vec<NetworkPolicy> {
        let found = self.store.namespace_slot(namespace).and_then(|slot| self.store.namespace(slot));
        found.map_or_else(Vec::new, |found| {
            found.policies.values().map(|entry| entry.policy.clone()).collect()
        })
    }

    /// Policies that select a pod for a direction, in the order of evaluation: admin tier, then
    /// `NetworkPolicy`, or the baseline tier if no `NetworkPolicy` isolates the pod. Empty for a pod to which
    /// no policy applies.
    pub fn policies_selecting(&self, pod: &PodName, direction: Direction) -> Vec<PolicyRef> {
        let stored = self.store.pod_slot(pod).and_then(|slot| self.store.live_pod(slot));
        stored.map_or_else(Vec::new, |stored| PodDirection::new(&self.store, stored, direction).policies())
    }

    /// Class of an address.
    pub fn class_of(&self, address: IpAddr) -> ClassId {
        self.addresses.class_of(address)
    }

    /// Groups of a class, as far as rules of enforced pods refer to them; one list for each owner if several
    /// claim an address.
    pub fn groups_of_class(&self, class: ClassId) -> Vec<Vec<&AddressGroup>> {
        let owners = self.classes.groups(class).split(|&group| group == GroupId::OR);
        let named =
            |groups: &[GroupId]| groups.iter().map(|&group| &**self.members.groups.key(group)).collect();
        owners.map(named).collect()
    }

    fn update(&mut self, affected: &Affected) {
        self.update_members(affected);
        let affected_pods = affected_pods(&self.store, affected);
        let stale_classes = self.carry_over(&affected_pods);
        for (pod, keys) in affected_pods {
            self.assign_rule_sets(pod, keys);
        }
        let (added, removed) = self.rule_sets.sweep();
        for (id, rule_set) in removed {
            self.acls.detach(id, rule_set.acl);
            rule_set.release_all(&mut self.members, &mut self.rows);
        }
        self.update_groups();
        self.addresses.update(&self.store, &mut self.members, &mut self.classes, &mut self.output);
        let moved = self.update_classes(stale_classes);
        self.compile_rule_sets(&added);
        for rule_set in moved.into_iter().chain(added) {
            for pod in self.rule_sets.get(rule_set).pods.clone() {
                self.publish_pod(pod);
            }
        }
        for &pod in affected.pods.union(&affected.reselected_pods) {
            self.publish_pod(pod);
        }
        self.acls.sweep(&mut self.output);
        self.rows.sweep(&mut self.output);
        self.members.sweep_ports();
    }

    /// Step 2, for rule sets that carry over. Returns their stale classes.
    fn carry_over(&mut self, affected: &[AffectedPod]) -> BTreeMap<RuleSetId, Vec<ClassId>> {
        let carried = carry_overs(&self.store, &self.enforced, &self.rule_sets, affected);
        let (members, rows, output) = (&mut self.members, &mut self.rows, &mut self.output);
        self.rule_sets.carry_over(carried, &self.classes, members, rows, output)
    }

    /// Step 1: updates the membership of affected namespaces, nodes and pods.
    fn update_members(&mut self, affected: &Affected) {
        for &slot in &affected.namespaces {
            self.members.refresh_namespace(&self.store, slot);
        }
        for &slot in &affected.nodes {
            self.members.refresh_node(&self.store, slot);
            let addresses = self.store.node(slot).map_or(&[][..], |node| &node.addresses);
            self.addresses.set_addresses(AddressOwner::Node(slot), addresses);
        }
        for &slot in &affected.pods {
            self.members.refresh_pod(&self.store, slot);
            let addresses = self.store.live_pod(slot).map_or(&[][..], |stored| &stored.pod.addresses);
            self.addresses.set_addresses(AddressOwner::Pod(slot), addresses);
        }
    }

    /// Step 2: assigns rule sets to a pod.
    fn assign_rule_sets(&mut self, slot: PodSlot, keys: Option<[RuleSetKey; 2]>) {
        let store = &self.store;
        let next = keys.map(|[ingress, egress]| {
            let stored = store.live_pod(slot).expect("an enforced pod is live");
            let mut acquire = |key, direction| {
                self.rule_sets.acquire(key, || PodDirection::new(store, stored, direction), &mut self.members)
            };
            let [ingress, egress] =
                [acquire(ingress, Direction::Ingress), acquire(egress, Direction::Egress)];
            EnforcedPod { name: stored.pod.name.clone(), ingress, egress }
        });
        if let Some(before) = self.enforced.remove(&slot) {
            for rule_set in [before.ingress, before.egress] {
                self.rule_sets.get_mut(rule_set).remove_pod(slot);
                self.rule_sets.release(rule_set);
            }
            // A pod that was removed and added in one step may have another slot, which publishes it.
            if !store.enforces(&before.name) {
                self.output.set_pod(before.name, None);
            }
        }
        if let Some(next) = next {
            for rule_set in [next.ingress, next.egress] {
                self.rule_sets.get_mut(rule_set).add_pod(slot);
            }
            self.enforced.insert(slot, next);
        }
    }

    /// Step 3: updates the members of added and removed groups.
    fn update_groups(&mut self) {
        let Sweep { added, removed } = self.members.port_uses.sweep();
        for (_, asked) in removed {
            self.members.remove_port_name(asked.0, &asked.1);
            self.mark_group(asked.0);
        }
        for id in added {
            let asked = self.members.port_uses.key(id).clone();
            self.members.add_port_name(asked.0, asked.1.clone());
            self.mark_group(asked.0);
        }
        // Removed classes below still refer to the removed groups.
        let Sweep { added, removed } = self.members.groups.retire();
        for (id, group) in removed {
            if let AddressGroup::Block(block) = &*group {
                self.addresses.remove_block(id, block);
            }
            let members = self.members.remove_members(&self.store, id, &group);
            for owner in members {
                self.addresses.mark(owner);
            }
        }
        for id in added {
            let group = self.members.groups.key(id).clone();
            if let AddressGroup::Block(block) = &*group {
                self.addresses.insert_block(id, block);
            }
            let members = self.members.add_members(&self.store, id, &group);
            for owner in members {
                self.addresses.mark(owner);
            }
        }
    }

    /// Marks the addresses of a group, or all addresses, as dirty.
    fn mark_group(&mut self, group: Option<GroupId>) {
        let Some(group) = group else { return self.addresses.mark_all() };
        // An unreferenced group is removed in the same step, which marks its members.
        let Some(group) = self.members.groups.get(group).cloned() else { return };
        if let AddressGroup::Block(block) = &*group {
            self.addresses.mark_prefix(block.cidr);
        }
        for owner in Membership::members(&self.store, &group) {
            self.addresses.mark(owner);
        }
    }

    /// Step 5, for added and removed classes. Returns the rule sets that have another table.
    ///
    /// A rule set has no projection of its stale classes.
    fn update_classes(&mut self, stale_classes: BTreeMap<RuleSetId, Vec<ClassId>>) -> Vec<RuleSetId> {
        let Sweep { added, removed } = self.classes.sweep();
        let mut changes: BTreeMap<RuleSetId, RowChanges> = BTreeMap::new();
        for (class, key) in removed {
            for rule_set in self.rule_sets.affected_by(&key, &self.members) {
                if stale_classes.get(&rule_set).is_some_and(|classes| classes.binary_search(&class).is_ok()) {
                    continue;
                }
                if self.rule_sets.get_mut(rule_set).remove_class(&key, &self.members, &mut self.rows) {
                    changes.entry(rule_set).or_default().insert(class, None);
                }
            }
            self.members.release_ports(&key);
        }
        for class in added {
            let key = self.classes.groups(class);
            self.members.acquire_ports(key);
            for rule_set in self.rule_sets.affected_by(key, &self.members) {
                let row = self.rule_sets.get_mut(rule_set).add_class(key, &self.members, &mut self.rows);
                if row.is_some() {
                    changes.entry(rule_set).or_default().insert(class, row);
                }
            }
        }
        for (id, classes) in stale_classes {
            let rule_set = self.rule_sets.get_mut(id);
            let acl = &self.output.tables().acls[&rule_set.acl];
            for class in classes {
                let row = self
                    .classes
                    .get(class)
                    .and_then(|key| rule_set.add_class(key, &self.members, &mut self.rows));
                if row.as_ref() != acl.rows.get(&class) {
                    changes.entry(id).or_default().insert(class, row);
                }
            }
        }
        let of = |(rule_set, rows)| (rule_set, (self.rule_sets.get(rule_set).acl, rows));
        let changes = changes.into_iter().map(of).collect();
        let moved = self.acls.change(changes, &mut self.output);
        for &(rule_set, acl) in &moved {
            self.rule_sets.get_mut(rule_set).acl = acl;
        }
        moved.into_iter().map(|(rule_set, _)| rule_set).collect()
    }

    /// Step 5, for added rule sets.
    fn compile_rule_sets(&mut self, added: &[RuleSetId]) {
        for &id in added {
            let rule_set = self.rule_sets.get_mut(id);
            let acl = rule_set.compile(&self.classes, &self.members, &mut self.rows);
            let acl = self.acls.attach(id, acl, &mut self.output);
            rule_set.acl = acl;
            self.rule_sets.register(id);
        }
    }

    fn publish_pod(&mut self, slot: PodSlot) {
        let Some(enforced) = self.enforced.get(&slot) else { return };
        let stored = self.store.live_pod(slot).expect("an enforced pod is live");
        let mut addresses = stored.pod.addresses.clone();
        addresses.sort_unstable();
        addresses.dedup();
        let [ingress, egress] =
            [enforced.ingress, enforced.egress].map(|rule_set| self.rule_sets.get(rule_set).acl);
        self.output.set_pod(enforced.name.clone(), Some(PodPolicy { addresses, ingress, egress }));
    }
}
