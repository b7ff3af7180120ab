//! The prefixes of one family in order: what a compiled trie is built from, and rebuilt from where it changes.

use std::sync::Arc;

use ipnet::IpNet;

/// Prefixes of one list that a change copies.
const CHUNK: usize = 256;

/// A prefix and what it leads to. Addresses of both families stand at the top of 128 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// The address, bits after the prefix zero.
    pub(super) bits: u128,
    /// Bits of the prefix.
    pub(super) len: u8,
    /// What it leads to.
    pub(super) value: u32,
}

impl Entry {
    /// The entry of `prefix`.
    pub(super) fn new(prefix: IpNet, value: u32) -> Entry {
        let bits = match prefix.network() {
            std::net::IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
            std::net::IpAddr::V6(address) => address.to_bits(),
        };
        Entry { bits, len: prefix.prefix_len(), value }
    }

    fn key(&self) -> (u128, u8) {
        (self.bits, self.len)
    }
}

/// The first `len` bits set.
pub(super) fn mask(len: u8) -> u128 {
    if len == 0 { 0 } else { u128::MAX << (128 - u32::from(len)) }
}

/// Sorted prefixes, a covering one before what it covers. Clones share what has not changed since.
#[derive(Clone)]
pub(super) struct PrefixSet {
    chunks: Vec<Arc<Vec<Entry>>>,
    /// How many prefixes have each length: only lengths in use are looked for.
    lengths: [u32; 129],
}

impl PrefixSet {
    /// The set of `entries`; of equal prefixes the last one counts.
    pub(super) fn new(mut entries: Vec<Entry>) -> PrefixSet {
        if !entries.is_sorted_by(|a, b| a.key() < b.key()) {
            entries.sort_by_key(Entry::key);
            entries.reverse();
            entries.dedup_by_key(|entry| entry.key());
            entries.reverse();
        }
        let mut lengths = [0; 129];
        for entry in &entries {
            lengths[entry.len as usize] += 1;
        }
        PrefixSet { chunks: entries.chunks(CHUNK).map(|chunk| Arc::new(chunk.to_vec())).collect(), lengths }
    }

    /// Number of prefixes.
    pub(super) fn len(&self) -> usize {
        self.lengths.iter().map(|&count| count as usize).sum()
    }

    /// Adds or replaces; gives the value that was there.
    pub(super) fn insert(&mut self, entry: Entry) -> Option<u32> {
        if self.chunks.is_empty() {
            self.chunks.push(Arc::new(vec![entry]));
            self.lengths[entry.len as usize] += 1;
            return None;
        }
        let at = self.chunk_of(entry.key());
        let chunk = Arc::make_mut(&mut self.chunks[at]);
        match chunk.binary_search_by_key(&entry.key(), Entry::key) {
            Ok(found) => Some(std::mem::replace(&mut chunk[found], entry).value),
            Err(place) => {
                chunk.insert(place, entry);
                self.lengths[entry.len as usize] += 1;
                if chunk.len() > 2 * CHUNK {
                    let upper = chunk.split_off(CHUNK);
                    self.chunks.insert(at + 1, Arc::new(upper));
                }
                None
            }
        }
    }

    /// Removes; gives the value that was there.
    pub(super) fn remove(&mut self, bits: u128, len: u8) -> Option<u32> {
        self.get(bits, len)?;
        let at = self.chunk_of((bits, len));
        let chunk = Arc::make_mut(&mut self.chunks[at]);
        let found = chunk.binary_search_by_key(&(bits, len), Entry::key).ok()?;
        let value = chunk.remove(found).value;
        if chunk.is_empty() {
            self.chunks.remove(at);
        }
        self.lengths[len as usize] -= 1;
        Some(value)
    }

    /// What exactly this prefix leads to.
    pub(super) fn get(&self, bits: u128, len: u8) -> Option<u32> {
        let chunk = self.chunks.get(self.chunk_of((bits, len)))?;
        let found = chunk.binary_search_by_key(&(bits, len), Entry::key).ok()?;
        Some(chunk[found].value)
    }

    /// What the longest prefix that is shorter than `len` and covers `bits` leads to.
    pub(super) fn cover(&self, bits: u128, len: u8) -> Option<u32> {
        let mut lengths = (0..len).rev().filter(|&len| self.lengths[len as usize] > 0);
        lengths.find_map(|len| self.get(bits & mask(len), len))
    }

    /// The prefixes inside `bits/len`, itself included.
    pub(super) fn within(&self, bits: u128, len: u8) -> Vec<Entry> {
        let last = bits | !mask(len);
        let from = self.chunk_of((bits, len));
        let chunks = self.chunks.iter().skip(from);
        let chunks = chunks.take_while(|chunk| chunk.first().is_some_and(|entry| entry.bits <= last));
        let mut found = Vec::new();
        for chunk in chunks {
            let start = chunk.partition_point(|entry| entry.key() < (bits, len));
            let end = chunk.partition_point(|entry| entry.bits <= last);
            found.extend_from_slice(&chunk[start..end]);
        }
        found
    }

    /// The chunk that holds `key`, if any does.
    fn chunk_of(&self, key: (u128, u8)) -> usize {
        self.chunks.partition_point(|chunk| chunk[0].key() <= key).saturating_sub(1)
    }
}
