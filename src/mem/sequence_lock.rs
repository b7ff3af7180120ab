//! Sequence lock (`seqlock_t` in the kernel's `include/linux/seqlock.h`): a reader never waits for a writer, and
//! notices a write that overlaps its reads. A writer that finds another one there skips its write, so that nobody
//! waits.
//!
//! The words that the lock protects are relaxed atomics of its owner. One more word holds the version, and beside it
//! a payload of the owner, which a reader gets without another load. A version returns after all its values: the
//! owner chooses so many bits that no reader is away for so long.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::parts::{AtomicU64, fence};

/// Sequence lock with a version in the low `VERSION_BITS` bits of its word, odd during a write, and the payload in the
/// bits above.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct SequenceLock<const VERSION_BITS: u32>(AtomicU64);

impl<const VERSION_BITS: u32> SequenceLock<VERSION_BITS> {
    /// Bits of the version.
    pub(crate) const VERSION: u64 = u64::MAX >> (64 - VERSION_BITS);

    /// The lock in this word of memory.
    pub(crate) fn from_word(word: u64) -> Self {
        SequenceLock(AtomicU64::new(word))
    }

    /// Version and payload, for a thread that orders its accesses by other means.
    #[inline(always)]
    pub(crate) fn word(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Reads the protected words by `read`, which may refuse them. Returns its result with the lock's word, unless a
    /// write overlaps.
    #[inline(always)]
    pub(crate) fn read<T>(&self, read: impl FnOnce() -> Option<T>) -> Option<(u64, T)> {
        // Acquire: a reader of a version reads the words of its write, or of a later one.
        let before = self.0.load(Acquire);
        let value = read()?;
        // A word of a later write makes the odd version before it visible to the load below.
        fence(Acquire);
        let after = self.0.load(Relaxed);
        if (before ^ after) & Self::VERSION != 0 || before & 1 != 0 {
            return None;
        }
        Some((after, value))
    }

    /// Stores the protected words by `write`, then the payload; the version's bits of `payload` are ignored. Returns
    /// false, and stores nothing, if another thread writes or changes the payload at the same time.
    #[inline]
    pub(crate) fn write(&self, payload: u64, write: impl FnOnce()) -> bool {
        self.write_over(self.word(), payload, write)
    }

    /// The same, unless the protected words have been written since the version of `word` was read.
    #[inline]
    pub(crate) fn write_over(&self, word: u64, payload: u64, write: impl FnOnce()) -> bool {
        let before = self.word();
        let odd = before & !Self::VERSION | before.wrapping_add(1) & Self::VERSION;
        // Acquire: stores of the write before precede those of this one.
        if (before ^ word) & Self::VERSION != 0
            || before & 1 != 0
            || self.0.compare_exchange(before, odd, Acquire, Relaxed).is_err()
        {
            return false;
        }
        // A reader of a word that is stored below sees the odd version.
        fence(Release);
        write();
        self.0.store(payload & !Self::VERSION | odd.wrapping_add(1) & Self::VERSION, Release);
        true
    }

    /// Replaces the payload by `change` of the lock's word. Returns false, and changes nothing, if the protected words
    /// have been written since the version of `word` was read.
    #[inline]
    pub(crate) fn update(&self, word: u64, change: impl FnOnce(u64) -> u64) -> bool {
        let before = self.word();
        let after = change(before) & !Self::VERSION | before & Self::VERSION;
        (before ^ word) & Self::VERSION == 0
            && self.0.compare_exchange(before, after, Relaxed, Relaxed).is_ok()
    }

    /// Makes the word zero, where no other thread uses the lock.
    pub(crate) fn reset(&self) {
        self.0.store(0, Relaxed);
    }
}
