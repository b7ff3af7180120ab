//! Seeds, numbers of inputs and random numbers of random tests.
//!
//! An ordinary run plays committed seeds and a bounded number of fresh ones. The environment sets other numbers and
//! seeds (docs/testing.md). Every random test prints the number of its inputs and its seed; `make soak` reads that line.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::str::FromStr;

use proptest::test_runner::{Config, RngAlgorithm, RngSeed, TestRng};

/// Number in an environment variable.
pub(crate) fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, which is no number in its range")))
}

/// Seed that differs in each run.
fn fresh() -> u64 {
    RandomState::new().hash_one(0_u8) >> 32
}

/// Seeds of the histories of a test: those that it always plays, then `number` fresh ones, which count up.
///
/// `PALISADE_HISTORIES` sets another number. `PALISADE_SEED` sets the first seed, and leaves out those that are always
/// played.
pub(crate) fn histories(
    subject: &str,
    always: Range<u64>,
    number: u64,
) -> impl Iterator<Item = Seed> + use<> {
    let number: u64 = variable("PALISADE_HISTORIES").unwrap_or(number);
    let given = variable("PALISADE_SEED");
    let always = if given.is_some() { 0..0 } else { always };
    let first: u64 = given.unwrap_or_else(fresh);
    let committed = always.end - always.start;
    eprintln!(
        "{} histories of {subject}, {committed} with committed seeds, PALISADE_SEED={first}",
        committed + number
    );
    let fresh = (0..number).map(move |count| first.wrapping_add(count));
    always
        .map(|number| Seed { number, is_committed: true })
        .chain(fresh.map(|number| Seed { number, is_committed: false }))
}

/// Seed of a history. Drop prints it after a failure.
pub(crate) struct Seed {
    pub(crate) number: u64,
    /// Whether every ordinary run plays it.
    pub(crate) is_committed: bool,
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("PALISADE_HISTORIES=1 PALISADE_SEED={} plays the history that failed", self.number);
        }
    }
}

impl Seed {
    /// Generator for strategies of proptest.
    pub(crate) fn rng(&self) -> TestRng {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
    }
}

/// Configuration of a property test with this number of cases. `PROPTEST_CASES` sets another number,
/// `PROPTEST_RNG_SEED` the seed.
pub(crate) fn cases(number: u32) -> Config {
    let cases = variable("PROPTEST_CASES").unwrap_or(number);
    // Inputs that a test refuses are a part of all.
    let max_global_rejects = Config::default().max_global_rejects.max(4 * cases);
    let mut config = Config { cases, max_global_rejects, ..Config::default() };
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(fresh());
    }
    eprintln!("{} cases, PROPTEST_RNG_SEED={}", config.cases, config.rng_seed);
    config
}

/// Generator of random numbers (`SplitMix64`).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number less than `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}
