//! Compile: groups and rules become rule tables, and stay right while objects change.
//!
//! Everything between the objects and the tables is a value that never changes, interned and counted: groups, classes
//! (the groups of an address), profiles (the rules of a pod), rows. A change to an object makes some of them and lets go
//! of others; what comes and goes is worked out in order, each step from the one before:
//!
//! 1. membership: which groups the touched namespaces, nodes and pods are in;
//! 2. subjects: which profiles the touched pods have, and so which groups rules name. Where all pods of a profile come to have
//!    the same other rules, the profile follows, and keeps what the rules that come and go are not about;
//! 3. groups that came or went: who is in them;
//! 4. classes of the addresses and prefixes so touched;
//! 5. rows and tables: each new class as each profile sees it, each new profile for all classes.
//!
//! A compile from scratch is the same with everything touched, from objects in order of name: so its numbers
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
    profiles: RuleSets,
    acls: AclTables,
    rows: Rows,
    judged: BTreeMap<PodSlot, EnforcedPod>,
    output: TablesOutput,
}

/// A pod that the tables judge.
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
            profiles: RuleSets::default(),
            acls: AclTables::default(),
            rows: Rows::default(),
            judged: BTreeMap::new(),
            output: TablesOutput::default(),
        }
    }

    /// Compiles objects from scratch: the same objects in any order give the same tables, numbers included. Of
    /// objects with the same name the last counts.
    pub fn from_objects(objects: impl IntoIterator<Item = Object>, options: Options) -> Compiler {
        let by_name: BTreeMap<ObjectName, Object> =
            objects.into_iter().map(|object| (ObjectName::of(&object), object)).collect();
        let mut compiler = Compiler::new(options);
        let mut touched = Affected::default();
        for object in by_name.into_values() {
            compiler.store.apply(Change::Upsert(object), &mut touched);
        }
        compiler.settle(&touched);
        compiler.output.forget_difference();
        compiler
    }

    /// Makes a change, and gives what it makes of the tables.
    pub fn apply(&mut self, change: Change) -> TablesDiff {
        self.apply_all([change])
    }

    /// Makes changes at once, and gives what they make of the tables.
    pub fn apply_all(&mut self, changes: impl IntoIterator<Item = Change>) -> TablesDiff {
        let mut touched = Affected::default();
        for change in changes {
            self.store.apply(change, &mut touched);
        }
        self.settle(&touched);
        self.output.take_difference()
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

    /// The policies that judge a direction of a pod, in the order they are asked: admin tier, `NetworkPolicy`, or
    /// baseline tier where no `NetworkPolicy` isolates the pod. None for a pod that policy cannot see.
    pub fn policies_selecting(&self, pod: &PodName, direction: Direction) -> Vec<PolicyRef> {
        let stored = self.store.pod_slot(pod).and_then(|slot| self.store.live_pod(slot));
        stored.map_or_else(Vec::new, |stored| PodDirection::new(&self.store, stored, direction).policies())
    }

    /// The class of an address.
    pub fn class_of(&self, address: IpAddr) -> ClassId {
        self.addresses.class_of(address)
    }

    /// What a class is: the groups that its addresses are in, as far as rules of judged pods name them; one list for each
    /// holder where several claim an address.
    pub fn groups_of_class(&self, class: ClassId) -> Vec<Vec<&AddressGroup>> {
        let holders = self.classes.groups(class).split(|&group| group == GroupId::OR);
        let named =
            |groups: &[GroupId]| groups.iter().map(|&group| &**self.members.groups.key(group)).collect();
        holders.map(named).collect()
    }

    fn settle(&mut self, touched: &Affected) {
        self.settle_members(touched);
        let subjects = self.subjects(touched);
        let unseen = self.follow_subjects(&subjects);
        for (pod, keys) in subjects {
            self.judge(pod, keys);
        }
        let (born, gone) = self.profiles.sweep();
        for (id, profile) in gone {
            self.acls.leave(id, profile.acl);
            profile.dissolve(&mut self.members, &mut self.rows);
        }
        self.settle_groups();
        self.addresses.settle(&self.store, &mut self.members, &mut self.classes, &mut self.output);
        let moved = self.settle_classes(unseen);
        self.compile_profiles(&born);
        for profile in moved.into_iter().chain(born) {
            for pod in self.profiles.get(profile).pods.clone() {
                self.publish_pod(pod);
            }
        }
        for &pod in touched.pods.union(&touched.subjects) {
            self.publish_pod(pod);
        }
        self.acls.sweep(&mut self.output);
        self.rows.sweep(&mut self.output);
        self.members.sweep_ports();
    }

    /// Step 1.
    fn settle_members(&mut self, touched: &Affected) {
        for &slot in &touched.namespaces {
            self.members.refresh_namespace(&self.store, slot);
        }
        for &slot in &touched.nodes {
            self.members.refresh_node(&self.store, slot);
            let addresses = self.store.node(slot).map_or(&[][..], |node| &node.addresses);
            self.addresses.hold(AddressOwner::Node(slot), addresses);
        }
        for &slot in &touched.pods {
            self.members.refresh_pod(&self.store, slot);
            let addresses = self.store.live_pod(slot).map_or(&[][..], |stored| &stored.pod.addresses);
            self.addresses.hold(AddressOwner::Pod(slot), addresses);
        }
    }

    /// Step 2: gives a pod the profiles that it is to have.
    fn judge(&mut self, slot: PodSlot, keys: Option<[RuleSetKey; 2]>) {
        let store = &self.store;
        let next = keys.map(|[ingress, egress]| {
            let stored = store.live_pod(slot).expect("a judged pod is live");
            let mut hold = |key, direction| {
                self.profiles.hold(key, || PodDirection::new(store, stored, direction), &mut self.members)
            };
            let [ingress, egress] = [hold(ingress, Direction::Ingress), hold(egress, Direction::Egress)];
            EnforcedPod { name: stored.pod.name.clone(), ingress, egress }
        });
        if let Some(before) = self.judged.remove(&slot) {
            for profile in [before.ingress, before.egress] {
                self.profiles.get_mut(profile).remove_pod(slot);
                self.profiles.release(profile);
            }
            // A pod that has gone and come back in one step may be in another slot by now, which publishes it.
            if !store.judges(&before.name) {
                self.output.set_pod(before.name, None);
            }
        }
        if let Some(next) = next {
            for profile in [next.ingress, next.egress] {
                self.profiles.get_mut(profile).add_pod(slot);
            }
            self.judged.insert(slot, next);
        }
    }

    /// Step 3.
    fn settle_groups(&mut self) {
        let Sweep { born, gone } = self.members.port_uses.sweep();
        for (_, asked) in gone {
            self.members.stop_asking(asked.0, &asked.1);
            self.touch_group(asked.0);
        }
        for id in born {
            let asked = self.members.port_uses.key(id).clone();
            self.members.ask(asked.0, asked.1.clone());
            self.touch_group(asked.0);
        }
        // Classes that go below still speak of the groups that go here.
        let Sweep { born, gone } = self.members.groups.part();
        for (id, group) in gone {
            if let AddressGroup::Block(block) = &*group {
                self.addresses.remove_block(id, block);
            }
            let members = self.members.dismiss(&self.store, id, &group);
            for holder in members {
                self.addresses.touch(holder);
            }
        }
        for id in born {
            let group = self.members.groups.key(id).clone();
            if let AddressGroup::Block(block) = &*group {
                self.addresses.insert_block(id, block);
            }
            let members = self.members.enrol(&self.store, id, &group);
            for holder in members {
                self.addresses.touch(holder);
            }
        }
    }

    /// Looks again at every address in a group that is in use, or at every address.
    fn touch_group(&mut self, group: Option<GroupId>) {
        let Some(group) = group else { return self.addresses.touch_everything() };
        // A group that nobody holds goes in the same step, and touches its members then.
        let Some(group) = self.members.groups.get(group).cloned() else { return };
        if let AddressGroup::Block(block) = &*group {
            self.addresses.touch_prefix(block.cidr);
        }
        for holder in Membership::members(&self.store, &group) {
            self.addresses.touch(holder);
        }
    }

    /// Step 5, for the classes that came and went. Gives the profiles that have another table now.
    ///
    /// A class that a profile is to see anew is one that it does not see.
    fn settle_classes(&mut self, unseen: BTreeMap<RuleSetId, Vec<ClassId>>) -> Vec<RuleSetId> {
        let Sweep { born, gone } = self.classes.sweep();
        let mut changes: BTreeMap<RuleSetId, RowChanges> = BTreeMap::new();
        for (class, key) in gone {
            for profile in self.profiles.looking_at(&key, &self.members) {
                if unseen.get(&profile).is_some_and(|classes| classes.binary_search(&class).is_ok()) {
                    continue;
                }
                if self.profiles.get_mut(profile).class_gone(&key, &self.members, &mut self.rows) {
                    changes.entry(profile).or_default().insert(class, None);
                }
            }
            self.members.release_ports(&key);
        }
        for class in born {
            let key = self.classes.groups(class);
            self.members.hold_ports(key);
            for profile in self.profiles.looking_at(key, &self.members) {
                let row = self.profiles.get_mut(profile).class_born(key, &self.members, &mut self.rows);
                if row.is_some() {
                    changes.entry(profile).or_default().insert(class, row);
                }
            }
        }
        for (id, classes) in unseen {
            let profile = self.profiles.get_mut(id);
            let acl = &self.output.tables().acls[&profile.acl];
            for class in classes {
                let row = self
                    .classes
                    .get(class)
                    .and_then(|key| profile.class_born(key, &self.members, &mut self.rows));
                if row.as_ref() != acl.rows.get(&class) {
                    changes.entry(id).or_default().insert(class, row);
                }
            }
        }
        let of = |(profile, rows)| (profile, (self.profiles.get(profile).acl, rows));
        let changes = changes.into_iter().map(of).collect();
        let moved = self.acls.change(changes, &mut self.output);
        for &(profile, acl) in &moved {
            self.profiles.get_mut(profile).acl = acl;
        }
        moved.into_iter().map(|(profile, _)| profile).collect()
    }

    /// Step 5, for the profiles that came.
    fn compile_profiles(&mut self, born: &[RuleSetId]) {
        for &id in born {
            let profile = self.profiles.get_mut(id);
            let acl = profile.compile(&self.classes, &self.members, &mut self.rows);
            let acl = self.acls.join(id, acl, &mut self.output);
            profile.acl = acl;
            self.profiles.look(id);
        }
    }

    fn publish_pod(&mut self, slot: PodSlot) {
        let Some(judged) = self.judged.get(&slot) else { return };
        let stored = self.store.live_pod(slot).expect("a judged pod is live");
        let mut addresses = stored.pod.addresses.clone();
        addresses.sort_unstable();
        addresses.dedup();
        let [ingress, egress] = [judged.ingress, judged.egress].map(|profile| self.profiles.get(profile).acl);
        self.output.set_pod(judged.name.clone(), Some(PodPolicy { addresses, ingress, egress }));
    }
}
