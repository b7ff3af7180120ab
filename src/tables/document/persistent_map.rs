//! Persistent sorted map: clones share unchanged entries.
//!
//! Entries are stored in short sorted chunks. A clone copies the list of chunks; a change copies one chunk. A
//! comparison of a map with its clone skips the chunks that both share. The next generation of a large
//! document therefore costs about as much as the difference.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Index;
use std::slice;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Persistent sorted map. Clones share chunks of up to twice `CHUNK` entries.
#[derive(Clone)]
pub struct PersistentMap<K, V, const CHUNK: usize = 64> {
    /// Chunks; none is empty.
    chunks: Vec<Arc<Chunk<K, V>>>,
    len: usize,
}

type Chunk<K, V> = Vec<(K, V)>;

/// Iterator over the entries in order.
pub struct Iter<'a, K, V> {
    chunks: slice::Iter<'a, Arc<Chunk<K, V>>>,
    entries: slice::Iter<'a, (K, V)>,
}

/// Lookup.
impl<K: Ord, V, const CHUNK: usize> PersistentMap<K, V, CHUNK> {
    /// Empty map.
    pub fn new() -> Self {
        PersistentMap { chunks: Vec::new(), len: 0 }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Tests whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let chunk = self.chunks.get(self.chunk_of(key))?;
        let place = chunk.binary_search_by(|(other, _)| other.borrow().cmp(key)).ok()?;
        Some(&chunk[place].1)
    }

    /// Tests whether the map contains a key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// Entry with the highest key.
    pub fn last_key_value(&self) -> Option<(&K, &V)> {
        let (key, value) = self.chunks.last()?.last()?;
        Some((key, value))
    }

    /// Entries in order, from the first key that is not below `key`.
    pub fn iter_from<'a, Q: Ord + ?Sized>(
        &'a self,
        key: &Q,
    ) -> impl Iterator<Item = (&'a K, &'a V)> + use<'a, K, V, Q, CHUNK>
    where
        K: Borrow<Q>,
    {
        let at = self.chunk_of(key);
        let place =
            self.chunks.get(at).map_or(0, |chunk| chunk.partition_point(|(other, _)| other.borrow() < key));
        let entries = self.chunks[at.min(self.chunks.len())..].iter().flat_map(|chunk| chunk.iter());
        entries.skip(place).map(|(key, value)| (key, value))
    }

    /// Entries in order.
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter { chunks: self.chunks.iter(), entries: [].iter() }
    }

    /// Keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &K> + Clone {
        self.iter().map(|(key, _)| key)
    }

    /// Values in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> + Clone {
        self.iter().map(|(_, value)| value)
    }

    /// Index of the chunk of `key`.
    fn chunk_of<Q: Ord + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        self.chunks.partition_point(|chunk| chunk[0].0.borrow() <= key).saturating_sub(1)
    }
}

/// Updates.
impl<K: Ord + Clone, V: Clone, const CHUNK: usize> PersistentMap<K, V, CHUNK> {
    /// Sets the value of a key. Returns the previous value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        if self.chunks.is_empty() {
            self.chunks.push(Arc::default());
        }
        let at = self.chunk_of_maybe_empty(&key);
        let chunk = Arc::make_mut(&mut self.chunks[at]);
        match chunk.binary_search_by(|(other, _)| other.cmp(&key)) {
            Ok(place) => Some(std::mem::replace(&mut chunk[place].1, value)),
            Err(place) => {
                chunk.insert(place, (key, value));
                self.len += 1;
                if chunk.len() > 2 * CHUNK {
                    let upper = chunk.split_off(CHUNK);
                    self.chunks.insert(at + 1, Arc::new(upper));
                }
                None
            }
        }
    }

    /// Removes a key. Returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let at = self.chunk_of(key);
        let shared = self.chunks.get_mut(at)?;
        let place = shared.binary_search_by(|(other, _)| other.borrow().cmp(key)).ok()?;
        let chunk = Arc::make_mut(shared);
        let (_, value) = chunk.remove(place);
        if chunk.is_empty() {
            self.chunks.remove(at);
        }
        self.len -= 1;
        Some(value)
    }

    /// Mutable value of a key.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let at = self.chunk_of(key);
        let shared = self.chunks.get_mut(at)?;
        let place = shared.binary_search_by(|(other, _)| other.borrow().cmp(key)).ok()?;
        Some(&mut Arc::make_mut(shared)[place].1)
    }

    /// Index of the chunk of `key`; 0 for an empty map with one empty chunk.
    fn chunk_of_maybe_empty(&self, key: &K) -> usize {
        if self.len == 0 { 0 } else { self.chunk_of(key) }
    }
}

/// Comparison.
impl<K: Ord, V: PartialEq, const CHUNK: usize> PersistentMap<K, V, CHUNK> {
    /// Calls `see` for each key whose value differs, in order, with its values in `self` and in `next`. The
    /// cost is that of the chunks that the maps do not share.
    pub fn for_each_difference<'a>(
        &'a self,
        next: &'a Self,
        mut see: impl FnMut(&'a K, Option<&'a V>, Option<&'a V>),
    ) {
        let (mut old, mut new) = (Cursor::start(&self.chunks), Cursor::start(&next.chunks));
        loop {
            while old.shares_chunk_with(&new) {
                old.next_chunk();
                new.next_chunk();
            }
            match (old.entry(), new.entry()) {
                (None, None) => return,
                (Some((key, value)), next) if next.is_none_or(|(other, _)| key < other) => {
                    see(key, Some(value), None);
                    old.next_entry();
                }
                (before, Some((key, value))) if before.is_none_or(|(other, _)| key < other) => {
                    see(key, None, Some(value));
                    new.next_entry();
                }
                (before, after) => {
                    let ((key, before), (_, after)) =
                        (before.expect("equal keys"), after.expect("equal keys"));
                    if before != after {
                        see(key, Some(before), Some(after));
                    }
                    old.next_entry();
                    new.next_entry();
                }
            }
        }
    }
}

/// Position in a map.
struct Cursor<'a, K, V> {
    chunks: &'a [Arc<Chunk<K, V>>],
    entry: usize,
}

impl<'a, K, V> Cursor<'a, K, V> {
    fn start(chunks: &'a [Arc<Chunk<K, V>>]) -> Self {
        Cursor { chunks, entry: 0 }
    }

    fn shares_chunk_with(&self, other: &Self) -> bool {
        let at_start = self.entry == 0 && other.entry == 0;
        let chunks = self.chunks.first().zip(other.chunks.first());
        at_start && chunks.is_some_and(|(ours, theirs)| Arc::ptr_eq(ours, theirs))
    }

    fn entry(&self) -> Option<&'a (K, V)> {
        self.chunks.first().map(|chunk| &chunk[self.entry])
    }

    fn next_entry(&mut self) {
        self.entry += 1;
        if self.entry == self.chunks[0].len() {
            self.next_chunk();
        }
    }

    fn next_chunk(&mut self) {
        (self.chunks, self.entry) = (&self.chunks[1..], 0);
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<(&'a K, &'a V)> {
        loop {
            if let Some((key, value)) = self.entries.next() {
                return Some((key, value));
            }
            self.entries = self.chunks.next()?.iter();
        }
    }
}

impl<K, V> Clone for Iter<'_, K, V> {
    fn clone(&self) -> Self {
        Iter { chunks: self.chunks.clone(), entries: self.entries.clone() }
    }
}

impl<'a, K: Ord, V, const CHUNK: usize> IntoIterator for &'a PersistentMap<K, V, CHUNK> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

impl<K: Ord, V, Q: Ord + ?Sized, const CHUNK: usize> Index<&Q> for PersistentMap<K, V, CHUNK>
where
    K: Borrow<Q>,
{
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("no entry for the key")
    }
}

impl<K: Ord, V, const CHUNK: usize> Default for PersistentMap<K, V, CHUNK> {
    fn default() -> Self {
        PersistentMap::new()
    }
}

impl<K: Ord, V, const CHUNK: usize> From<BTreeMap<K, V>> for PersistentMap<K, V, CHUNK> {
    fn from(map: BTreeMap<K, V>) -> Self {
        let len = map.len();
        let mut entries = map.into_iter();
        let chunk =
            || Some(entries.by_ref().take(CHUNK).collect()).filter(|chunk: &Chunk<K, V>| !chunk.is_empty());
        PersistentMap { chunks: std::iter::from_fn(chunk).map(Arc::new).collect(), len }
    }
}

impl<K: Ord, V, const CHUNK: usize, const N: usize> From<[(K, V); N]> for PersistentMap<K, V, CHUNK> {
    fn from(entries: [(K, V); N]) -> Self {
        BTreeMap::from(entries).into()
    }
}

/// Collects entries. Of equal keys the last one counts.
impl<K: Ord, V, const CHUNK: usize> FromIterator<(K, V)> for PersistentMap<K, V, CHUNK> {
    fn from_iter<T: IntoIterator<Item = (K, V)>>(entries: T) -> Self {
        entries.into_iter().collect::<BTreeMap<K, V>>().into()
    }
}

impl<K: Ord + Clone, V: Clone, const CHUNK: usize> Extend<(K, V)> for PersistentMap<K, V, CHUNK> {
    fn extend<T: IntoIterator<Item = (K, V)>>(&mut self, entries: T) {
        entries.into_iter().for_each(|(key, value)| _ = self.insert(key, value));
    }
}

/// Compares two maps at the cost of the chunks that they do not share.
impl<K: Ord, V: PartialEq, const CHUNK: usize> PartialEq for PersistentMap<K, V, CHUNK> {
    fn eq(&self, other: &Self) -> bool {
        let (mut one, mut other) = (Cursor::start(&self.chunks), Cursor::start(&other.chunks));
        loop {
            if one.shares_chunk_with(&other) {
                one.next_chunk();
                other.next_chunk();
                continue;
            }
            match (one.entry(), other.entry()) {
                (None, None) => return true,
                (Some(ours), Some(theirs)) if ours == theirs => {
                    one.next_entry();
                    other.next_entry();
                }
                _ => return false,
            }
        }
    }
}

impl<K: Ord, V: Eq, const CHUNK: usize> Eq for PersistentMap<K, V, CHUNK> {}

impl<K: Ord + fmt::Debug, V: fmt::Debug, const CHUNK: usize> fmt::Debug for PersistentMap<K, V, CHUNK> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<K: Ord + Serialize, V: Serialize, const CHUNK: usize> Serialize for PersistentMap<K, V, CHUNK> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

impl<'de, K, V, const CHUNK: usize> Deserialize<'de> for PersistentMap<K, V, CHUNK>
where
    K: Ord + Deserialize<'de>,
    V: Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests;
