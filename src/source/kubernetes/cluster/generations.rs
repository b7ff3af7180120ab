//! Generations of the policies that have conditions.

use std::collections::BTreeMap;

use crate::source::kubernetes::kinds::KINDS;
use crate::source::kubernetes::object::Entry;
use crate::source::kubernetes::parse::Key;

/// `metadata.generation` of the policies that have conditions.
#[derive(Default)]
pub(super) struct Generations {
    known: BTreeMap<(usize, Key), i64>,
    /// Whether a policy or its issue has changed since the conditions were last given.
    is_changed: bool,
}

impl Generations {
    /// Notes a policy.
    pub(super) fn note(&mut self, index: usize, entry: &Entry) {
        if !KINDS[index].has_conditions() {
            return;
        }
        let of_issue = || entry.issue.as_ref().map(|issue| issue.version.generation);
        let generation = entry.version.as_ref().map(|version| version.generation).or_else(of_issue);
        let place = (index, entry.key.clone());
        self.is_changed = true;
        self.known.insert(place, generation.unwrap_or_default());
    }

    /// Forgets a policy.
    pub(super) fn remove(&mut self, index: usize, key: &Key) {
        self.is_changed |=
            KINDS[index].has_conditions() && self.known.remove(&(index, key.clone())).is_some();
    }

    /// Notes that the issue of an object may have changed.
    pub(super) fn note_issue(&mut self, index: usize) {
        self.is_changed |= KINDS[index].has_conditions();
    }

    /// Whether a policy or its issue may have changed since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// Policies by kind and name, with their generations.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&(usize, Key), &i64)> {
        self.known.iter()
    }
}
