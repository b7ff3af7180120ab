//! Benchmarks of the compiled tables: longest-prefix match beside two crates, classification of new flows,
//! and updates.
//!
//! Prints one JSON object a line. The systems of a case run in turn, and each line has the median of its
//! samples. `tsc_cycles` is time in ticks of the time-stamp counter, which runs at a constant rate, not at
//! that of the core. `--smoke` takes about a second; a word such as `routes` or `classify1000` runs only the
//! cases that contain it.

mod classification;
#[path = "../common/mod.rs"]
mod common;
mod comparison;
mod flows;
mod prefix_lookup;

use common::time_stamp_counter::tsc_ghz;
use comparison::Run;
use prefix_lookup::Shape;

fn main() {
    let smoke = std::env::args().any(|argument| argument == "--smoke");
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let wanted = |case: &str| only.as_deref().is_none_or(|only| case.contains(only));
    let (queries, rounds, largest) = if smoke { (1 << 12, 3, 1_000) } else { (1 << 16, 15, usize::MAX) };
    let run = Run { tsc_ghz: tsc_ghz(), queries, rounds };
    for prefixes in [10, 1_000, 100_000, 1_000_000].into_iter().filter(|&prefixes| prefixes <= largest) {
        for (case, shape) in [("pods", Shape::Pods), ("routes", Shape::Routes)] {
            if wanted(&format!("{case}{prefixes}")) {
                prefix_lookup::measure::<u32>(&run, case, shape, prefixes);
                prefix_lookup::measure::<u128>(&run, case, shape, prefixes);
            }
        }
    }
    for rules in [10, 1_000, 10_000, 100_000].into_iter().filter(|&rules| rules <= largest) {
        if wanted(&format!("classify{rules}")) {
            classification::measure(&run, rules);
        }
    }
}
