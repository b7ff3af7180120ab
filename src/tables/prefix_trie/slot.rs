//! Slots of the trie: a value or a node in one word.

use crate::tables::arena::Unit;

/// Value for "no prefix matches".
pub(in crate::tables) const NO_MATCH: u32 = (1 << 30) - 1;

// The order of the kinds permits one comparison for dense nodes, and one for dense nodes and leaves.
pub(super) const VALUE: u32 = 0;
pub(super) const SPARSE: u32 = 1;
pub(super) const LEAF: u32 = 2;
pub(super) const DENSE: u32 = 3;

pub(super) const KIND_SHIFT: u32 = 30;
pub(super) const DEPTH_SHIFT: u32 = 26;
pub(super) const UNIT_MASK: u32 = (1 << DEPTH_SHIFT) - 1;

/// Number of address bits that index the root.
pub(super) const ROOT_BITS: u8 = 16;
pub(super) const ROOT_SLOTS: usize = 1 << ROOT_BITS;
pub(super) const NODE_SLOTS: usize = 256;
pub(super) const SPARSE_WORDS: usize = 16;
/// Maximum number of runs of equal slots in a sparse node: a sparse node with more would be nearly as large
/// as a dense one.
pub(super) const SPARSE_RUNS_MAX: usize = 64;
/// Number of dense nodes up to which every node with [`DENSE_WORTH`] distinct entries is dense; up to half of
/// it every node is. Small tables, and networks of pods in any table, therefore take one load per lookup. A
/// sparse node takes two loads and about 100 bytes, a dense one 1 KiB.
pub(in crate::tables) const DENSE_NODES_MIN: usize = 4096;
pub(super) const DENSE_WORTH: usize = 16;

/// Slot: a value, or the kind, the byte index and the unit of a node.
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
