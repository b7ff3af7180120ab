//! Slots of the table and the buckets that they lie in.

/// Slots of a bucket.
pub(in crate::dataplane::conntrack) const BUCKET_SLOTS: usize = 16;

/// The number of a slot. Within one batch of a worker it always names the same flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(pub(in crate::dataplane::conntrack) u32);

impl Slot {
    /// The slot with this number.
    #[inline]
    pub(crate) fn of_number(number: u32) -> Slot {
        Slot(number)
    }

    /// Its number.
    #[inline]
    pub(crate) fn number(self) -> u32 {
        self.0
    }

    /// No slot.
    pub(crate) const NONE: Slot = Slot(u32::MAX);

    /// The slot at a position of a bucket.
    #[inline]
    pub(in crate::dataplane::conntrack) fn at(bucket: usize, position: usize) -> Slot {
        Slot((bucket * BUCKET_SLOTS + position) as u32)
    }

    /// Its position in its bucket.
    #[inline]
    pub(super) fn position(self) -> usize {
        self.0 as usize % BUCKET_SLOTS
    }

    /// Its bucket.
    #[inline]
    pub(in crate::dataplane::conntrack) fn bucket(self) -> usize {
        self.0 as usize / BUCKET_SLOTS
    }
}
