//! Lookup of a single key by tags.

use super::super::entry::Entry;
use super::super::key::Key;
use super::layout::Conntrack;
use super::placement::is_crowded;
use super::slot::{BUCKET_SLOTS, Slot};
use super::tags::{FREE, tag_of};
use crate::mem::prefetch_read;

/// Result of comparing a key's tag with those of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::dataplane::conntrack) enum TagMatch {
    /// This slot is the first with the tag. Its entry may still be another flow's.
    Slot(Slot),
    /// The second bucket has to be searched too.
    SecondBucket,
    /// The table has no such flow. An insertion takes this slot; [`Slot::NONE`] where the caller has not
    /// asked for one.
    None(Slot),
}

impl Conntrack {
    /// The slot of a key.
    pub(crate) fn look_up(&self, key: &Key, hash: u64) -> Option<Slot> {
        let first = self.first_bucket(hash);
        let found = self.find_in_bucket(first, key, hash);
        if found.is_some() || !self.has_overflow(first) {
            return found;
        }
        self.find_in_bucket(self.second_bucket(hash), key, hash)
    }

    #[inline]
    fn find_in_bucket(&self, bucket: usize, key: &Key, hash: u64) -> Option<Slot> {
        self.slots_tagged(bucket, tag_of(hash)).find(|slot| self.entry(*slot).matches(key, true))
    }

    /// Slots of a bucket that have this tag.
    #[inline]
    pub(super) fn slots_tagged(&self, bucket: usize, tag: u8) -> impl Iterator<Item = Slot> + use<> {
        // One bit a slot: a branch on the word that a slot's tag is in would be unpredictable.
        let mut hits = self.buckets[bucket].load().with(tag);
        let base = (bucket * BUCKET_SLOTS) as u32;
        std::iter::from_fn(move || {
            let slot = (hits != 0).then(|| Slot(base + hits.trailing_zeros()));
            hits &= hits.wrapping_sub(1);
            slot
        })
    }

    /// Whether the tags of a key's first bucket leave it open that the table has the key.
    #[inline]
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        !matches!(self.match_tags(hash, false), TagMatch::None(_))
    }

    /// Starts to load the tags of a key's first bucket.
    #[inline]
    pub(crate) fn prefetch_tags(&self, hash: u64) {
        prefetch_read(&self.buckets[self.first_bucket(hash)]);
    }

    /// Compares the tags of a key's first bucket, from its primary slot on and around the bucket. With
    /// `for_insert`, a key that is not in the table gets the slot that an insertion takes.
    #[inline(always)]
    pub(in crate::dataplane::conntrack) fn match_tags(&self, hash: u64, for_insert: bool) -> TagMatch {
        let bucket = self.first_bucket(hash);
        let tags = self.buckets[bucket].load();
        let hits = tags.with(tag_of(hash));
        if hits != 0 {
            let at = self.primary_slot(hash).position();
            let behind = hits.rotate_right(at as u32).trailing_zeros() as usize;
            return TagMatch::Slot(Slot::at(bucket, (at + behind) % BUCKET_SLOTS));
        }
        if tags.has_overflow() {
            return TagMatch::SecondBucket;
        }
        if !for_insert {
            return TagMatch::None(Slot::NONE);
        }
        let free = tags.with(FREE);
        if is_crowded(free) {
            TagMatch::SecondBucket
        } else {
            TagMatch::None(self.insert_slot(bucket, hash, free))
        }
    }

    /// Compares the tags of the second bucket of a key for which [`Conntrack::match_tags`] returned
    /// [`TagMatch::SecondBucket`].
    #[inline(always)]
    pub(in crate::dataplane::conntrack) fn match_second_bucket(&self, hash: u64) -> TagMatch {
        let (first, second) = (self.first_bucket(hash), self.second_bucket(hash));
        if let Some(slot) = self.slots_tagged(second, tag_of(hash)).next() {
            return TagMatch::Slot(slot);
        }
        let bucket = if self.is_crowded_beside(first, second) { second } else { first };
        TagMatch::None(self.insert_slot(bucket, hash, self.free_in(bucket)))
    }

    /// The slot of a key: `candidate`, the one that tags named in this batch, if its entry has the key, else
    /// any other.
    #[inline(always)]
    pub(in crate::dataplane::conntrack) fn find(
        &self,
        key: &Key,
        from_low: bool,
        candidate: Slot,
    ) -> Option<Slot> {
        if self.entries.get(candidate.0 as usize).is_some_and(|entry| entry.matches(key, from_low)) {
            return Some(candidate);
        }
        self.look_up(key, self.hash(key))
    }

    /// The primary slot of a key, if its entry has it: as a batch looks for it first.
    #[cfg(test)]
    pub(in crate::dataplane::conntrack) fn at_primary_slot(&self, key: &Key, from_low: bool) -> Option<Slot> {
        let primary = self.primary_slot(self.hash(key));
        self.entry(primary).matches(key, from_low).then_some(primary)
    }

    /// The entry that tags name for a key; any entry where they name none.
    #[inline(always)]
    pub(super) fn probable_entry(&self, hash: u64) -> &Entry {
        let found = match self.match_tags(hash, false) {
            TagMatch::SecondBucket => self.match_second_bucket(hash),
            found => found,
        };
        let slot = if let TagMatch::Slot(slot) = found { slot } else { self.primary_slot(hash) };
        self.entry(slot)
    }
}
