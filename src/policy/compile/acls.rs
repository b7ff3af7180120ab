//! ACL tables: one for each distinct content, shared by rule sets.

use std::collections::{BTreeMap, HashMap};

use crate::ids::{AclId, ClassId, RowId};
use crate::policy::store::{RuleSetId, Slots, sorted};
use crate::tables::Acl;

use super::output::{RowChanges, TablesOutput};

/// Users of each table.
#[derive(Debug, Clone, Default)]
pub(crate) struct AclTables {
    tables: Slots<AclId, Users>,
    by_digest: HashMap<u64, AclId, foldhash::fast::RandomState>,
    idle: Vec<AclId>,
}

#[derive(Debug, Clone)]
struct Users {
    rule_sets: Vec<RuleSetId>,
    digest: u64,
}

impl AclTables {
    /// Assigns the table with this content to a rule set.
    pub(crate) fn attach(&mut self, rule_set: RuleSetId, acl: Acl, output: &mut TablesOutput) -> AclId {
        let digest = digest(&acl);
        let known = self.by_digest.get(&digest).copied();
        if let Some(id) = known.filter(|id| output.tables().acls.get(id) == Some(&acl)) {
            self.add_user(id, rule_set);
            return id;
        }
        self.create(rule_set, acl, digest, output)
    }

    /// Removes a rule set from its table.
    pub(crate) fn detach(&mut self, rule_set: RuleSetId, id: AclId) {
        let Some(users) = self.tables.get_mut(id) else { return };
        sorted::remove(&mut users.rule_sets, &rule_set);
        if users.rule_sets.is_empty() {
            self.idle.push(id);
        }
    }

    /// Changes rows of the tables of some rule sets. Returns the rule sets that move to another table.
    ///
    /// A table is changed in place if all its users change alike; otherwise it is split.
    pub(crate) fn change(
        &mut self,
        changes: BTreeMap<RuleSetId, (AclId, RowChanges)>,
        output: &mut TablesOutput,
    ) -> Vec<(RuleSetId, AclId)> {
        let mut alike: BTreeMap<(AclId, RowChanges), Vec<RuleSetId>> = BTreeMap::new();
        for (rule_set, change) in changes {
            alike.entry(change).or_default().push(rule_set);
        }
        let mut moved = Vec::new();
        for ((id, rows), rule_sets) in alike {
            let to = self.change_alike(id, &rows, &rule_sets, output);
            if to != id {
                moved.extend(rule_sets.into_iter().map(|rule_set| (rule_set, to)));
            }
        }
        moved
    }

    /// Frees unused tables.
    pub(crate) fn sweep(&mut self, output: &mut TablesOutput) {
        for id in std::mem::take(&mut self.idle) {
            if self.tables.get(id).is_some_and(|users| users.rule_sets.is_empty()) {
                self.forget_digest(id);
                self.tables.remove(id);
                output.set_acl(id, None);
            }
        }
    }

    fn change_alike(
        &mut self,
        id: AclId,
        rows: &RowChanges,
        rule_sets: &[RuleSetId],
        output: &mut TablesOutput,
    ) -> AclId {
        let users = self.tables.get(id).expect("a rule set's table is there");
        let all = users.rule_sets.len() == rule_sets.len();
        let digest = changed_digest(users.digest, &output.tables().acls[&id], rows);
        let equal = self.by_digest.get(&digest).copied().filter(|&equal| {
            equal != id && is_changed(&output.tables().acls[&id], rows, &output.tables().acls[&equal])
        });
        if let Some(equal) = equal {
            for &rule_set in rule_sets {
                self.detach(rule_set, id);
                self.add_user(equal, rule_set);
            }
            return equal;
        }
        if all {
            self.forget_digest(id);
            self.tables.get_mut(id).expect("just found").digest = digest;
            self.by_digest.insert(digest, id);
            output.change_acl(id, rows);
            return id;
        }
        let mut acl = output.tables().acls[&id].clone();
        apply(&mut acl, rows);
        for &rule_set in rule_sets {
            self.detach(rule_set, id);
        }
        let (&first, rest) = rule_sets.split_first().expect("somebody changes");
        let made = self.create(first, acl, digest, output);
        for &rule_set in rest {
            self.add_user(made, rule_set);
        }
        made
    }

    fn create(&mut self, rule_set: RuleSetId, acl: Acl, digest: u64, output: &mut TablesOutput) -> AclId {
        let id = self.tables.insert(Users { rule_sets: vec![rule_set], digest });
        self.by_digest.insert(digest, id);
        output.set_acl(id, Some(acl));
        id
    }

    fn add_user(&mut self, id: AclId, rule_set: RuleSetId) {
        sorted::insert(&mut self.tables.get_mut(id).expect("a known table is there").rule_sets, rule_set);
    }

    fn forget_digest(&mut self, id: AclId) {
        let digest = self.tables.get(id).expect("a known table is there").digest;
        if self.by_digest.get(&digest) == Some(&id) {
            self.by_digest.remove(&digest);
        }
    }
}

fn apply(acl: &mut Acl, changes: &RowChanges) {
    for (&class, row) in changes {
        match row {
            Some(row) => acl.rows.insert(class, *row),
            None => acl.rows.remove(&class),
        };
    }
}

/// Tests whether the changes turn `acl` into `next`.
fn is_changed(acl: &Acl, changes: &RowChanges, next: &Acl) -> bool {
    let mut changed = acl.clone();
    apply(&mut changed, changes);
    changed == *next
}

/// Hash of the content, independent of the order of the entries.
fn digest(acl: &Acl) -> u64 {
    let rows = acl.rows.iter().map(|(&class, &row)| entry_digest(class, row));
    rows.fold(mix(u64::from(acl.default.0)), u64::wrapping_add)
}

fn changed_digest(digest: u64, acl: &Acl, changes: &RowChanges) -> u64 {
    changes.iter().fold(digest, |digest, (class, row)| {
        let old = acl.rows.get(class).map_or(0, |&row| entry_digest(*class, row));
        let new = row.map_or(0, |row| entry_digest(*class, row));
        digest.wrapping_sub(old).wrapping_add(new)
    })
}

fn entry_digest(class: ClassId, row: RowId) -> u64 {
    mix(u64::from(class.0) << 32 | u64::from(row.0))
}

/// Finalizer of `SplitMix64`.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}
