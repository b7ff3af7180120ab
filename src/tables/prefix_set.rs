//! Sorted prefixes of one family, the source of a compiled trie and of its updates.

use std::sync::Arc;

use ipnet::IpNet;

/// Number of prefixes in a chunk, the unit of copying.
const CHUNK: usize = 256;

/// Prefix and its value. Addresses of both families occupy the upper bits of 128.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// Address, with zero bits after the prefix.
    pub(super) bits: u128,
    /// Length of the prefix.
    pub(super) len: u8,
    /// Value.
    pub(super) value: u32,
}

impl Entry {
    /// Entry of `prefix`.
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

/// Mask of the first `len` bits.
pub(super) fn mask(len: u8) -> u128 {
    if len == 0 { 0 } else { u128::MAX << (128 - u32::from(len)) }
}

/// Sorted prefixes; a prefix precedes the prefixes that it contains. Clones share unchanged chunks.
#[derive(Clone)]
pub(super) struct PrefixSet {
    chunks: Vec<Arc<Vec<Entry>>>,
    /// Number of prefixes of each length. Lookups skip unused lengths.
    lengths: [u32; 129],
}

impl PrefixSet {
    /// Set of `entries`; of equal prefixes the last one counts.
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

    /// Adds or replaces a prefix. Returns the previous value.
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

    /// Removes a prefix. Returns its value.
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

    /// Value of exactly this prefix.
    pub(super) fn get(&self, bits: u128, len: u8) -> Option<u32> {
        let chunk = self.chunks.get(self.chunk_of((bits, len)))?;
        let found = chunk.binary_search_by_key(&(bits, len), Entry::key).ok()?;
        Some(chunk[found].value)
    }

    /// Value of the longest prefix shorter than `len` that contains `bits`.
    pub(super) fn cover(&self, bits: u128, len: u8) -> Option<u32> {
        let mut lengths = (0..len).rev().filter(|&len| self.lengths[len as usize] > 0);
        lengths.find_map(|len| self.get(bits & mask(len), len))
    }

    /// Prefixes within `bits/len`, itself included.
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

    /// Index of the chunk of `key`.
    fn chunk_of(&self, key: (u128, u8)) -> usize {
        self.chunks.partition_point(|chunk| chunk[0].key() <= key).saturating_sub(1)
    }
}
