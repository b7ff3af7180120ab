//! Comparison of systems that answer the same queries: they run in turn, and each gets the median of its
//! samples.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::ops::Range;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::common::json_lines;
use crate::common::statistics::{quantile, rounded};

/// Queries of one batch.
pub(crate) const BATCH: usize = 256;
/// Queries between two readings of the clock: few enough that an interruption by another thread affects few
/// samples.
const SAMPLE: usize = 16 * BATCH;

/// System under test: its name, and a function that answers the queries of a range and returns a sum of the
/// answers.
pub(crate) type System<'a> = (&'static str, Box<dyn FnMut(Range<usize>) -> u64 + 'a>);

/// Size of a comparison.
pub(crate) struct Run {
    pub(crate) tsc_ghz: f64,
    pub(crate) queries: usize,
    pub(crate) rounds: usize,
}

/// Line of one system, behind the parameters of its case.
#[derive(Serialize)]
struct Line<'a, P> {
    bench: &'static str,
    #[serde(flatten)]
    parameters: &'a P,
    system: &'a str,
    ns_per_lookup: f64,
    tsc_cycles: f64,
    /// Tenth percentile: an estimate for a machine without other work.
    tsc_cycles_p10: f64,
}

impl Run {
    /// Runs the systems in turn and prints a line for each. Panics if they disagree.
    pub(crate) fn compare(&self, parameters: &impl Serialize, mut systems: Vec<System<'_>>) {
        let mut samples = vec![Vec::new(); systems.len()];
        let mut sums = BTreeSet::new();
        for round in 0..=self.rounds {
            for ((_, system), samples) in systems.iter_mut().zip(&mut samples) {
                let mut sum = 0;
                for first in (0..self.queries).step_by(SAMPLE) {
                    let start = Instant::now();
                    sum += black_box(system(first..first + SAMPLE));
                    // The first round warms the caches.
                    samples.extend((round > 0).then(|| start.elapsed()));
                }
                sums.insert(sum);
            }
        }
        assert_eq!(sums.len(), 1, "the systems disagree");
        for ((system, _), samples) in systems.iter().zip(&samples) {
            let per_query = |sample: &Duration| sample.as_secs_f64() * 1e9 / SAMPLE as f64;
            let mut samples: Vec<f64> = samples.iter().map(per_query).collect();
            let mut ns = |share| quantile(&mut samples, share).expect("at least one round");
            let (median, p10) = (ns(0.5), ns(0.1));
            json_lines::print(&Line {
                bench: "tables",
                parameters,
                system,
                ns_per_lookup: rounded(median, 2),
                tsc_cycles: rounded(median * self.tsc_ghz, 1),
                tsc_cycles_p10: rounded(p10 * self.tsc_ghz, 1),
            });
        }
    }
}
