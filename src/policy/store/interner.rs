//! Interner: equal values share one number. References are counted, and unreferenced numbers are reused.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use super::slots::{Slot, Slots};

/// Values by number and numbers by value.
///
/// An unreferenced value stays until [`Interner::sweep`]: a value that is released and acquired again within
/// one change keeps its number.
#[derive(Debug)]
pub(crate) struct Interner<S, K: ?Sized> {
    ids: HashMap<Arc<K>, S, foldhash::fast::RandomState>,
    entries: Slots<S, Entry<K>>,
    unreferenced: Vec<S>,
    new: Vec<S>,
    retired: Vec<S>,
}

/// Result of [`Interner::sweep`], sorted by number.
pub(crate) struct Sweep<S, K: ?Sized> {
    /// Numbers in use since the last sweep.
    pub(crate) added: Vec<S>,
    /// Freed numbers and their values.
    pub(crate) removed: Vec<(S, Arc<K>)>,
}

#[derive(Debug)]
struct Entry<K: ?Sized> {
    key: Arc<K>,
    references: u32,
}

// A derived `Clone` would ask it of the values, which are shared.
impl<K: ?Sized> Clone for Entry<K> {
    fn clone(&self) -> Entry<K> {
        Entry { key: self.key.clone(), references: self.references }
    }
}

impl<S: Clone, K: ?Sized> Clone for Interner<S, K> {
    fn clone(&self) -> Interner<S, K> {
        Interner {
            ids: self.ids.clone(),
            entries: self.entries.clone(),
            unreferenced: self.unreferenced.clone(),
            new: self.new.clone(),
            retired: self.retired.clone(),
        }
    }
}

impl<S, K: ?Sized> Default for Interner<S, K> {
    fn default() -> Interner<S, K> {
        Interner {
            ids: HashMap::default(),
            entries: Slots::default(),
            unreferenced: Vec::new(),
            new: Vec::new(),
            retired: Vec::new(),
        }
    }
}

impl<S: Slot, K: ?Sized + Eq + Hash> Interner<S, K> {
    /// Number of a value. The caller acquires it separately.
    pub(crate) fn intern(&mut self, key: impl Borrow<K> + Into<Arc<K>>) -> S {
        if let Some(&id) = self.ids.get(key.borrow()) {
            return id;
        }
        let key: Arc<K> = key.into();
        let id = self.entries.insert(Entry { key: key.clone(), references: 0 });
        self.ids.insert(key, id);
        self.unreferenced.push(id);
        self.new.push(id);
        id
    }

    /// Number of a value, if it has one.
    pub(crate) fn find(&self, key: &K) -> Option<S> {
        self.ids.get(key).copied()
    }

    /// Assigns another value, which has no number, to a number in use.
    pub(crate) fn rename(&mut self, id: S, key: impl Into<Arc<K>>) {
        let key: Arc<K> = key.into();
        let before = std::mem::replace(&mut self.entry_mut(id).key, key.clone());
        self.ids.remove(&*before);
        self.ids.insert(key, id);
    }

    /// Value of a number in use.
    pub(crate) fn key(&self, id: S) -> &Arc<K> {
        &self.entry(id).key
    }

    /// Value of a number, if it has one.
    pub(crate) fn get(&self, id: S) -> Option<&Arc<K>> {
        self.entries.get(id).map(|entry| &entry.key)
    }

    /// Adds a reference.
    pub(crate) fn acquire(&mut self, id: S) {
        self.entry_mut(id).references += 1;
    }

    /// Removes a reference.
    pub(crate) fn release(&mut self, id: S) {
        let entry = self.entry_mut(id);
        entry.references -= 1;
        if entry.references == 0 {
            self.unreferenced.push(id);
        }
    }

    /// Frees unreferenced numbers. Values that were added and released since the last sweep are not reported.
    pub(crate) fn sweep(&mut self) -> Sweep<S, K> {
        let swept = self.retire();
        for id in std::mem::take(&mut self.retired) {
            self.entries.remove(id);
        }
        swept
    }

    /// Reports like [`Interner::sweep`], but keeps the values and reserves the numbers until the next call of
    /// that function.
    pub(crate) fn retire(&mut self) -> Sweep<S, K> {
        let mut unreferenced = std::mem::take(&mut self.unreferenced);
        unreferenced.sort_unstable();
        unreferenced.dedup();
        unreferenced.retain(|&id| self.entry(id).references == 0);
        let mut added = std::mem::take(&mut self.new);
        added.sort_unstable();
        let (mut unused, mut removed) = (Vec::new(), Vec::new());
        for id in unreferenced {
            let key = self.entry(id).key.clone();
            self.ids.remove(&*key);
            self.retired.push(id);
            match added.binary_search(&id) {
                Ok(_) => unused.push(id),
                Err(_) => removed.push((id, key)),
            }
        }
        added.retain(|id| unused.binary_search(id).is_err());
        Sweep { added, removed }
    }

    /// Values by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (S, &Arc<K>)> {
        self.entries.iter().map(|(id, entry)| (id, &entry.key))
    }

    /// Number of values.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    fn entry(&self, id: S) -> &Entry<K> {
        self.entries.get(id).expect("a number is only used while it is held")
    }

    fn entry_mut(&mut self, id: S) -> &mut Entry<K> {
        self.entries.get_mut(id).expect("a number is only used while it is held")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RowId;

    #[test]
    fn a_value_keeps_its_number_until_nobody_holds_it_at_a_sweep() {
        let mut interner: Interner<RowId, str> = Interner::default();
        let a = interner.intern("a");
        interner.acquire(a);
        assert_eq!(interner.sweep().added, [a]);
        interner.release(a);
        assert_eq!(interner.intern("a"), a);
        interner.acquire(a);
        let swept = interner.sweep();
        assert!(swept.added.is_empty() && swept.removed.is_empty());
        interner.release(a);
        assert_eq!(interner.sweep().removed, [(a, Arc::from("a"))]);
        assert_eq!(interner.intern("b"), a);
    }

    #[test]
    fn what_comes_and_goes_between_sweeps_is_not_reported() {
        let mut interner: Interner<RowId, str> = Interner::default();
        interner.intern("a");
        let swept = interner.sweep();
        assert!(swept.added.is_empty() && swept.removed.is_empty());
        assert_eq!(interner.len(), 0);
    }
}
