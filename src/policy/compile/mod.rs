//! Compile: groups and rules become rule tables, and stay right while objects change.
//!
//! Everything between the objects and the tables is a value that never changes, interned and counted: groups, classes
//! (the groups of an address), rule_sets (the rules of a pod), rows. A change to an object makes some of them and lets go
//! of others; what add_rule and goes is worked out in order, each step from the one before:
//!
//! 1. membership: which groups the affected namespaces, nodes and pods are in;
//! 2. pod_directions: which rule_sets the affected pods have, and so which groups rules name. Where all pods of a rule_set come to have
//!    the same other rules, the rule_set follows, and keeps what the rules that come and go are not about;
//! 3. groups that added or dropped: who is in them;
//! 4. classes of the addresses and prefixes so affected;
//! 5. rows and tables: each new class as each rule_set sees it, each new rule_set for all classes.
//!
//! A compile from scratch is the same with everything affected, from objects in order of name: so its numbers
//! follow from the content alone.

mod acls;
mod address_map;
mod carry_over;
mod classes;
mod flatten;
mod output;
mod rows;
mod rule_sets;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::objects::{Object, Pod};
use super::resolve::{AddressGroup, AddressOwner, Membership, PodDirection, RuleSetKey};
use super::store::{Affected, Change, GroupId, ObjectName, PodSlot, RuleSetId, Store, Sweep};
use crate::ids::ClassId;
use crate::tables::{Direction, PodName, PodPolicy, PolicyRef, RuleTables, TablesDiff};
use acls::AclTables;
use address_map::AddressMap;
use classes::Classes;
use output::{RowChanges, TablesOutput};
use rows::Rows;
use rule_sets::RuleSets;

/// What to compile for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// The node of the switch: only its pods get tables. `None`: every pod does.
    pub node: Option<String>,
}

/// The policy compiler: holds the objects, and the tables that follow from them.
#[derive(Debug)]
pub struct Compiler {
    store: Store,
    members: Membership,
    addresses: AddressMap,
    classes: Classes,
    rule_sets: RuleSets,
    acls: AclTables,
    rows: Rows,
    enforced: BTreeMap<PodSlot, EnforcedPod>,
    output: TablesOutput,
}

/// A pod that the tables assign_rule_sets.
#[derive(Debug)]
struct EnforcedPod {
    name: PodName,
    ingress: RuleSetId,
    egress: RuleSetId,
}

impl Compiler {
    /// A compiler without objects.
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

    /// Compiles objects from scratch: the same objects in any order give the same tables, numbers included. Of
    /// objects with the same name the last counts.
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

    /// Makes a change, and gives what it makes of the tables.
    pub fn apply(&mut self, change: Change) -> TablesDiff {
        self.apply_all([change])
    }

    /// Makes changes at once, and gives what they make of the tables.
    pub fn apply_all(&mut self, changes: impl IntoIterator<Item = Change>) -> TablesDiff {
        let mut affected = Affected::default();
        for change in changes {
            self.store.apply(change, &mut affected);
        }
        self.update(&affected);
        self.output.take_diff()
    }

    /// The tables.
    pub fn tables(&self) -> &RuleTables {
        self.output.tables()
    }

    /// The tables, for good.
    pub fn into_tables(self) -> RuleTables {
        self.output.into_tables()
    }

    /// Every pod, by name, whether policy can see it or not.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.store.pods()
    }

    /// The policies that assign_rule_sets a direction of a pod, in the order they are asked: admin tier, `NetworkPolicy`, or
    /// baseline tier where no `NetworkPolicy` isolates the pod. None for a pod that policy cannot see.
    pub fn policies_selecting(&self, pod: &PodName, direction: Direction) -> Vec<PolicyRef> {
        let stored = self.store.pod_slot(pod).and_then(|slot| self.store.live_pod(slot));
        stored.map_or_else(Vec::new, |stored| PodDirection::new(&self.store, stored, direction).policies())
    }

    /// The class of an address.
    pub fn class_of(&self, address: IpAddr) -> ClassId {
        self.addresses.class_of(address)
    }

    /// What a class is: the groups that its addresses are in, as far as rules of enforced pods name them; one list for each
    /// owner where several claim an address.
    pub fn groups_of_class(&self, class: ClassId) -> Vec<Vec<&AddressGroup>> {
        let owners = self.classes.groups(class).split(|&group| group == GroupId::OR);
        let named =
            |groups: &[GroupId]| groups.iter().map(|&group| &**self.members.groups.key(group)).collect();
        owners.map(named).collect()
    }

    fn update(&mut self, affected: &Affected) {
        self.update_members(affected);
        let pod_directions = self.pod_directions(affected);
        let stale_classes = self.follow_subjects(&pod_directions);
        for (pod, keys) in pod_directions {
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

    /// Step 1.
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

    /// Step 2: gives a pod the rule_sets that it is to have.
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
            // A pod that has removed and come back in one step may be in another slot by now, which publishes it.
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

    /// Step 3.
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
        // Classes that go below still speak of the groups that go here.
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

    /// Looks again at every address in a group that is in use, or at every address.
    fn mark_group(&mut self, group: Option<GroupId>) {
        let Some(group) = group else { return self.addresses.mark_all() };
        // A group that nobody holds goes in the same step, and touches its members then.
        let Some(group) = self.members.groups.get(group).cloned() else { return };
        if let AddressGroup::Block(block) = &*group {
            self.addresses.mark_prefix(block.cidr);
        }
        for owner in Membership::members(&self.store, &group) {
            self.addresses.mark(owner);
        }
    }

    /// Step 5, for the classes that added and dropped. Gives the rule_sets that have another table now.
    ///
    /// A class that a rule_set is to see anew is one that it does not see.
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

    /// Step 5, for the rule_sets that added.
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
