//! [`loom`] models of the lock-free structures here: the production code on loom's atomics, in all orders that make a
//! difference. The reading side is the spawned thread, as in `dataplane/conntrack/loom_tests.rs`.

#![allow(dead_code)] // A model calls a part of the production code only.
#![allow(clippy::duplicate_mod)] // The structures are compiled a second time, with loom's atomics.

#[path = "holders.rs"]
mod holders;
#[path = "sequence_lock.rs"]
mod sequence_lock;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use self::holders::Holders;
use self::parts::AtomicU64;
use self::sequence_lock::SequenceLock;

/// Loom's versions of `super::parts`.
mod parts {
    pub(super) use loom::sync::atomic::{AtomicU64, AtomicUsize, fence};
}

/// Two words below a sequence lock. A write stores the same number in both and in the payload.
#[derive(Default)]
struct Pair {
    lock: SequenceLock<4>,
    words: [AtomicU64; 2],
}

impl Pair {
    fn write(&self, number: u64) -> bool {
        self.lock.write(number << 4, || self.words.iter().for_each(|word| word.store(number, Relaxed)))
    }

    /// Number of the last write, and the word of the lock. All parts are of one write.
    fn read(&self) -> Option<(u64, u64)> {
        let (word, [first, second]) =
            self.lock.read(|| Some(self.words.each_ref().map(|word| word.load(Relaxed))))?;
        assert_eq!(first, second, "the words are of two writes");
        Some((first, word))
    }

    /// The same, with a payload that nobody has updated.
    fn read_all(&self) -> Option<u64> {
        self.read().map(|(number, word)| {
            assert_eq!(word >> 4, number, "the payload is of another write");
            number
        })
    }
}

fn pair(number: u64) -> Arc<Pair> {
    let pair = Arc::new(Pair::default());
    assert!(pair.write(number));
    pair
}

fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    builder.preemption_bound = preemptions;
    builder.check(model);
}

#[test]
fn a_reader_of_a_sequence_lock_reads_whole_writes_in_their_order_or_nothing() {
    static SEEN: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];
    explore(None, || {
        let pair = pair(1);
        let reader = thread::spawn({
            let pair = pair.clone();
            move || [pair.read_all(), pair.read_all()]
        });
        assert!(pair.write(2));
        let [first, second] = reader.join().unwrap();
        assert!(first.zip(second).is_none_or(|(first, second)| first <= second), "{first:?} {second:?}");
        SEEN[first.unwrap_or_default() as usize].store(true, Relaxed);
        assert_eq!(pair.read_all(), Some(2));
    });
    assert!(
        SEEN.iter().all(|seen| seen.load(Relaxed)),
        "no order reads the write before, the one after, or none"
    );
}

#[test]
fn a_reader_of_a_sequence_lock_reads_no_mixture_of_two_writes() {
    explore(None, || {
        let pair = pair(1);
        let reader = thread::spawn({
            let pair = pair.clone();
            move || pair.read_all()
        });
        assert!(pair.write(2) && pair.write(3));
        reader.join().unwrap();
    });
}

#[test]
fn of_two_writers_of_a_sequence_lock_one_skips_or_follows_the_other() {
    static BOTH: AtomicBool = AtomicBool::new(false);
    explore(None, || {
        let pair = pair(1);
        let writer = thread::spawn({
            let pair = pair.clone();
            move || pair.write(3)
        });
        let one = pair.write(2);
        let other = writer.join().unwrap();
        let last = pair.read_all();
        assert!(one && last == Some(2) || other && last == Some(3), "{one} {other} {last:?}");
        BOTH.fetch_or(one && other, Relaxed);
    });
    assert!(BOTH.load(Relaxed), "no order has both writes");
}

#[test]
fn a_reader_beside_two_writers_of_a_sequence_lock_reads_whole_writes() {
    explore(Some(2), || {
        let pair = pair(1);
        let reader = thread::spawn({
            let pair = pair.clone();
            move || pair.read_all()
        });
        let writer = thread::spawn({
            let pair = pair.clone();
            move || pair.write(3)
        });
        pair.write(2);
        writer.join().unwrap();
        reader.join().unwrap();
    });
}

#[test]
fn an_update_of_a_payload_has_no_effect_on_a_later_write() {
    explore(None, || {
        const UPDATED: u64 = 9;
        let pair = pair(1);
        let reader = thread::spawn({
            let pair = pair.clone();
            move || {
                let (number, word) = pair.read()?;
                pair.lock.update(word, |_| UPDATED << 4).then_some(number)
            }
        });
        let written = pair.write(2);
        let updated = reader.join().unwrap();
        let (number, word) = pair.read().unwrap();
        assert_eq!(number, if written { 2 } else { 1 });
        assert!(written || updated == Some(1), "only an update keeps a writer away");
        assert_eq!(word >> 4, if updated == Some(number) { UPDATED } else { number });
    });
}

/// Memory that holders share. Loom fails where a write or the reuse overlaps another access.
struct Block {
    holders: Holders,
    words: UnsafeCell<()>,
    given: UnsafeCell<()>,
}

impl Block {
    /// Block with two holders.
    fn of_two() -> Arc<Block> {
        let block = Block { holders: Holders::one(), words: UnsafeCell::new(()), given: UnsafeCell::new(()) };
        block.holders.add();
        Arc::new(block)
    }

    fn read(&self) {
        self.words.with(|_| ());
    }

    fn write(&self) {
        self.words.with_mut(|_| ());
    }

    /// Removes a holder. The last one gives the block to a holder that writes it. Returns whether it was the last.
    fn remove(&self) -> bool {
        let is_last = self.holders.remove();
        if is_last {
            self.write();
            self.given.with_mut(|_| ());
        }
        is_last
    }
}

#[test]
fn a_sole_holder_writes_after_the_reads_of_the_others() {
    static WRITTEN: AtomicBool = AtomicBool::new(false);
    explore(None, || {
        let block = Block::of_two();
        let writer = thread::spawn({
            let block = block.clone();
            move || {
                if block.holders.is_one() {
                    block.write();
                    WRITTEN.store(true, Relaxed);
                }
                block.remove()
            }
        });
        block.read();
        let is_last = block.remove();
        assert!(writer.join().unwrap() != is_last, "one holder is the last");
    });
    assert!(WRITTEN.load(Relaxed), "no order makes a holder the only one");
}

#[test]
fn the_last_of_three_holders_gives_the_block_back_after_the_accesses_of_the_others() {
    explore(None, || {
        let block = Block::of_two();
        block.holders.add();
        let others = [0, 1].map(|_| {
            let block = block.clone();
            thread::spawn(move || {
                block.read();
                block.remove()
            })
        });
        block.read();
        let last = block.remove();
        let last =
            others.map(|other| other.join().unwrap()).map(u32::from).iter().sum::<u32>() + u32::from(last);
        assert_eq!(last, 1);
    });
}
