//! Lists of records that no flow has.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A list of records, the last added first (Treiber, "Systems Programming: Coping with Parallelism", 1986).
#[derive(Default)]
pub(super) struct RecordList {
    /// In the upper half the number of changes, in the lower one the number of the first record, and one; zero: none.
    head: AtomicU64,
}

impl RecordList {
    pub(super) fn push(&self, number: u32, next: &[AtomicU32]) {
        let add = |head: u64| {
            next[number as usize].store(head as u32, Relaxed);
            Some(changed(head) | u64::from(number + 1))
        };
        let _ = self.head.fetch_update(AcqRel, Acquire, add);
    }

    pub(super) fn pop(&self, next: &[AtomicU32]) -> Option<u32> {
        // The number of changes tells another list that begins with the same record.
        let remove = |head: u64| {
            let first = (head as u32).checked_sub(1)?;
            Some(changed(head) | u64::from(next[first as usize].load(Relaxed)))
        };
        self.head.fetch_update(AcqRel, Acquire, remove).ok().map(|head| head as u32 - 1)
    }

    /// Empties the list. Returns its first record, and one; zero: none.
    pub(super) fn take_all(&self) -> u32 {
        self.head.fetch_update(AcqRel, Acquire, |head| Some(changed(head))).map_or(0, |head| head as u32)
    }
}

/// The head of a list after one more change, without its first record.
fn changed(head: u64) -> u64 {
    (head >> 32).wrapping_add(1) << 32
}
