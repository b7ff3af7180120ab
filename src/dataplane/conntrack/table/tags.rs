//! Tags of a bucket: one byte for each slot, in two atomic words.
//!
//! The low seven bits of a byte are the tag of its slot. The top bits of the first word's bytes are the
//! bucket's overflow count: the number of keys whose first bucket this is and that lie in their second one.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::super::parts::AtomicU64;
use super::slot::BUCKET_SLOTS;
use crate::mem::bytes_equal;

/// Tag of a slot that a new flow may take.
pub(in crate::dataplane::conntrack) const FREE: u8 = 0;
/// Tag of a slot whose flow has ended, until no worker can hold its number.
pub(in crate::dataplane::conntrack) const TOMBSTONE: u8 = 1;

const TAG_BITS: u64 = 0x7f7f_7f7f_7f7f_7f7f;
const LOW_BITS: u64 = 0x0101_0101_0101_0101;
/// Largest overflow count. It stays: of a bucket that has reached it, every lookup reads the second bucket
/// too.
const OVERFLOW_MAX: u8 = u8::MAX;

/// Tags of the slots of one bucket.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub(in crate::dataplane::conntrack) struct BucketTags([AtomicU64; 2]);

/// Tags of a bucket at the moment of a load.
#[derive(Clone, Copy)]
pub(super) struct LoadedTags([u64; 2]);

impl BucketTags {
    /// The tags in these words of memory.
    pub(in crate::dataplane::conntrack) fn from_words(words: [u64; 2]) -> BucketTags {
        BucketTags(words.map(AtomicU64::new))
    }

    /// Loads all tags.
    #[inline]
    pub(super) fn load(&self) -> LoadedTags {
        let [low, high] = &self.0;
        LoadedTags([low.load(Acquire), high.load(Acquire)])
    }

    /// Reads something of the tags, so that they are in the cache.
    #[inline]
    pub(super) fn touch(&self) -> u64 {
        self.0[0].load(Relaxed)
    }

    /// The tag at a position.
    pub(super) fn tag(&self, position: usize) -> u8 {
        (self.0[position / 8].load(Acquire) >> shift_of(position)) as u8 & 0x7f
    }

    /// Replaces the tag at a position.
    pub(super) fn set(&self, position: usize, tag: u8) {
        let shift = shift_of(position);
        let set = |old: u64| Some(old & !(0x7f << shift) | u64::from(tag) << shift);
        let _ = self.0[position / 8].fetch_update(AcqRel, Relaxed, set);
    }

    /// Writes `tag` into a free slot: the one at `preferred`, else one of the same word, else one of the
    /// other word. Returns its position; `None` where the bucket is full.
    pub(super) fn claim(&self, preferred: usize, tag: u8) -> Option<usize> {
        let preferred_word = preferred / 8;
        for word_index in [preferred_word, 1 - preferred_word] {
            let word = &self.0[word_index];
            let mut old = word.load(Acquire);
            loop {
                let free = zero_bytes(old & TAG_BITS);
                if free == 0 {
                    break;
                }
                let wanted = 0x80 << shift_of(preferred);
                let taken = if word_index == preferred_word && free & wanted != 0 { wanted } else { free };
                let position = taken.trailing_zeros() / 8;
                let new = old | u64::from(tag) << (8 * position);
                match word.compare_exchange_weak(old, new, AcqRel, Acquire) {
                    Ok(_) => return Some(word_index * 8 + position as usize),
                    Err(found) => old = found,
                }
            }
        }
        None
    }

    /// Whether a key whose first bucket this is may lie in its second one.
    #[inline]
    pub(in crate::dataplane::conntrack) fn has_overflow(&self) -> bool {
        self.0[0].load(Acquire) & !TAG_BITS != 0
    }

    /// Changes the overflow count.
    pub(super) fn add_overflow(&self, change: i16) {
        let add = |old: u64| {
            let count = gather_top_bits(old);
            let new = if count == OVERFLOW_MAX {
                OVERFLOW_MAX
            } else {
                (i16::from(count) + change).clamp(0, i16::from(OVERFLOW_MAX)) as u8
            };
            Some(old & TAG_BITS | scatter_top_bits(new))
        };
        let _ = self.0[0].fetch_update(AcqRel, Relaxed, add);
    }

    /// Sets the overflow count to zero, whatever a file has in these bits.
    pub(super) fn clear_overflow(&self) {
        for word in &self.0 {
            word.fetch_and(TAG_BITS, AcqRel);
        }
    }
}

impl LoadedTags {
    /// Positions with this tag, a bit each.
    #[inline]
    pub(super) fn with(self, tag: u8) -> u16 {
        bytes_equal(self.0.map(|word| word & TAG_BITS), tag)
    }

    /// The tag at a position.
    #[inline]
    pub(super) fn tag(self, position: usize) -> u8 {
        (self.0[position / 8] >> shift_of(position)) as u8 & 0x7f
    }

    /// Whether a key whose first bucket this is may lie in its second one.
    #[inline]
    pub(super) fn has_overflow(self) -> bool {
        self.0[0] & !TAG_BITS != 0
    }
}

/// The tag of a hash: seven bits that choose no bucket, neither [`FREE`] nor [`TOMBSTONE`].
#[inline]
pub(in crate::dataplane::conntrack) fn tag_of(hash: u64) -> u8 {
    ((hash >> 57) as u8).max(TOMBSTONE + 1)
}

#[inline]
fn shift_of(position: usize) -> u32 {
    const { assert!(BUCKET_SLOTS == 16) };
    position as u32 % 8 * 8
}

/// A set top bit for each byte of `word` that is zero; all bytes are below 0x80.
#[inline]
fn zero_bytes(word: u64) -> u64 {
    !(word + TAG_BITS) & !TAG_BITS
}

/// The top bits of the bytes of `word`, that of the lowest byte first.
#[inline]
fn gather_top_bits(word: u64) -> u8 {
    // The product moves each bit to a place of its own in the highest byte; no two of its terms meet below
    // it.
    ((word >> 7 & LOW_BITS).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

fn scatter_top_bits(bits: u8) -> u64 {
    (0..8).fold(0, |word, i| word | u64::from(bits >> i & 1) << (8 * i + 7))
}
