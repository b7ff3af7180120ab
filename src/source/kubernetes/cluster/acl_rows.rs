//! Bound on the rows of ACL tables, which no namespace takes from the others.
//!
//! Tables with more rows than a switch takes would stop every later change. The policies of the namespace whose pods have
//! most rows are closed instead, until the namespace changes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::prefixes::closed;
use crate::policy::Compiler;
use crate::policy::objects::Object;
use crate::source::kubernetes::object::{Entry, Issue, Version};
use crate::source::kubernetes::parse::Key;
use crate::tables::RuleTables;

/// Time until policies are tried again that have not changed.
const UNCHANGED: Duration = Duration::from_mins(10);

/// Namespaces whose policies are closed because their pods have too many rows.
pub(super) struct AclRows {
    /// Most rows of all ACL tables.
    max: usize,
    /// Time until policies that have changed are tried again: to find out that they still have no room costs a compile.
    timeout: Duration,
    /// Versions of all policies, for events about them.
    versions: HashMap<Key, Box<Version>>,
    closed: BTreeMap<String, ClosedNamespace>,
}

/// Namespace whose policies are closed.
struct ClosedNamespace {
    /// Its policies as they are written.
    policies: BTreeMap<Key, Entry>,
    /// Rows of its pods when it was closed.
    rows: usize,
    has_changed: bool,
    since: Instant,
}

impl AclRows {
    /// Creates a bound of so many rows, with this time until changed policies are tried again.
    pub(super) fn new(max: usize, timeout: Duration) -> AclRows {
        AclRows { max, timeout, versions: HashMap::new(), closed: BTreeMap::new() }
    }

    /// Notes the version of a policy.
    pub(super) fn note_version(&mut self, entry: &Entry) {
        match &entry.version {
            Some(version) => self.versions.insert(entry.key.clone(), version.clone()),
            None => self.versions.remove(&entry.key),
        };
    }

    /// Takes a policy. Returns it, or a substitute that allows nothing where its namespace is closed.
    pub(super) fn admit(&mut self, entry: Entry) -> Entry {
        let Some(namespace) = self.closed.get_mut(&entry.key.namespace).filter(|_| is_enforced(&entry))
        else {
            self.forget(&entry.key);
            return entry;
        };
        namespace.has_changed = true;
        let substitute = closed(&entry, message(namespace.rows, self.max));
        namespace.policies.insert(entry.key.clone(), entry);
        substitute
    }

    /// Removes a policy.
    pub(super) fn remove(&mut self, key: &Key) {
        self.versions.remove(key);
        self.forget(key);
    }

    fn forget(&mut self, key: &Key) {
        if let Some(namespace) = self.closed.get_mut(&key.namespace) {
            namespace.has_changed |= namespace.policies.remove(key).is_some();
        }
    }

    /// Opens the namespaces that may have room now. Returns their policies as they are written.
    pub(super) fn reopen(&mut self, tables: &RuleTables) -> Vec<Entry> {
        if self.closed.is_empty() {
            return Vec::new();
        }
        let (mut rows, max) = (tables.acl_entries(), self.max);
        let opens = |_: &String, namespace: &mut ClosedNamespace| {
            let fits = rows + namespace.rows <= max;
            rows += if fits { namespace.rows } else { 0 };
            let timeout = if fits || namespace.has_changed { self.timeout } else { UNCHANGED };
            namespace.since.elapsed() >= timeout
        };
        let opened: Vec<_> = self.closed.extract_if(.., opens).collect();
        opened.into_iter().flat_map(|(_, namespace)| namespace.policies.into_values()).collect()
    }

    /// Namespaces that may be closed, the one with most rows first, if the tables have too many rows.
    fn excess(&self, tables: &RuleTables) -> Vec<(String, usize)> {
        if tables.acl_entries() <= self.max {
            return Vec::new();
        }
        let mut acls = BTreeMap::<&str, BTreeSet<_>>::new();
        for (name, pod) in &tables.pods {
            acls.entry(&name.namespace).or_default().extend([pod.ingress, pod.egress]);
        }
        let rows = |acls: BTreeSet<_>| -> usize {
            acls.into_iter().filter_map(|acl| tables.acls.get(&acl)).map(|acl| acl.rows.len()).sum()
        };
        let all = acls.into_iter().filter(|(namespace, _)| !self.closed.contains_key(*namespace));
        let mut all: Vec<_> = all.map(|(namespace, acls)| (namespace.to_owned(), rows(acls))).collect();
        all.sort_by_key(|(_, rows)| std::cmp::Reverse(*rows));
        all
    }

    /// Closes the policies of the namespace with most rows, if there are too many. Returns their substitutes. `issue_of` tells
    /// the reason for which a policy is not enforced as written.
    pub(super) fn close_largest(
        &mut self,
        compiler: &Compiler,
        issue_of: impl Fn(&Key) -> Option<Issue>,
    ) -> Option<Vec<Entry>> {
        let candidates = self.excess(compiler.tables()).into_iter();
        let mut with_policies = candidates.filter_map(|(namespace, rows)| {
            let policies = compiler.network_policies(&namespace).into_iter().map(|policy| {
                let key = Key { namespace: namespace.clone(), name: policy.name.clone() };
                let issue = issue_of(&key).map(Box::new);
                let version = self.versions.get(&key).cloned();
                Entry { key, object: Some(Object::NetworkPolicy(policy)), node: None, version, issue }
            });
            let policies: Vec<Entry> = policies.collect();
            (!policies.is_empty()).then_some((namespace, rows, policies))
        });
        let (namespace, rows, policies) = with_policies.next()?;
        Some(self.close(namespace, rows, policies))
    }

    /// Closes a namespace with these policies and so many rows. Returns their substitutes.
    fn close(&mut self, namespace: String, rows: usize, policies: Vec<Entry>) -> Vec<Entry> {
        let substitutes = policies.iter().map(|entry| closed(entry, message(rows, self.max))).collect();
        let policies = policies.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
        let closed = ClosedNamespace { policies, rows, has_changed: false, since: Instant::now() };
        self.closed.insert(namespace, closed);
        substitutes
    }
}

/// Tests whether an entry is a policy that is enforced.
fn is_enforced(entry: &Entry) -> bool {
    matches!(&entry.object, Some(Object::NetworkPolicy(policy)) if !policy.audited)
}

fn message(rows: usize, max: usize) -> String {
    format!(
        "the policies of its namespace need {rows} rows of ACL tables, most of all namespaces, and there are {max} for all"
    )
}
