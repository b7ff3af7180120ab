//! Halves of entries that one loop loads into the cache.

use super::slot::Slot;
use crate::limits::BATCH_FRAMES_MAX;

/// A half of an entry: twice the number of its slot, plus one for the half of the higher end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HalfId(u32);

impl HalfId {
    #[inline]
    pub(super) fn new(slot: Slot, is_low: bool) -> HalfId {
        HalfId(slot.0 << 1 | u32::from(!is_low))
    }

    /// The other half of the entry.
    #[inline]
    fn other(self) -> HalfId {
        HalfId(self.0 ^ 1)
    }

    #[inline]
    pub(super) fn slot(self) -> Slot {
        Slot(self.0 >> 1)
    }

    #[inline]
    pub(super) fn is_low(self) -> bool {
        self.0 & 1 == 0
    }
}

/// A list of halves: at most two a packet of a batch.
pub(super) struct HalfList {
    halves: [HalfId; 2 * BATCH_FRAMES_MAX],
    len: usize,
}

impl HalfList {
    pub(super) fn new() -> HalfList {
        HalfList { halves: [HalfId(0); 2 * BATCH_FRAMES_MAX], len: 0 }
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds a half, and with `both` the other one of its entry.
    #[inline(always)]
    pub(super) fn add(&mut self, half: HalfId, both: bool) {
        if let Some([first, second]) = self.halves.get_mut(self.len..self.len + 2) {
            (*first, *second) = (half, half.other());
            self.len += 1 + usize::from(both);
        }
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[HalfId] {
        &self.halves[..self.len]
    }
}
