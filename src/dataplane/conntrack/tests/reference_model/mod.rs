//! Random histories of conntrack as a whole (table, TCP, timeouts, eviction, revalidation) against a naive
//! model: a list of flows, with times and sequence numbers as integers that never wrap.
//!
//! `PALISADE_HISTORIES` sets their number, `PALISADE_SEED` the seed of the first one; the others count up from there.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::*;
use crate::random::{Random, histories};

mod history;
mod model_flow;

use history::History;

const HISTORIES: u64 = 300;
/// Seeds that are always played.
const SEEDS: Range<u64> = 20_261_122..20_261_222;
const STEPS: u64 = 60;
/// Number of slots: two buckets, so that every key may be in every slot.
const SLOTS: usize = 2 * BUCKET_SLOTS;
const PORTS: u64 = 4;

const FIN: u8 = Flags::FIN;
const SYN: u8 = Flags::SYN;
const RST: u8 = Flags::RST;
const ACK: u8 = Flags::ACK;

#[test]
fn every_random_history_agrees_with_the_model() {
    let seeds = Mutex::new(histories("conntrack", SEEDS, HISTORIES));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let next = seeds.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(seed) = next else { return };
                    History::new(seed.number).play();
                }
            });
        }
    });
}
