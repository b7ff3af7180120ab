//! Addresses as the trie reads them, and as its nodes keep them.

use std::hint::select_unpredictable;

use super::{DENSE, LEAF, Slot, kind, unit};
use crate::tables::arena::{Arena, Unit, first_word};

/// An address as the trie reads it: host byte order, first byte on top.
pub(in crate::tables) trait Address: Copy {
    /// The root's slot for it.
    fn root(self, arena: &Arena) -> Slot;
    /// The slot in what the root's slot leads to, where that is a kind of node that most of its family reach; or the same slot.
    fn step_2(self, _: &Arena, slot: Slot) -> Slot {
        slot
    }
    /// The same one level further down.
    fn step_3(self, _: &Arena, slot: Slot) -> Slot {
        slot
    }
    /// Its byte number `depth`.
    fn byte(self, depth: u32) -> usize;
    /// Whether its first `len` bits are those of a sparse node's key.
    fn has_prefix(self, key: [u32; 4], len: u32) -> bool;
    /// The slot that a leaf gives it.
    fn leaf(self, arena: &Arena, unit: Unit) -> Slot;
}

impl Address for u32 {
    #[inline(always)]
    fn root(self, arena: &Arena) -> Slot {
        arena.word((self >> 16) as usize)
    }

    #[inline(always)]
    fn step_2(self, arena: &Arena, slot: Slot) -> Slot {
        let (leads, is_dense) = (kind(slot) >= LEAF, kind(slot) == DENSE);
        let byte = select_unpredictable(is_dense, self.byte(2), 0);
        let word = select_unpredictable(leads, first_word(unit(slot)) + byte, 0);
        let block = arena.block_at(word);
        let below = select_unpredictable(is_dense, block[word % 4], in_leaf(self, block));
        select_unpredictable(leads, below, slot)
    }

    #[inline(always)]
    fn step_3(self, arena: &Arena, slot: Slot) -> Slot {
        let is_dense = kind(slot) == DENSE;
        let word = select_unpredictable(is_dense, first_word(unit(slot)) + self.byte(3), 0);
        select_unpredictable(is_dense, arena.word(word), slot)
    }

    #[inline]
    fn byte(self, depth: u32) -> usize {
        (self >> (24_u32.wrapping_sub(8 * depth) & 31)) as usize & 0xff
    }

    #[inline]
    fn has_prefix(self, key: [u32; 4], len: u32) -> bool {
        (self ^ key[3]) >> (32_u32.wrapping_sub(len) & 31) == 0
    }

    #[inline]
    fn leaf(self, arena: &Arena, unit: Unit) -> Slot {
        in_leaf(self, arena.block(unit))
    }
}

/// The slot that a leaf's words give an IPv4 address; of other words, anything.
#[inline(always)]
fn in_leaf(address: u32, &[len, value, miss, key]: &[u32; 4]) -> Slot {
    select_unpredictable(address.has_prefix([0, 0, 0, key], len), value, miss)
}

impl Address for u128 {
    #[inline]
    fn root(self, arena: &Arena) -> Slot {
        arena.word((self >> 112) as usize)
    }

    #[inline]
    fn byte(self, depth: u32) -> usize {
        let half = if depth < 8 { (self >> 64) as u64 } else { self as u64 };
        (half >> (56 - 8 * (depth & 7))) as usize & 0xff
    }

    #[inline]
    fn has_prefix(self, key: [u32; 4], len: u32) -> bool {
        (self ^ join(key)) >> ((128 - len) & 127) == 0
    }

    #[inline]
    fn leaf(self, arena: &Arena, unit: Unit) -> Slot {
        let &[len, value, miss, a, b, c, d, _] = arena.block(unit);
        if self.has_prefix([a, b, c, d], len) { value } else { miss }
    }
}

/// The inverse of [`split`].
#[inline]
pub(in crate::tables) fn join([a, b, c, d]: [u32; 4]) -> u128 {
    u128::from(u64::from(d) << 32 | u64::from(c)) << 64 | u128::from(u64::from(b) << 32 | u64::from(a))
}

/// Lowest word first: two of them are one load where the processor is little-endian.
pub(in crate::tables) fn split(bits: u128) -> [u32; 4] {
    [0, 32, 64, 96].map(|shift| (bits >> shift) as u32)
}
