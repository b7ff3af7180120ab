//! Addresses as the trie reads them, and as its nodes keep them.

use super::Slot;
use crate::tables::arena::{Arena, Unit};

/// An address as the trie reads it: host byte order, first byte on top.
pub(in crate::tables) trait Address: Copy {
    /// Dense nodes that a look-up passes in its first step, without asking whether it has to.
    const DENSE_STEPS: u32;
    /// Its first two bytes.
    fn root(self) -> usize;
    /// Its byte number `depth`.
    fn byte(self, depth: u32) -> usize;
    /// Whether its first `len` bits are those of a sparse node's key.
    fn has_prefix(self, key: [u32; 4], len: u32) -> bool;
    /// The slot that a leaf gives it.
    fn leaf(self, arena: &Arena, unit: Unit) -> Slot;
}

impl Address for u32 {
    const DENSE_STEPS: u32 = 2;

    #[inline]
    fn root(self) -> usize {
        (self >> 16) as usize
    }

    #[inline]
    fn byte(self, depth: u32) -> usize {
        (self >> (24_u32.wrapping_sub(8 * depth) & 31)) as usize & 0xff
    }

    #[inline]
    fn has_prefix(self, key: [u32; 4], len: u32) -> bool {
        (self ^ key[3]) >> ((32 - len) & 31) == 0
    }

    #[inline]
    fn leaf(self, arena: &Arena, unit: Unit) -> Slot {
        let &[len, value, miss, key] = arena.block(unit);
        if self.has_prefix([0, 0, 0, key], len) { value } else { miss }
    }
}

impl Address for u128 {
    const DENSE_STEPS: u32 = 0;

    #[inline]
    fn root(self) -> usize {
        (self >> 112) as usize
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
