//! Addresses, in the form of lookups and in that of trie nodes.

use std::hint::select_unpredictable;

use super::slot::{DENSE, LEAF, Slot, kind, unit};
use crate::tables::arena::{Arena, Unit, first_word};

/// Address in host byte order, with the first byte on top.
pub(in crate::tables) trait Address: Copy {
    /// Slot of the root.
    fn root(self, arena: &Arena) -> Slot;
    /// Step 2 of a lookup: the slot in a node that most lookups of the family reach; other slots stay.
    fn step_2(self, _: &Arena, slot: Slot) -> Slot {
        slot
    }
    /// Step 3 of a lookup, one level further down.
    fn step_3(self, _: &Arena, slot: Slot) -> Slot {
        slot
    }
    /// Byte number `depth`.
    fn byte(self, depth: u32) -> usize;
    /// Tests whether the first `len` bits equal those of the key of a sparse node.
    fn has_prefix(self, key: [u32; 4], len: u32) -> bool;
    /// Slot of a leaf.
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

/// Slot of an IPv4 leaf; unspecified for other words.
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

/// Inverse of [`split`].
#[inline]
pub(in crate::tables) fn join([a, b, c, d]: [u32; 4]) -> u128 {
    u128::from(u64::from(d) << 32 | u64::from(c)) << 64 | u128::from(u64::from(b) << 32 | u64::from(a))
}

/// Splits an address into words, lowest first: on a little-endian processor two of them are one load.
pub(in crate::tables) fn split(bits: u128) -> [u32; 4] {
    [0, 32, 64, 96].map(|shift| (bits >> shift) as u32)
}
