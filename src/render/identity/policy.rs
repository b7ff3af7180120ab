//! ACL tables as entries of policy maps.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::rc::Rc;

use serde_json::json;

use super::model::{Entries, Key, Value};
use super::peers::{HOST, Peers};
use super::template::{self, Slot};
use crate::ids::{AclId, ClassId, RowId, RuleId};
use crate::tables::{Acl, Decision, Direction, RuleTables};

/// Identity that stands for all others.
const WILDCARD: u32 = 0;

/// Table of a direction, and the addresses of the host of its pods.
type Source = (Direction, AclId, Vec<IpAddr>);

/// Most characters of a rule in words. The origin of a denial may name many policies.
const TITLE_MAX: usize = 120;

/// Entries of directions, each once.
pub(super) struct Halves<'a> {
    tables: &'a RuleTables,
    peers: &'a Peers,
    entries: Vec<Rc<Entries>>,
    indices: HashMap<Rc<Entries>, usize, foldhash::fast::RandomState>,
    by_source: HashMap<Source, usize, foldhash::fast::RandomState>,
    templates: HashMap<(RowId, RowId), Rc<[Slot]>, foldhash::fast::RandomState>,
    titles: HashMap<RuleId, Rc<str>, foldhash::fast::RandomState>,
}

impl<'a> Halves<'a> {
    pub(super) fn new(tables: &'a RuleTables, peers: &'a Peers) -> Halves<'a> {
        Halves {
            tables,
            peers,
            entries: Vec::new(),
            indices: HashMap::default(),
            by_source: HashMap::default(),
            templates: HashMap::default(),
            titles: HashMap::default(),
        }
    }

    /// Entries by index.
    pub(super) fn finish(self) -> Vec<Rc<Entries>> {
        self.entries
    }

    /// Index of the entries of a table for pods with this host.
    pub(super) fn index_of(&mut self, direction: Direction, acl: AclId, hosts: &[IpAddr]) -> usize {
        let source = (direction, acl, hosts.to_vec());
        if let Some(&known) = self.by_source.get(&source) {
            return known;
        }
        let entries = Rc::new(self.build(direction, acl, hosts));
        let next = self.entries.len();
        let index = *self.indices.entry(entries).or_insert_with_key(|entries| {
            self.entries.push(Rc::clone(entries));
            next
        });
        self.by_source.insert(source, index);
        index
    }

    fn build(&mut self, direction: Direction, acl: AclId, hosts: &[IpAddr]) -> Entries {
        let acl = &self.tables.acls[&acl];
        let default = acl.row(ClassId::WORLD);
        let rows: BTreeSet<RowId> = acl.rows.values().copied().chain([acl.default]).collect();
        let rows: Vec<_> = rows.iter().map(|row| &self.tables.rows[row]).collect();
        let mut entries = Entries::new();
        let wildcard = template::of_wildcard(&self.tables.rows[&default], &rows);
        self.append(&mut entries, direction, WILDCARD, &wildcard);
        for (identity, row) in self.rows_of_identities(acl, default, hosts) {
            let template = self.template(row, default);
            self.append(&mut entries, direction, identity, &template);
        }
        entries.sort_unstable_by_key(|(key, _)| *key);
        entries
    }

    /// Identities whose row is not the default row.
    fn rows_of_identities(&self, acl: &Acl, default: RowId, hosts: &[IpAddr]) -> Vec<(u32, RowId)> {
        let by_class = &self.peers.by_class;
        let mut rows = Vec::new();
        if default == acl.default {
            for (class, &row) in acl.rows.iter().filter(|(_, row)| **row != default) {
                rows.extend(by_class.get(class).into_iter().flatten().map(|&number| (number, row)));
            }
        } else {
            for (&class, numbers) in by_class {
                rows.extend(numbers.iter().map(|&number| (number, acl.row(class))));
            }
        }
        for (number, group) in &self.peers.nodes {
            let remote = group.iter().find(|(address, _)| !hosts.contains(address));
            rows.extend(remote.map(|&(_, class)| (*number, acl.row(class))));
        }
        let host = hosts.first().map(|address| self.peers.node_classes[address]);
        rows.extend(host.map(|class| (HOST, acl.row(class))));
        rows.retain(|(_, row)| *row != default);
        rows
    }

    fn template(&mut self, row: RowId, default: RowId) -> Rc<[Slot]> {
        let rows = &self.tables.rows;
        let template = self.templates.entry((row, default));
        Rc::clone(template.or_insert_with(|| template::of_identity(&rows[&row], &rows[&default]).into()))
    }

    fn append(&mut self, entries: &mut Entries, direction: Direction, identity: u32, slots: &[Slot]) {
        for &(service, decision) in slots {
            let value = Value { verdict: decision.verdict(), derived_from: self.title(decision) };
            entries.push((Key { direction, identity, service }, value));
        }
    }

    fn title(&mut self, decision: Decision) -> Rc<str> {
        let rules = &self.tables.rules;
        let title = self.titles.entry(decision.rule());
        Rc::clone(
            title.or_insert_with_key(|rule| json!(shortened(&rules[rule].to_string())).to_string().into()),
        )
    }
}

fn shortened(title: &str) -> String {
    match title.char_indices().nth(TITLE_MAX) {
        None => title.to_owned(),
        Some(_) => title.chars().take(TITLE_MAX - 3).chain("...".chars()).collect(),
    }
}
