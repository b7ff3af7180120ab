//! Choice of the slot that a new flow takes.

use super::layout::Conntrack;
use super::slot::Slot;
use super::tags::FREE;

/// A bucket with at most this many free slots leaves them to keys whose second bucket has no more.
const CROWDED_FREE_SLOTS: usize = 4;
/// An insertion that finds at most this many free slots in the two buckets of its key has another flow
/// evicted.
pub(super) const SPARE_SLOTS: u32 = 4;
const _: () =
    assert!(SPARE_SLOTS as usize <= CROWDED_FREE_SLOTS, "a bucket that is not crowded has slots to spare");

impl Conntrack {
    /// The free slots of a bucket, a bit each.
    #[inline]
    pub(super) fn free_in(&self, bucket: usize) -> u16 {
        self.buckets[bucket].load().with(FREE)
    }

    /// Whether a key goes to its second bucket although the first has a free slot: the first has few, and the
    /// second has more. So buckets fill evenly, and nearly all slots of the table are taken before an
    /// insertion finds none.
    pub(super) fn is_crowded_beside(&self, first: usize, second: usize) -> bool {
        let free = self.free_in(first);
        is_crowded(free) && free.count_ones() < self.free_in(second).count_ones()
    }

    /// The slot of a bucket that an insertion takes: the one that
    /// [`BucketTags::claim`](super::tags::BucketTags::claim) chooses.
    #[inline(always)]
    pub(super) fn insert_slot(&self, bucket: usize, hash: u64, free: u16) -> Slot {
        let at = self.primary_slot(hash).position();
        let same_word = free & 0xff << (at & 8);
        let first = if same_word != 0 { same_word } else { free }.trailing_zeros() as usize;
        Slot::at(bucket, if free == 0 || free >> at & 1 != 0 { at } else { first })
    }
}

/// Whether at most [`CROWDED_FREE_SLOTS`] of the slots of a bucket are free.
#[inline]
pub(super) fn is_crowded(free: u16) -> bool {
    // The baseline x86-64 target has no POPCNT: clearing the lowest bit four times is shorter than counting
    // all.
    (0..CROWDED_FREE_SLOTS).fold(free, |rest, _| rest & rest.wrapping_sub(1)) == 0
}
