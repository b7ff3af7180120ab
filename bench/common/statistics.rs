//! Order statistics of a few samples. Latencies have a histogram of their own ([`super::latency`]).

pub(crate) use palisade::pktgen::median;

/// Median and range of the trials of one case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Summary {
    /// Median; of an even number of trials the mean of the two in the middle.
    pub(crate) median: f64,
    /// Smallest value.
    pub(crate) least: f64,
    /// Largest value.
    pub(crate) most: f64,
    /// Number of trials.
    pub(crate) trials: usize,
}

impl Summary {
    /// Summarizes samples; `None` without any.
    pub(crate) fn of(mut samples: Vec<f64>) -> Option<Summary> {
        let median = (!samples.is_empty()).then(|| median(&mut samples))?;
        Some(Summary { median, least: *samples.first()?, most: *samples.last()?, trials: samples.len() })
    }
}

/// Returns the quantile `share` by nearest rank, and sorts the samples; `None` without any.
pub(crate) fn quantile(samples: &mut [f64], share: f64) -> Option<f64> {
    samples.sort_unstable_by(f64::total_cmp);
    let rank = (samples.len() as f64 * share).ceil() as usize;
    samples.get(rank.saturating_sub(1)).copied()
}

/// Rounds to this many decimals.
pub(crate) fn rounded(value: f64, decimals: i32) -> f64 {
    let scale = 10_f64.powi(decimals);
    (value * scale).round() / scale
}
