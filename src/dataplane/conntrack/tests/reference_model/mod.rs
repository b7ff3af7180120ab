//! Random histories of conntrack as a whole (table, TCP, timeouts, eviction, revalidation) against a naive
//! model: a list of flows, with times and sequence numbers as integers that never wrap.
//!
//! `PALISADE_HISTORIES` sets their number, `PALISADE_SEED` the seed of the first one, which the test prints;
//! the others count up from there. A failure names the seed of its history, so that a person can play it
//! alone.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use super::*;

mod history;
mod model_flow;

use history::History;

const HISTORIES: u64 = if cfg!(debug_assertions) { 1000 } else { 20_000 };
const STEPS: u64 = 60;
/// Number of slots: two buckets, so that every key may be in every slot.
const SLOTS: usize = 2 * BUCKET_SLOTS;
const PORTS: u64 = 4;

const FIN: u8 = Flags::FIN;
const SYN: u8 = Flags::SYN;
const RST: u8 = Flags::RST;
const ACK: u8 = Flags::ACK;

/// A generator of random numbers (`SplitMix64`).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

#[test]
fn every_random_history_agrees_with_the_model() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let histories = number("PALISADE_HISTORIES", HISTORIES);
    let seed =
        number("PALISADE_SEED", crate::dataplane::conntrack::key::HashSeed::random().hash(&key(1)) >> 1);
    eprintln!("{histories} histories of conntrack, PALISADE_SEED={seed}");
    let next = AtomicU64::new(0);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= histories {
                        return;
                    }
                    let seed = seed.wrapping_add(number);
                    let play = AssertUnwindSafe(|| History::new(seed).play());
                    if let Err(panic) = catch_unwind(play) {
                        eprintln!("PALISADE_HISTORIES=1 PALISADE_SEED={seed} plays the history that failed");
                        next.store(histories, Relaxed);
                        resume_unwind(panic);
                    }
                }
            });
        }
    });
}
