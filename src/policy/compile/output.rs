//! Output of the compiler: the current tables, and the entries that changed.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use crate::ids::{AclId, ClassId, RowId, RuleId};
use crate::tables::{Acl, PersistentMap, PodName, PodPolicy, Row, RuleOrigin, RuleTables, TablesDiff};

/// Changes of the rows of one ACL table.
pub(crate) type RowChanges = BTreeMap<ClassId, Option<RowId>>;

/// Tables, and the entries changed since [`TablesOutput::take_diff`].
#[derive(Debug, Clone, Default)]
pub(crate) struct TablesOutput {
    tables: RuleTables,
    rules: BTreeSet<RuleId>,
    prefixes: BTreeSet<IpNet>,
    rows: BTreeSet<RowId>,
    acls: BTreeSet<AclId>,
    acl_rows: BTreeMap<AclId, BTreeSet<ClassId>>,
    pods: BTreeSet<PodName>,
}

impl TablesOutput {
    /// Tables.
    pub(crate) fn tables(&self) -> &RuleTables {
        &self.tables
    }

    /// Consumes the output and returns the tables.
    pub(crate) fn into_tables(self) -> RuleTables {
        self.tables
    }

    /// Sets or removes the class of a prefix.
    pub(crate) fn set_prefix(&mut self, prefix: IpNet, class: Option<ClassId>) {
        if set(&mut self.tables.prefixes, prefix, class) {
            self.prefixes.insert(prefix);
        }
    }

    /// Sets or removes a rule.
    pub(crate) fn set_rule(&mut self, id: RuleId, rule: Option<RuleOrigin>) {
        if set(&mut self.tables.rules, id, rule) {
            self.rules.insert(id);
        }
    }

    /// Sets or removes a row.
    pub(crate) fn set_row(&mut self, id: RowId, row: Option<Row>) {
        if set(&mut self.tables.rows, id, row) {
            self.rows.insert(id);
        }
    }

    /// Sets or removes an ACL table.
    pub(crate) fn set_acl(&mut self, id: AclId, acl: Option<Acl>) {
        if set(&mut self.tables.acls, id, acl) {
            self.acls.insert(id);
        }
    }

    /// Changes rows of an existing ACL table.
    pub(crate) fn change_acl(&mut self, id: AclId, changes: &RowChanges) {
        let Some(acl) = self.tables.acls.get_mut(&id) else { return };
        for (&class, &row) in changes {
            let before = match row {
                None => acl.rows.remove(&class),
                Some(row) => acl.rows.insert(class, row),
            };
            if before != row {
                self.acl_rows.entry(id).or_default().insert(class);
            }
        }
    }

    /// Sets or removes the tables of a pod.
    pub(crate) fn set_pod(&mut self, name: PodName, pod: Option<PodPolicy>) {
        if self.tables.pods.get(&name) != pod.as_ref() {
            self.pods.insert(name.clone());
            set(&mut self.tables.pods, name, pod);
        }
    }

    /// Difference since the previous call.
    pub(crate) fn take_diff(&mut self) -> TablesDiff {
        let tables = &self.tables;
        let mut acl_rows = std::mem::take(&mut self.acl_rows);
        acl_rows.retain(|id, _| !self.acls.contains(id));
        let rows_of = |(id, classes): (AclId, BTreeSet<ClassId>)| {
            let acl = &tables.acls[&id];
            (id, classes.into_iter().map(|class| (class, acl.rows.get(&class).copied())).collect())
        };
        TablesDiff {
            rules: entries(&tables.rules, std::mem::take(&mut self.rules)),
            prefixes: entries(&tables.prefixes, std::mem::take(&mut self.prefixes)),
            rows: entries(&tables.rows, std::mem::take(&mut self.rows)),
            acls: entries(&tables.acls, std::mem::take(&mut self.acls)),
            acl_rows: acl_rows.into_iter().map(rows_of).collect(),
            pods: entries(&tables.pods, std::mem::take(&mut self.pods)),
        }
    }

    /// Starts the next difference from the current tables.
    pub(crate) fn reset_diff(&mut self) {
        *self = TablesOutput { tables: std::mem::take(&mut self.tables), ..TablesOutput::default() };
    }
}

/// Sets or removes an entry. Returns `true` if that changes the table.
fn set<K: Ord + Clone, V: Clone + PartialEq, const CHUNK: usize>(
    table: &mut PersistentMap<K, V, CHUNK>,
    key: K,
    value: Option<V>,
) -> bool {
    let changes = table.get(&key) != value.as_ref();
    if changes {
        match value {
            None => table.remove(&key),
            Some(value) => table.insert(key, value),
        };
    }
    changes
}

fn entries<K: Ord + Clone, V: Clone, const CHUNK: usize>(
    table: &PersistentMap<K, V, CHUNK>,
    keys: BTreeSet<K>,
) -> BTreeMap<K, Option<V>> {
    keys.into_iter()
        .map(|key| {
            let value = table.get(&key).cloned();
            (key, value)
        })
        .collect()
}
