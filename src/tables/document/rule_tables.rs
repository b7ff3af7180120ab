//! Rule tables: the document that the compiler writes and the control socket accepts.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::decision::{Decision, RuleOrigin};
use super::persistent_map::PersistentMap;
use super::row::Row;
use crate::ids::{AclId, ClassId, Generation, RowId, RuleId};
use crate::limits::{ACL_ENTRIES_MAX, ACLS_MAX, CLASSES_MAX, PREFIXES_MAX, ROWS_MAX, RULES_MAX};
use crate::printable::is_steering;

/// Version of the format.
pub const FORMAT_VERSION: u32 = 1;

/// Name of a pod, `namespace/name`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PodName {
    /// Namespace.
    pub namespace: String,
    /// Name within the namespace.
    pub name: String,
}

impl PodName {
    /// Pod `name` in `namespace`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> PodName {
        PodName { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.namespace, self.name))
    }
}

impl std::str::FromStr for PodName {
    type Err = String;

    /// Parses `namespace/name`. A bare `name` belongs to namespace `default`. Control characters are invalid.
    fn from_str(text: &str) -> Result<PodName, String> {
        let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
        if namespace.is_empty() || name.is_empty() || name.contains('/') || text.contains(is_steering) {
            return Err(format!("{text:?} is not a pod's name: write namespace/name"));
        }
        Ok(PodName::new(namespace, name))
    }
}

impl From<PodName> for String {
    fn from(pod: PodName) -> String {
        pod.to_string()
    }
}

impl TryFrom<String> for PodName {
    type Error = String;

    fn try_from(text: String) -> Result<PodName, String> {
        text.parse()
    }
}

/// ACL table: a row for each class. A clone is cheap and shares the content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Acl {
    /// Rows of the classes that differ from the default.
    #[serde(default, skip_serializing_if = "PersistentMap::is_empty")]
    pub rows: PersistentMap<ClassId, RowId>,
    /// Row of every other class.
    pub default: RowId,
}

impl Acl {
    /// Row of `class`.
    pub fn row(&self, class: ClassId) -> RowId {
        self.rows.get(&class).copied().unwrap_or(self.default)
    }
}

/// Addresses and ACL tables of one pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PodPolicy {
    /// Addresses of the pod, sorted.
    pub addresses: Vec<IpAddr>,
    /// Table of flows to the pod, by the class of the source.
    pub ingress: AclId,
    /// Table of flows from the pod, by the class of the destination.
    pub egress: AclId,
}

/// Rule tables: the policy of a switch.
///
/// Ids are slot numbers. A full compile numbers without gaps, in an order that follows from the content
/// alone. An incremental compile reuses freed slots, which keeps differences small. [`RuleTables::canonical`]
/// renumbers tables for comparison.
///
/// A clone is cheap and shares the content; see [`PersistentMap`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleTables {
    /// Format, equal to [`FORMAT_VERSION`].
    pub format: u32,
    /// Rules that decisions name.
    pub rules: PersistentMap<RuleId, RuleOrigin>,
    /// Classes by longest prefix. Addresses without a match have [`ClassId::WORLD`].
    pub prefixes: PersistentMap<IpNet, ClassId>,
    /// Rows, shared by ACL tables.
    pub rows: PersistentMap<RowId, Row>,
    /// ACL tables, shared by pods. A chunk has few tables, because each may be large.
    pub acls: PersistentMap<AclId, Acl, 4>,
    /// Pods for which the switch enforces policy.
    pub pods: PersistentMap<PodName, PodPolicy>,
}

impl Default for RuleTables {
    fn default() -> RuleTables {
        RuleTables {
            format: FORMAT_VERSION,
            rules: PersistentMap::new(),
            prefixes: PersistentMap::new(),
            rows: PersistentMap::new(),
            acls: PersistentMap::new(),
            pods: PersistentMap::new(),
        }
    }
}

/// Difference between two [`RuleTables`]: next content by key, `None` for a removed entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TablesDiff {
    /// Changes of [`RuleTables::rules`].
    pub rules: BTreeMap<RuleId, Option<RuleOrigin>>,
    /// Changes of [`RuleTables::prefixes`].
    pub prefixes: BTreeMap<IpNet, Option<ClassId>>,
    /// Changes of [`RuleTables::rows`].
    pub rows: BTreeMap<RowId, Option<Row>>,
    /// Changes of [`RuleTables::acls`]: added, replaced and removed tables.
    pub acls: BTreeMap<AclId, Option<Acl>>,
    /// Changes of [`Acl::rows`] of other tables, applied after those above. A class costs one entry in each
    /// table that names it, whatever the size of that table.
    pub acl_rows: BTreeMap<AclId, BTreeMap<ClassId, Option<RowId>>>,
    /// Changes of [`RuleTables::pods`].
    pub pods: BTreeMap<PodName, Option<PodPolicy>>,
}

/// Error of invalid tables. The switch rejects them as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TablesError {
    /// Unknown format.
    #[error("the tables have format {found}, this program reads format {FORMAT_VERSION}: compile them again")]
    Format {
        /// Format of the document.
        found: u32,
    },
    /// Reference to an absent entry.
    #[error("{from} names {missing}, which is not in the tables")]
    Dangling {
        /// Entry with the reference.
        from: String,
        /// Absent entry.
        missing: String,
    },
    /// Row is not in canonical form.
    #[error("rows[{row}]: spans must be sorted, apart, merged, and differ from `other`")]
    Row {
        /// Row.
        row: RowId,
    },
    /// Rule id above the limit.
    #[error("rule id {rule} is above the limit of {RULES_MAX}")]
    TooManyRules {
        /// Rule id.
        rule: RuleId,
    },
    /// Other id or number above its limit.
    #[error("{table} goes up to {found}, above the limit of {max}")]
    TooMany {
        /// Table.
        table: &'static str,
        /// Highest id, or number of entries.
        found: usize,
        /// Limit.
        max: usize,
    },
    /// Prefix with host bits.
    #[error("prefixes[{prefix}]: bits after the prefix must be zero: write {}", prefix.trunc())]
    HostBits {
        /// Prefix.
        prefix: IpNet,
    },
    /// Difference for another generation.
    #[error(
        "the difference is against generation {base}, the switch is at {current}: fetch and compare again"
    )]
    Base {
        /// Base of the difference.
        base: Generation,
        /// Loaded generation.
        current: Generation,
    },
}

impl RuleTables {
    /// Checks format, references and rows.
    pub fn check(&self) -> Result<(), TablesError> {
        if self.format != FORMAT_VERSION {
            return Err(TablesError::Format { found: self.format });
        }
        if let Some((&rule, _)) = self.rules.last_key_value()
            && rule.index() >= RULES_MAX
        {
            return Err(TablesError::TooManyRules { rule });
        }
        self.check_bounds()?;
        if let Some(&prefix) = self.prefixes.keys().find(|prefix| prefix.addr() != prefix.network()) {
            return Err(TablesError::HostBits { prefix });
        }
        for (&id, row) in &self.rows {
            if !row.is_canonical() {
                return Err(TablesError::Row { row: id });
            }
            let missing = row.decisions().map(Decision::rule).find(|rule| !self.rules.contains_key(rule));
            refer(missing, || format!("rows[{id}]"), "rules")?;
        }
        for (id, acl) in &self.acls {
            let missing = acl.rows.values().chain([&acl.default]).find(|row| !self.rows.contains_key(row));
            refer(missing, || format!("acls[{id}]"), "rows")?;
        }
        for (name, pod) in &self.pods {
            let missing = [pod.ingress, pod.egress].into_iter().find(|acl| !self.acls.contains_key(acl));
            refer(missing, || format!("pods[{name}]"), "acls")?;
        }
        Ok(())
    }

    /// Checks the limits of ids, which index arrays.
    fn check_bounds(&self) -> Result<(), TablesError> {
        let named = self.acls.values().filter_map(|acl| acl.rows.last_key_value()).map(|(class, _)| class);
        let class = self.prefixes.values().chain(named).max();
        let bounds = [
            ("prefixes", self.prefixes.len(), PREFIXES_MAX),
            ("classes", class.map_or(0, |class| class.index()), CLASSES_MAX),
            ("rows", self.rows.last_key_value().map_or(0, |(row, _)| row.index()), ROWS_MAX),
            ("acls", self.acls.last_key_value().map_or(0, |(acl, _)| acl.index()), ACLS_MAX),
            ("rows of acls", self.acl_entries(), ACL_ENTRIES_MAX),
        ];
        match bounds.into_iter().find(|(_, found, max)| found > max) {
            Some((table, found, max)) => Err(TablesError::TooMany { table, found, max }),
            None => Ok(()),
        }
    }

    /// Number of rows in all ACL tables.
    pub fn acl_entries(&self) -> usize {
        self.acls.values().map(|acl| acl.rows.len()).sum()
    }

    /// Applies a difference without a check.
    pub fn apply(&mut self, diff: &TablesDiff) {
        change(&mut self.rules, &diff.rules);
        change(&mut self.prefixes, &diff.prefixes);
        change(&mut self.rows, &diff.rows);
        change(&mut self.acls, &diff.acls);
        for (id, rows) in &diff.acl_rows {
            if let Some(acl) = self.acls.get_mut(id) {
                change(&mut acl.rows, rows);
            }
        }
        change(&mut self.pods, &diff.pods);
    }

    /// Difference that leads to `next`. The cost is small if one of both resulted from the other by small
    /// changes.
    pub fn difference(&self, next: &RuleTables) -> TablesDiff {
        let (acls, acl_rows) = acl_changes(&self.acls, &next.acls);
        TablesDiff {
            rules: changes(&self.rules, &next.rules),
            prefixes: changes(&self.prefixes, &next.prefixes),
            rows: changes(&self.rows, &next.rows),
            acls,
            acl_rows,
            pods: changes(&self.pods, &next.pods),
        }
    }
}

impl TablesDiff {
    /// Number of changed entries.
    pub fn len(&self) -> usize {
        self.rules.len()
            + self.prefixes.len()
            + self.rows.len()
            + self.acls.len()
            + self.pods.len()
            + self.acl_rows.values().map(BTreeMap::len).sum::<usize>()
    }

    /// Tests whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn refer<T: fmt::Display>(
    missing: Option<T>,
    from: impl FnOnce() -> String,
    table: &str,
) -> Result<(), TablesError> {
    match missing {
        None => Ok(()),
        Some(id) => Err(TablesError::Dangling { from: from(), missing: format!("{table}[{id}]") }),
    }
}

fn change<K: Ord + Clone, V: Clone, const CHUNK: usize>(
    table: &mut PersistentMap<K, V, CHUNK>,
    changes: &BTreeMap<K, Option<V>>,
) {
    for (key, value) in changes {
        match value {
            Some(value) => table.insert(key.clone(), value.clone()),
            None => table.remove(key),
        };
    }
}

fn changes<K: Ord + Clone, V: Clone + PartialEq>(
    old: &PersistentMap<K, V>,
    new: &PersistentMap<K, V>,
) -> BTreeMap<K, Option<V>> {
    let mut changes = BTreeMap::new();
    old.for_each_difference(new, |key, _, value| _ = changes.insert(key.clone(), value.cloned()));
    changes
}

/// Replaced ACL tables, and changed rows of tables that keep their default.
type AclChanges = (BTreeMap<AclId, Option<Acl>>, BTreeMap<AclId, BTreeMap<ClassId, Option<RowId>>>);

fn acl_changes<const CHUNK: usize>(
    old: &PersistentMap<AclId, Acl, CHUNK>,
    new: &PersistentMap<AclId, Acl, CHUNK>,
) -> AclChanges {
    let (mut acls, mut acl_rows) = (BTreeMap::new(), BTreeMap::new());
    old.for_each_difference(new, |&id, old, new| match (old, new) {
        (Some(old), Some(new)) if old.default == new.default => {
            acl_rows.insert(id, changes(&old.rows, &new.rows));
        }
        _ => _ = acls.insert(id, new.cloned()),
    });
    (acls, acl_rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(prefix: &str, class: u32) -> RuleTables {
        let prefixes = PersistentMap::from([(prefix.parse().unwrap(), ClassId(class))]);
        RuleTables { prefixes, ..RuleTables::default() }
    }

    #[test]
    fn a_prefix_with_host_bits_is_refused_with_what_to_write() {
        assert_eq!(tables("10.0.0.0/24", 1).check(), Ok(()));
        let refused = tables("10.0.0.1/24", 1).check().unwrap_err().to_string();
        assert_eq!(refused, "prefixes[10.0.0.1/24]: bits after the prefix must be zero: write 10.0.0.0/24");
    }

    #[test]
    fn ids_above_their_limit_are_refused() {
        let max = CLASSES_MAX as u32;
        assert_eq!(tables("10.0.0.0/8", max).check(), Ok(()));
        let found = CLASSES_MAX + 1;
        let refused = TablesError::TooMany { table: "classes", found, max: CLASSES_MAX };
        assert_eq!(tables("10.0.0.0/8", max + 1).check(), Err(refused));
        let row = Row::uniform(Decision::allow(crate::ids::RuleId(0)));
        let mut tables = RuleTables::default();
        tables.rules.insert(RuleId(0), RuleOrigin::OwnNode);
        tables.rows.insert(RowId(0), row.clone());
        let rows = (0..1 << 13).map(|class| (ClassId(class), RowId(0))).collect();
        let acl = Acl { rows, default: RowId(0) };
        tables.acls = (0..=ACL_ENTRIES_MAX as u32 >> 13).map(|id| (AclId(id), acl.clone())).collect();
        assert!(matches!(tables.check(), Err(TablesError::TooMany { table: "rows of acls", .. })));
        tables.acls.remove(&AclId(0));
        assert_eq!(tables.check(), Ok(()));
        tables.rows.insert(RowId(ROWS_MAX as u32 + 1), row);
        assert!(matches!(tables.check(), Err(TablesError::TooMany { table: "rows", .. })));
    }
}
