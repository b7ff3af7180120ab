//! Verdicts on first fragments, shared by all workers: the kernel may deliver the fragments of one datagram
//! to different queues.
//!
//! Each slot has a sequence lock. Nobody waits: a reader that finds a writer there has read nothing, and a
//! writer skips the slot. `loom_tests.rs` explores the interleavings.

use std::sync::atomic::Ordering;

use super::first_verdict::{FirstRecord, FirstVerdict};
use super::parts::{AtomicU32, AtomicU64, FIRST_VERDICTS_SHARED_MAX, PROBES, SequenceLock};
use crate::dataplane::conntrack::Key;
use crate::limits::FRAGMENT_TIMEOUT_MS;

const WORDS: usize = 7;

#[derive(Default)]
struct Slot {
    /// All bits of its word are the version.
    lock: SequenceLock<64>,
    words: [AtomicU64; WORDS],
}

/// The shared table; without slots where there is one worker only.
pub(crate) struct FirstFragmentTable {
    slots: Box<[Slot]>,
    version: AtomicU32,
}

impl FirstFragmentTable {
    pub(crate) fn new(workers: usize) -> FirstFragmentTable {
        let slots = if workers > 1 { FIRST_VERDICTS_SHARED_MAX } else { 0 };
        FirstFragmentTable {
            slots: (0..slots).map(|_| Slot::default()).collect(),
            version: AtomicU32::new(0),
        }
    }

    /// A number that changes with every published record.
    pub(super) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    fn probes(&self, hash: u64) -> impl Iterator<Item = &Slot> {
        let mask = self.slots.len().wrapping_sub(1);
        (0..PROBES).filter_map(move |probe| self.slots.get((hash as usize).wrapping_add(probe) & mask))
    }

    /// Publishes the record of a datagram's first fragment. It replaces the oldest record of the probed slots
    /// where none is free.
    pub(super) fn publish(&self, key: &Key, hash: u64, record: &FirstRecord, now_ms: u32) {
        let rank = |slot: &&Slot| match slot.read() {
            Some(found) if found.key == *key => u32::MAX,
            Some(found) if found.key == Key::default() => FRAGMENT_TIMEOUT_MS,
            Some(found) => now_ms.wrapping_sub(found.at_ms).min(FRAGMENT_TIMEOUT_MS),
            None => 0, // Another worker is writing there.
        };
        if let Some(slot) = self.probes(hash).max_by_key(rank)
            && slot.write(slot.lock.word(), key, record, now_ms)
        {
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// The record of a datagram's first fragment, if another worker has published it.
    pub(super) fn find(&self, key: &Key, hash: u64, now_ms: u32) -> Option<FirstRecord> {
        let found = self.probes(hash).filter_map(Slot::read).find(|found| found.key == *key)?;
        // The other worker may have read its clock later than this one.
        let age = now_ms.wrapping_sub(found.at_ms) as i32;
        let is_known = found.record.first != FirstVerdict::Unknown;
        (is_known && age < FRAGMENT_TIMEOUT_MS as i32).then_some(found.record)
    }

    /// Removes a record: the datagram is complete, and its identification free for the next one.
    pub(super) fn remove(&self, key: &Key, hash: u64, now_ms: u32) {
        let found = |slot: &Slot| slot.read().filter(|found| found.key == *key).map(|found| found.word);
        let Some((slot, word)) = self.probes(hash).find_map(|slot| Some((slot, found(slot)?))) else {
            return;
        };
        // Another worker that writes there, or has written, does so about another datagram: this record is gone already.
        slot.write(word, &Key::default(), &FirstRecord { first: FirstVerdict::Unknown, end_unit: 0 }, now_ms);
    }
}

/// Content of a slot.
struct Found {
    key: Key,
    record: FirstRecord,
    /// Time at which it was written.
    at_ms: u32,
    /// Word of the lock.
    word: u64,
}

impl Slot {
    fn read(&self) -> Option<Found> {
        let read = || Some(self.words.each_ref().map(|word| word.load(Ordering::Relaxed)));
        let (word, words) = self.lock.read(read)?;
        let [key @ .., verdict, last] = words;
        let key = Key::from_words(key);
        let record = FirstRecord::unpack(&key, verdict, (last >> 32) as u32);
        Some(Found { key, record, at_ms: last as u32, word })
    }

    /// Writes a record, unless another worker is writing there, or has written since this word of the lock was read.
    /// Returns whether it did.
    fn write(&self, word: u64, key: &Key, record: &FirstRecord, now_ms: u32) -> bool {
        let (verdict, generation) = record.pack(key);
        let [first, second, third, fourth, fifth] = key.words();
        let words =
            [first, second, third, fourth, fifth, verdict, u64::from(generation) << 32 | u64::from(now_ms)];
        self.lock.write_over(word, 0, || {
            self.words.iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        })
    }
}
