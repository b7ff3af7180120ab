//! Output of a test program.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use crate::part::{Kind, Part};

/// Lines with a number of inputs: of `tests/common/random.rs`, of `cni::kills`, and of bolero.
static INPUTS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(\d+) (?:histories of|cases, PROPTEST_RNG_SEED|kills of)|rng inputs: (\d+)").unwrap()
});
/// Seed of the one input that failed.
static SEED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"PALISADE_HISTORIES=1 PALISADE_SEED=(\d+)|BOLERO_RANDOM_SEED=(\d+)").unwrap()
});
static RESULT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"test result: \w+\. (\d+) passed; (\d+) failed").unwrap());

/// Content of an output.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) inputs: u64,
    /// Names of the tests that failed.
    pub(crate) failed: Vec<String>,
    /// Seed of the input that failed, where its test names one.
    pub(crate) seed: Option<String>,
}

pub(crate) fn read(log: &Path, part: &Part) -> Output {
    let bytes = fs::read(log).unwrap_or_else(|error| panic!("{}: {error}", log.display()));
    of(&String::from_utf8_lossy(&bytes), part.kind)
}

fn of(text: &str, kind: Kind) -> Output {
    let sum = |pattern: &Regex| {
        let groups = pattern.captures_iter(text).flat_map(|found| [found.get(1), found.get(2)]).flatten();
        groups.filter_map(|number| number.as_str().parse::<u64>().ok()).sum()
    };
    let inputs = if kind == Kind::Tests { sum(&RESULT) } else { sum(&INPUTS) };
    // libtest ends with the names of the failed tests, indented, below this line.
    let failed = text.rsplit_once("\nfailures:\n").map_or("", |(_, names)| names);
    let failed = failed.lines().take_while(|line| line.starts_with("    "));
    let failed = failed.map(|line| line.trim().to_owned()).collect();
    let seed = SEED.captures_iter(text).last().and_then(|found| found.get(1).or(found.get(2)));
    Output { inputs, failed, seed: seed.map(|seed| seed.as_str().to_owned()) }
}
