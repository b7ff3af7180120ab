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
    idle: Vec<S>,
    fresh: Vec<S>,
    parted: Vec<S>,
}

/// What [`Interner::sweep`] found. Both sorted.
pub(crate) struct Sweep<S, K: ?Sized> {
    /// Numbers given out.
    pub(crate) born: Vec<S>,
    /// Numbers given back, and what they meant.
    pub(crate) gone: Vec<(S, Arc<K>)>,
}

#[derive(Debug)]
struct Entry<K: ?Sized> {
    key: Arc<K>,
    holders: u32,
}

impl<S, K: ?Sized> Default for Interner<S, K> {
    fn default() -> Interner<S, K> {
        Interner {
            ids: HashMap::default(),
            entries: Slots::default(),
            idle: Vec::new(),
            fresh: Vec::new(),
            parted: Vec::new(),
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
        let id = self.entries.insert(Entry { key: key.clone(), holders: 0 });
        self.ids.insert(key, id);
        self.idle.push(id);
        self.fresh.push(id);
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

    /// One holder more.
    pub(crate) fn hold(&mut self, id: S) {
        self.entry_mut(id).holders += 1;
    }

    /// One holder less.
    pub(crate) fn release(&mut self, id: S) {
        let entry = self.entry_mut(id);
        entry.holders -= 1;
        if entry.holders == 0 {
            self.idle.push(id);
        }
    }

    /// Gives back the numbers that nobody holds. What came and went since the last sweep is not reported.
    pub(crate) fn sweep(&mut self) -> Sweep<S, K> {
        let swept = self.part();
        for id in std::mem::take(&mut self.parted) {
            self.entries.remove(id);
        }
        swept
    }

    /// Like [`Interner::sweep`], but the numbers keep their meaning, and are not given out again, until
    /// that is called.
    pub(crate) fn part(&mut self) -> Sweep<S, K> {
        let mut idle = std::mem::take(&mut self.idle);
        idle.sort_unstable();
        idle.dedup();
        idle.retain(|&id| self.entry(id).holders == 0);
        let mut born = std::mem::take(&mut self.fresh);
        born.sort_unstable();
        let (mut stillborn, mut gone) = (Vec::new(), Vec::new());
        for id in idle {
            let key = self.entry(id).key.clone();
            self.ids.remove(&*key);
            self.parted.push(id);
            match born.binary_search(&id) {
                Ok(_) => stillborn.push(id),
                Err(_) => gone.push((id, key)),
            }
        }
        born.retain(|id| stillborn.binary_search(id).is_err());
        Sweep { born, gone }
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
        interner.hold(a);
        assert_eq!(interner.sweep().born, [a]);
        interner.release(a);
        assert_eq!(interner.intern("a"), a);
        interner.hold(a);
        let swept = interner.sweep();
        assert!(swept.born.is_empty() && swept.gone.is_empty());
        interner.release(a);
        assert_eq!(interner.sweep().gone, [(a, Arc::from("a"))]);
        assert_eq!(interner.intern("b"), a);
    }

    #[test]
    fn what_comes_and_goes_between_sweeps_is_not_reported() {
        let mut interner: Interner<RowId, str> = Interner::default();
        interner.intern("a");
        let swept = interner.sweep();
        assert!(swept.born.is_empty() && swept.gone.is_empty());
        assert_eq!(interner.len(), 0);
    }
}
