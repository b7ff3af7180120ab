//! Lookup in the trie.

use std::hint::select_unpredictable;

use super::address::Address;
use super::slot::{DENSE, LEAF, SPARSE, SPARSE_WORDS, Slot, VALUE, depth, kind, unit};
use crate::limits::BATCH_FRAMES_MAX;
use crate::tables::arena::{Arena, first_word};
use crate::tables::prefix_set::PrefixSet;

/// Compiled trie with its prefixes. A clone is cheap and shares all pages.
#[derive(Clone)]
pub(in crate::tables) struct PrefixTrie {
    pub(super) arena: Arena,
    pub(super) prefixes: PrefixSet,
    /// Number of words of a leaf, which contains a key of the length of an address.
    pub(super) leaf_words: usize,
    pub(super) dense_nodes: usize,
    pub(super) dense_nodes_min: usize,
    pub(super) default: u32,
}

impl PrefixTrie {
    /// Number of prefixes.
    pub(in crate::tables) fn len(&self) -> usize {
        self.prefixes.len()
    }

    /// Size of the compiled form in bytes.
    pub(in crate::tables) fn bytes(&self) -> usize {
        self.arena.bytes()
    }

    /// Value of exactly this prefix.
    pub(in crate::tables) fn get(&self, bits: u128, len: u8) -> Option<u32> {
        self.prefixes.get(bits, len)
    }

    /// Value of this prefix, or else of the longest prefix that contains it.
    pub(in crate::tables) fn covering(&self, bits: u128, len: u8) -> Option<u32> {
        self.get(bits, len).or_else(|| self.prefixes.cover(bits, len))
    }
}

/// Lookup.
impl PrefixTrie {
    /// Value of the longest prefix that contains `address`, or the default.
    #[inline]
    pub(in crate::tables) fn find<A: Address>(&self, address: A) -> u32 {
        let mut slot = address.root(&self.arena);
        loop {
            slot = match kind(slot) {
                VALUE => return slot,
                DENSE => self.dense(address, slot),
                SPARSE => self.sparse(address, slot),
                _ => address.leaf(&self.arena, unit(slot)),
            };
        }
    }

    /// Values of several addresses. All take one step before any takes the next, so that loads overlap.
    pub(in crate::tables) fn find_batch<A: Address>(&self, addresses: &[A], found: &mut [u32]) {
        assert_eq!(addresses.len(), found.len(), "one result for each address");
        let chunks = addresses.chunks(BATCH_FRAMES_MAX).zip(found.chunks_mut(BATCH_FRAMES_MAX));
        chunks.for_each(|(addresses, found)| self.find_chunk(addresses, found));
    }

    fn find_chunk<A: Address>(&self, addresses: &[A], found: &mut [u32]) {
        for (&address, found) in addresses.iter().zip(&mut *found) {
            *found = address.root(&self.arena);
        }
        for (&address, found) in addresses.iter().zip(&mut *found) {
            *found = address.step_2(&self.arena, *found);
        }
        let mut open = [0; BATCH_FRAMES_MAX];
        let mut count = 0;
        for (i, (&address, found)) in addresses.iter().zip(&mut *found).enumerate() {
            let slot = address.step_3(&self.arena, *found);
            *found = slot;
            open[count % BATCH_FRAMES_MAX] = i as u8;
            count += usize::from(kind(slot) != VALUE);
        }
        if count > 0 {
            self.find_remaining(addresses, found, &open[..count]);
        }
    }

    /// Completes the lookups that are at a node.
    #[inline(never)]
    fn find_remaining<A: Address>(&self, addresses: &[A], found: &mut [u32], open: &[u8]) {
        let mut lists = [[0; BATCH_FRAMES_MAX]; 3];
        let mut pending = PendingNodes::default();
        for &i in open {
            let slot = found[i as usize];
            pending.push(&mut lists, i, slot);
            self.prefetch(addresses[i as usize], slot);
        }
        while pending.dense + pending.sparse > 0 {
            // The lists are written no faster than they are read.
            for at in 0..std::mem::take(&mut pending.dense) {
                let i = lists[0][at % BATCH_FRAMES_MAX];
                let slot = self.dense(addresses[i as usize], found[i as usize]);
                found[i as usize] = slot;
                pending.push(&mut lists, i, slot);
            }
            for at in 0..std::mem::take(&mut pending.sparse) {
                let i = lists[1][at % BATCH_FRAMES_MAX];
                let slot = self.sparse(addresses[i as usize], found[i as usize]);
                found[i as usize] = slot;
                pending.push(&mut lists, i, slot);
                self.prefetch(addresses[i as usize], slot);
            }
        }
        for &i in &lists[2][..pending.leaf] {
            let i = i as usize;
            found[i] = addresses[i].leaf(&self.arena, unit(found[i]));
        }
    }

    /// Prefetches the load of the next step of an address; of a value, an arbitrary line.
    #[inline]
    fn prefetch<A: Address>(&self, address: A, slot: Slot) {
        let offset = select_unpredictable(kind(slot) == DENSE, address.byte(depth(slot)), 0);
        let is_node = kind(slot) != VALUE;
        self.arena.prefetch(select_unpredictable(is_node, first_word(unit(slot)) + offset, 0));
    }

    #[inline]
    fn dense<A: Address>(&self, address: A, slot: Slot) -> Slot {
        self.arena.word(first_word(unit(slot)) + address.byte(depth(slot)))
    }

    #[inline]
    fn sparse<A: Address>(&self, address: A, slot: Slot) -> Slot {
        let &[a, b, c, d, miss, base, ranks_low, ranks_high, ref bitmap @ ..] =
            self.arena.block::<SPARSE_WORDS>(unit(slot));
        let byte = address.byte(depth(slot));
        let ranks = u64::from(ranks_high) << 32 | u64::from(ranks_low);
        let before = (ranks >> (byte / 32 * 8)) as usize & 0xff;
        // Bits up to and including this one. The first bit of the map is always set.
        let here = bitmap[(byte / 32) & 7] & (u32::MAX >> (31 - byte % 32));
        let found = self.arena.word(first_word(base) + before + here.count_ones() as usize - 1);
        if address.has_prefix([a, b, c, d], 8 * depth(slot)) { found } else { miss }
    }
}

/// Number of addresses of a batch at each kind of node. A list per kind contains their indices.
#[derive(Default)]
struct PendingNodes {
    dense: usize,
    sparse: usize,
    leaf: usize,
}

impl PendingNodes {
    /// Adds an address to the list of its kind. Writes to every list and counts in one: a branch on mixed
    /// kinds would be unpredictable.
    #[inline]
    fn push(&mut self, lists: &mut [[u8; BATCH_FRAMES_MAX]; 3], i: u8, slot: Slot) {
        lists[0][self.dense % BATCH_FRAMES_MAX] = i;
        lists[1][self.sparse % BATCH_FRAMES_MAX] = i;
        lists[2][self.leaf % BATCH_FRAMES_MAX] = i;
        self.dense += usize::from(kind(slot) == DENSE);
        self.sparse += usize::from(kind(slot) == SPARSE);
        self.leaf += usize::from(kind(slot) == LEAF);
    }
}

const _: () = assert!(BATCH_FRAMES_MAX <= 1 << u8::BITS, "a place in a batch is one byte");
