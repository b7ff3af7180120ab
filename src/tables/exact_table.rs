//! Exact-match table of IPv6 addresses: prefixes of 128 bits, found in one cache line.
//!
//! Most addresses in the tables belong to pods. A trie needs several dependent loads for an IPv6 address;
//! this hash table needs one. A bucket of one cache line contains three addresses. There is no probing: an
//! address whose bucket is full stays in the trie. The hash has a random seed per process, so that an
//! attacker who chooses addresses cannot choose their buckets.

use std::hash::{BuildHasher, RandomState};
use std::hint::select_unpredictable;
use std::sync::LazyLock;

use super::arena::Arena;
use super::prefix_trie::{NO_MATCH, join, split};

const BUCKET_WORDS: usize = 16;
const ENTRIES: usize = 3;
const KEY_WORDS: usize = 4;
const VALUES: usize = ENTRIES * KEY_WORDS;
/// Maximum number of buckets, 8 MiB. With more than one and a half addresses per bucket, addresses are more
/// likely to stay in the trie.
const BUCKETS_MAX: usize = 1 << 17;

static SEED: LazyLock<[u64; 2]> = LazyLock::new(|| [0, 1].map(|i: u64| RandomState::new().hash_one(i)));

/// Addresses and their values. A clone is cheap and shares unchanged pages.
#[derive(Clone)]
pub(super) struct ExactTable {
    /// Three keys of four words, their values, and an unused word. A free entry has key 0 and [`NO_MATCH`].
    buckets: Arena,
    /// Number of buckets, a power of two, minus one.
    mask: usize,
    len: usize,
    seed: [u64; 2],
}

impl ExactTable {
    /// Table for about `len` addresses.
    pub(super) fn new(len: usize) -> ExactTable {
        let buckets = (len * 2 / 3).clamp(1, BUCKETS_MAX).next_power_of_two();
        let mut arena = Arena::default();
        arena.reserve_pages(buckets * BUCKET_WORDS, 0);
        for place in (0..buckets * ENTRIES).map(Place::number) {
            arena.set(place.value(), NO_MATCH);
        }
        ExactTable { buckets: arena, mask: buckets - 1, len: 0, seed: *SEED }
    }

    /// Number of addresses.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Size of all buckets in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.buckets.bytes()
    }

    /// Value of `address`, or [`NO_MATCH`].
    #[inline]
    pub(super) fn find(&self, address: u128) -> u32 {
        self.find_in(self.bucket(address), address)
    }

    /// First word of the bucket of `address`.
    #[inline]
    pub(super) fn bucket(&self, address: u128) -> usize {
        let (low, high) = (address as u64, (address >> 64) as u64);
        let product = u128::from(low ^ self.seed[0]) * u128::from(high ^ self.seed[1]);
        let hash = product as u64 ^ (product >> 64) as u64;
        (hash as usize & self.mask) * BUCKET_WORDS
    }

    /// Prefetches a bucket.
    #[inline]
    pub(super) fn prefetch(&self, bucket: usize) {
        self.buckets.prefetch(bucket);
    }

    /// Value of `address` in a bucket that [`ExactTable::bucket`] returned.
    #[inline]
    pub(super) fn find_in(&self, bucket: usize, address: u128) -> u32 {
        let words = self.buckets.block_at::<BUCKET_WORDS>(bucket);
        let value = |i: usize| {
            let [a, b, c, d] = [0, 1, 2, 3].map(|word| words[i * KEY_WORDS + word]);
            select_unpredictable(join([a, b, c, d]) == address, words[VALUES + i], NO_MATCH)
        };
        // Address 0 equals the key of free entries, whose value is the highest.
        value(0).min(value(1)).min(value(2))
    }

    /// Adds an address or replaces its value. Returns the previous value, or [`Full`] if the bucket has no
    /// room.
    pub(super) fn insert(&mut self, address: u128, value: u32) -> Result<Option<u32>, Full> {
        if let Some((place, before)) = self.entry(address) {
            self.buckets.set(place.value(), value);
            return Ok(Some(before));
        }
        let mut places = self.places(address);
        let free = places.find(|place| self.buckets.word(place.value()) == NO_MATCH).ok_or(Full)?;
        self.buckets.write(free.key(), &split(address));
        self.buckets.set(free.value(), value);
        self.len += 1;
        Ok(None)
    }

    /// Removes an address. Returns its value.
    pub(super) fn remove(&mut self, address: u128) -> Option<u32> {
        let (place, before) = self.entry(address)?;
        self.buckets.write(place.key(), &[0; KEY_WORDS]);
        self.buckets.set(place.value(), NO_MATCH);
        self.len -= 1;
        Some(before)
    }

    /// Tests whether the table exceeds its planned size and may grow.
    pub(super) fn is_overfull(&self) -> bool {
        let buckets = self.mask + 1;
        self.len > 3 * buckets / 2 && buckets < BUCKETS_MAX
    }

    /// Addresses and their values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u128, u32)> {
        let places = (0..(self.mask + 1) * ENTRIES).map(Place::number);
        let entries = places.map(|place| {
            let key = [0, 1, 2, 3].map(|word| self.buckets.word(place.key() + word));
            (join(key), self.buckets.word(place.value()))
        });
        entries.filter(|&(_, value)| value != NO_MATCH)
    }

    fn places(&self, address: u128) -> impl Iterator<Item = Place> + use<> {
        let bucket = self.bucket(address);
        (0..ENTRIES).map(move |entry| Place { bucket, entry })
    }

    fn entry(&self, address: u128) -> Option<(Place, u32)> {
        let found = self.find(address);
        let holds = |place: &Place| {
            let key = [0, 1, 2, 3].map(|word| self.buckets.word(place.key() + word));
            join(key) == address && self.buckets.word(place.value()) != NO_MATCH
        };
        Some((self.places(address).find(holds)?, found))
    }
}

/// Error: the bucket of an address is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

/// Position of an entry.
#[derive(Clone, Copy)]
struct Place {
    /// First word of the bucket.
    bucket: usize,
    entry: usize,
}

impl Place {
    fn number(i: usize) -> Place {
        Place { bucket: i / ENTRIES * BUCKET_WORDS, entry: i % ENTRIES }
    }

    fn key(self) -> usize {
        self.bucket + self.entry * KEY_WORDS
    }

    fn value(self) -> usize {
        self.bucket + VALUES + self.entry
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {

        #![proptest_config(crate::random::cases(256))]

        #[test]
        fn holds_what_a_map_holds_but_for_what_found_its_bucket_full(
            size in 0..40_usize,
            changes in vec((0..60_u128, prop::option::of(0..9_u32)), 1..200),
        ) {
            let (mut table, mut naive) = (ExactTable::new(size), BTreeMap::new());
            for (address, value) in changes {
                let address = address << 64 | address;
                let Some(value) = value else {
                    prop_assert_eq!(table.remove(address), naive.remove(&address));
                    continue;
                };
                let before = naive.get(&address).copied();
                if let Ok(replaced) = table.insert(address, value) {
                    prop_assert_eq!(replaced, before);
                    naive.insert(address, value);
                } else {
                    prop_assert_eq!(before, None, "what is there can be changed");
                }
            }
            for address in (0..64).map(|i| i << 64 | i) {
                prop_assert_eq!(table.find(address), naive.get(&address).copied().unwrap_or(NO_MATCH));
            }
            prop_assert_eq!(table.len(), naive.len());
            prop_assert_eq!(table.iter().collect::<BTreeMap<_, _>>(), naive);
        }
    }

    #[test]
    fn few_addresses_find_their_bucket_full() {
        // Tables differ in their seeds, and small ones vary more.
        for (len, tables) in [(1_000, 50), (10_000, 5), (100_000, 1)] {
            let full_of_one = |_| {
                let mut table = ExactTable::new(len);
                let pods = (0..len as u128).map(|i| (0xfd00 << 112) | ((i / 250) << 64) | (i % 250));
                pods.filter(|&address| table.insert(address, 1).is_err()).count()
            };
            let full: usize = (0..tables).map(full_of_one).sum();
            assert!(full < len * tables / 8, "{full} of {tables} times {len}");
        }
    }
}
