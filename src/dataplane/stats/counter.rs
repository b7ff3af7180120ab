//! Counter with one writer, a worker, and any number of readers.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counter with one writer: an increment is a load and a store, without a locked instruction.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// A counter at zero.
    pub(super) const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    /// Adds to the counter. Only the writer calls this.
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
