//! Changes from one state to another: entries to write, then entries to delete.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::rc::Rc;

use ipnet::IpNet;

use super::model::{Endpoint, Entries, Key, Policy, State, Value};
use crate::tables::PodName;

/// Changes of all maps.
#[derive(Debug, Default)]
pub(super) struct Changes<'a> {
    pub(super) identities: MapChanges<'a, u32, Vec<String>>,
    pub(super) ipcache: MapChanges<'a, IpNet, u32>,
    pub(super) endpoints: MapChanges<'a, PodName, Endpoint>,
    /// Policy maps with entries to write.
    pub(super) policies: Vec<(&'a str, Vec<&'a (Key, Value)>)>,
    /// Policy maps with entries to delete.
    pub(super) deleted_entries: Vec<(&'a str, Vec<Key>)>,
    /// Policy maps to delete.
    pub(super) deleted_policies: Vec<&'a str>,
}

/// Changes of a map.
#[derive(Debug)]
pub(super) struct MapChanges<'a, K, V> {
    pub(super) written: Vec<(&'a K, &'a V)>,
    pub(super) deleted: Vec<&'a K>,
}

impl<K, V> Default for MapChanges<'_, K, V> {
    fn default() -> Self {
        MapChanges { written: Vec::new(), deleted: Vec::new() }
    }
}

/// Changes from one state to another.
pub(super) fn between<'a>(old: &'a State, new: &'a State) -> Changes<'a> {
    let mut changes = Changes {
        identities: of_maps(&old.identities, &new.identities),
        ipcache: of_maps(&old.ipcache, &new.ipcache),
        endpoints: of_maps(&old.endpoints, &new.endpoints),
        ..Changes::default()
    };
    for (name, policy) in &new.policies {
        match old.policies.get(name) {
            None => changes.policies.push((name, policy.entries().collect())),
            Some(before) => changes.add_policy(name, before, policy),
        }
    }
    let deleted = old.policies.keys().filter(|name| !new.policies.contains_key(*name));
    changes.deleted_policies = deleted.map(String::as_str).collect();
    changes
}

impl<'a> Changes<'a> {
    fn add_policy(&mut self, name: &'a str, old: &'a Policy, new: &'a Policy) {
        let (mut written, mut deleted) = (Vec::new(), Vec::new());
        for (old, new) in old.0.iter().zip(&new.0).filter(|(old, new)| !Rc::ptr_eq(old, new)) {
            compare(old, new, &mut written, &mut deleted);
        }
        if !written.is_empty() {
            self.policies.push((name, written));
        }
        if !deleted.is_empty() {
            self.deleted_entries.push((name, deleted));
        }
    }
}

/// Compares sorted entries.
fn compare<'a>(
    old: &'a Entries,
    new: &'a Entries,
    written: &mut Vec<&'a (Key, Value)>,
    deleted: &mut Vec<Key>,
) {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((old, _)), Some((new, _))) => old.cmp(new),
        };
        let (before, after) = match order {
            Ordering::Less => (old.next(), None),
            Ordering::Greater => (None, new.next()),
            Ordering::Equal => (old.next(), new.next()),
        };
        match (before, after) {
            (Some((key, _)), None) => deleted.push(*key),
            (before, Some(entry)) if before != Some(entry) => written.push(entry),
            _ => {}
        }
    }
}

fn of_maps<'a, K: Ord, V: PartialEq>(
    old: &'a BTreeMap<K, V>,
    new: &'a BTreeMap<K, V>,
) -> MapChanges<'a, K, V> {
    MapChanges {
        written: new.iter().filter(|(key, value)| old.get(*key) != Some(*value)).collect(),
        deleted: old.keys().filter(|key| !new.contains_key(*key)).collect(),
    }
}
