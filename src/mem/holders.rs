//! Reference count of memory that its holders share, as the one of [`std::sync::Arc`].

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::parts::{AtomicUsize, fence};

/// Number of holders.
pub(super) struct Holders(AtomicUsize);

impl Holders {
    /// Count of memory with one holder.
    pub(super) fn one() -> Holders {
        Holders(AtomicUsize::new(1))
    }

    /// Whether the caller, a holder, is the only one. It may write then.
    pub(super) fn is_one(&self) -> bool {
        // Acquire: the reads of an earlier holder happen before its release of the memory.
        self.0.load(Acquire) == 1
    }

    /// Adds a holder, on behalf of another one.
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// Removes a holder. Returns whether it was the last one, which gives the memory back.
    pub(super) fn remove(&self) -> bool {
        let is_last = self.0.fetch_sub(1, Release) == 1;
        if is_last {
            // Acquire: all accesses of the other holders happen before the memory is reused.
            fence(Acquire);
        }
        is_last
    }
}
