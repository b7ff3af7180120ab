//! Verdicts on first fragments, shared by all workers: the kernel may deliver the fragments of one datagram
//! to different queues.
//!
//! Each slot is a seqlock: a writer makes the sequence number odd, writes, and makes it even again. A reader
//! that sees an odd or a changed number has read nothing. Nobody waits: a writer that finds a slot in use
//! skips it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::first_verdict::{FirstRecord, FirstVerdict};
use crate::dataplane::conntrack::Key;
use crate::limits::{FIRST_VERDICTS_SHARED_MAX, FRAGMENT_TIMEOUT_MS};

/// Number of slots, from the hash on, that may hold a datagram.
const PROBES: usize = 4;
const WORDS: usize = 7;

#[derive(Default)]
struct Slot {
    sequence: AtomicU32,
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
        let before = self.sequence.load(Ordering::Acquire);
        let words: [u64; WORDS] = std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let after = self.sequence.load(Ordering::Relaxed);
        if before != after || before & 1 != 0 {
            return None;
        }
        let [key @ .., verdict, last] = words;
        let key = Key::from_words(key);
        let record = FirstRecord::unpack(&key, verdict, (last >> 32) as u32);
        Some((key, record, last as u32))
    }

    /// Writes a record, unless another worker is writing there. Returns whether it did.
    fn write(&self, key: &Key, record: &FirstRecord, now_ms: u32) -> bool {
        let sequence = self.sequence.load(Ordering::Relaxed);
        let odd = sequence.wrapping_add(1);
        if sequence & 1 != 0
            || self.sequence.compare_exchange(sequence, odd, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return false;
        }
        fence(Ordering::Release);
        let (verdict, generation) = record.pack(key);
        let [first, second, third, fourth, word] = key.words();
        let words =
            [first, second, third, fourth, word, verdict, u64::from(generation) << 32 | u64::from(now_ms)];
        for (slot, word) in self.words.iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
        self.sequence.store(odd.wrapping_add(1), Ordering::Release);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::DropReason;

    fn key(n: u64) -> Key {
        Key::new(1, 2, n)
    }

    const RECORD: FirstRecord =
        FirstRecord { first: FirstVerdict::Denied(DropReason::PolicyIngress), end_unit: 185 };

    #[test]
    fn a_published_record_is_found_until_it_is_removed_or_old() {
        let shared = FirstFragmentTable::new(2);
        shared.publish(&key(7), 7, &RECORD, 1000);
        assert_eq!(shared.find(&key(7), 7, 1000), Some(RECORD));
        assert_eq!(shared.find(&key(7), 7, 990), Some(RECORD), "a clock read a little earlier");
        assert_eq!(shared.find(&key(8), 7, 1000), None);
        assert_eq!(shared.find(&key(7), 7, 1000 + FRAGMENT_TIMEOUT_MS), None);
        shared.remove(&key(7), 7, 1000);
        assert_eq!(shared.find(&key(7), 7, 1000), None);
    }

    #[test]
    fn the_oldest_record_of_the_probed_slots_is_replaced() {
        let shared = FirstFragmentTable::new(2);
        for n in 0..=PROBES as u64 {
            shared.publish(&key(n + 1), 3, &RECORD, 1000 + n as u32);
        }
        assert_eq!(shared.find(&key(1), 3, 1010), None);
        assert!((2..=PROBES as u64 + 1).all(|n| shared.find(&key(n), 3, 1010) == Some(RECORD)));
    }

    #[test]
    fn a_single_worker_publishes_nothing() {
        let shared = FirstFragmentTable::new(1);
        shared.publish(&key(1), 1, &RECORD, 0);
        assert_eq!(shared.find(&key(1), 1, 0), None);
    }

    #[test]
    fn readers_never_see_half_of_a_record() {
        let shared = FirstFragmentTable::new(2);
        let record =
            |end_unit: usize| FirstRecord { first: FirstVerdict::Denied(DropReason::PolicyEgress), end_unit };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..20_000_u64 {
                    shared.publish(&key(n), 5, &record((n % 8000) as usize), n as u32);
                }
            });
            while shared.version() < 10_000 {
                for (key, found, _) in shared.slots.iter().filter_map(Slot::read) {
                    let number = key.words()[4] as u32;
                    let expected = (number % 8000) as usize;
                    assert_eq!(found.end_unit, expected);
                }
            }
        });
    }
}
