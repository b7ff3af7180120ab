//! Slots of the trie: a value or a node in one word.

use crate::tables::arena::Unit;

/// Stands for "no prefix matches".
pub(in crate::tables) const NO_MATCH: u32 = (1 << 30) - 1;

// In this order, so that one comparison tells dense nodes, and these and leaves, from all else.
pub(super) const VALUE: u32 = 0;
pub(super) const SPARSE: u32 = 1;
pub(super) const LEAF: u32 = 2;
pub(super) const DENSE: u32 = 3;

pub(super) const KIND_SHIFT: u32 = 30;
pub(super) const DEPTH_SHIFT: u32 = 26;
pub(super) const UNIT_MASK: u32 = (1 << DEPTH_SHIFT) - 1;

/// Bits of an address that the root takes.
pub(super) const ROOT_BITS: u8 = 16;
pub(super) const ROOT_SLOTS: usize = 1 << ROOT_BITS;
pub(super) const NODE_SLOTS: usize = 256;
pub(super) const SPARSE_WORDS: usize = 16;
/// A node with more distinct neighbours than this is dense: it would be nearly as large as a sparse one.
pub(super) const SPARSE_RUNS_MAX: usize = 64;
/// While a table has fewer dense nodes than this, every node is dense that can be and tells [`DENSE_WORTH`] things apart; and
/// of the first half every node that can be. So short tables, and networks full of pods in any, have the short way: one line
/// for each look-up where a sparse node is two, but 1 KiB of memory where a sparse node is some 100 bytes.
pub(in crate::tables) const DENSE_NODES_MIN: usize = 4096;
pub(super) const DENSE_WORTH: usize = 16;

/// A slot: a value, or the kind, the byte to look at, and the place of a node.
pub(super) type Slot = u32;

pub(super) fn node(kind: u32, depth: u32, unit: Unit) -> Slot {
    debug_assert!(unit <= UNIT_MASK && depth < 16);
    kind << KIND_SHIFT | depth << DEPTH_SHIFT | unit
}

#[inline]
pub(super) fn kind(slot: Slot) -> u32 {
    slot >> KIND_SHIFT
}

#[inline]
pub(super) fn depth(slot: Slot) -> u32 {
    slot >> DEPTH_SHIFT & 15
}

#[inline]
pub(super) fn unit(slot: Slot) -> Unit {
    slot & UNIT_MASK
}
