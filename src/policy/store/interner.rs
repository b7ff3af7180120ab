//! Equal values, one number. Counted, so that a number nobody holds is given back.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use super::slots::{Slot, Slots};

/// Values by number and numbers by value.
///
/// A value that nobody holds stays until [`Interner::sweep`]: what goes and comes back in one change
/// keeps its number.
#[derive(Debug)]
pub(crate) struct Interner<S, K: ?Sized> {
    ids: HashMap<Arc<K>, S, foldhash::fast::RandomState>,
    entries: Slots<S, Entry<K>>,
    unreferenced: Vec<S>,
    new: Vec<S>,
    retired: Vec<S>,
}

/// What [`Interner::sweep`] found. Both sorted.
pub(crate) struct Sweep<S, K: ?Sized> {
    /// Numbers given out.
    pub(crate) added: Vec<S>,
    /// Numbers given back, and what they meant.
    pub(crate) removed: Vec<(S, Arc<K>)>,
}

#[derive(Debug)]
struct Entry<K: ?Sized> {
    key: Arc<K>,
    references: u32,
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
    /// The number of a value. It is not held yet.
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

    /// The number of a value, if it has one.
    pub(crate) fn find(&self, key: &K) -> Option<S> {
        self.ids.get(key).copied()
    }

    /// Lets a number that is in use stand for another value, which has none.
    pub(crate) fn rename(&mut self, id: S, key: impl Into<Arc<K>>) {
        let key: Arc<K> = key.into();
        let before = std::mem::replace(&mut self.entry_mut(id).key, key.clone());
        self.ids.remove(&*before);
        self.ids.insert(key, id);
    }

    /// The value of a number that is in use.
    pub(crate) fn key(&self, id: S) -> &Arc<K> {
        &self.entry(id).key
    }

    /// The value of a number, if it has one.
    pub(crate) fn get(&self, id: S) -> Option<&Arc<K>> {
        self.entries.get(id).map(|entry| &entry.key)
    }

    /// One owner more.
    pub(crate) fn acquire(&mut self, id: S) {
        self.entry_mut(id).references += 1;
    }

    /// One owner less.
    pub(crate) fn release(&mut self, id: S) {
        let entry = self.entry_mut(id);
        entry.references -= 1;
        if entry.references == 0 {
            self.unreferenced.push(id);
        }
    }

    /// Gives back the numbers that nobody holds. What came and went since the last sweep is not reported.
    pub(crate) fn sweep(&mut self) -> Sweep<S, K> {
        let swept = self.retire();
        for id in std::mem::take(&mut self.retired) {
            self.entries.remove(id);
        }
        swept
    }

    /// Like [`Interner::sweep`], but the numbers keep their meaning, and are not given out again, until
    /// that is called.
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

    /// All values, by number.
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
