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
            Some((found, _, _)) if found == *key => u32::MAX,
            Some((found, _, _)) if found == Key::default() => FRAGMENT_TIMEOUT_MS,
            Some((_, _, at_ms)) => now_ms.wrapping_sub(at_ms).min(FRAGMENT_TIMEOUT_MS),
            None => 0, // Another worker is writing there.
        };
        if let Some(slot) = self.probes(hash).max_by_key(rank)
            && slot.write(key, record, now_ms)
        {
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// The record of a datagram's first fragment, if another worker has published it.
    pub(super) fn find(&self, key: &Key, hash: u64, now_ms: u32) -> Option<FirstRecord> {
        let (_, record, at_ms) =
            self.probes(hash).filter_map(Slot::read).find(|(found, _, _)| found == key)?;
        // The other worker may have read its clock later than this one.
        let age = now_ms.wrapping_sub(at_ms) as i32;
        (record.first != FirstVerdict::Unknown && age < FRAGMENT_TIMEOUT_MS as i32).then_some(record)
    }

    /// Removes a record: the datagram is complete, and its identification free for the next one.
    pub(super) fn remove(&self, key: &Key, hash: u64, now_ms: u32) {
        let is_found = |slot: &&Slot| slot.read().is_some_and(|(found, _, _)| found == *key);
        if let Some(slot) = self.probes(hash).find(is_found) {
            // Another worker that is writing there writes about another datagram: this record is gone already.
            slot.write(&Key::default(), &FirstRecord { first: FirstVerdict::Unknown, end_unit: 0 }, now_ms);
        }
    }
}

impl Slot {
    fn read(&self) -> Option<(Key, FirstRecord, u32)> {
        let read = || Some(self.words.each_ref().map(|word| word.load(Ordering::Relaxed)));
        let (_, words) = self.lock.read(read)?;
        let [key @ .., verdict, last] = words;
        let key = Key::from_words(key);
        let record = FirstRecord::unpack(&key, verdict, (last >> 32) as u32);
        Some((key, record, last as u32))
    }

    /// Writes a record, unless another worker is writing there. Returns whether it did.
    fn write(&self, key: &Key, record: &FirstRecord, now_ms: u32) -> bool {
        let (verdict, generation) = record.pack(key);
        let [first, second, third, fourth, word] = key.words();
        let words =
            [first, second, third, fourth, word, verdict, u64::from(generation) << 32 | u64::from(now_ms)];
        self.lock.write(0, || {
            self.words.iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        })
    }
}
