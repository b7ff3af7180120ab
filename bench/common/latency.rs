//! Latencies of one kind of operation, as a histogram.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Histogram of durations in nanoseconds, with three significant digits.
#[derive(Debug, Clone)]
pub(crate) struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies(Histogram::new(3).expect("three digits are within the bounds of the crate"))
    }
}

impl Latencies {
    /// Adds one duration.
    pub(crate) fn record(&mut self, duration: Duration) {
        self.record_ns(duration.as_nanos() as u64, 1);
    }

    /// Adds `count` durations of `ns` nanoseconds.
    pub(crate) fn record_ns(&mut self, ns: u64, count: u64) {
        self.0.record_n(ns, count).expect("a histogram that resizes takes all values");
    }

    /// Adds all durations of another histogram.
    pub(crate) fn add(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("a histogram that resizes takes all values");
    }

    /// Number of durations.
    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }

    /// Duration that this share of all did not exceed, in microseconds; 0 without any.
    pub(crate) fn us(&self, share: f64) -> f64 {
        self.0.value_at_quantile(share) as f64 / 1e3
    }

    /// Duration that this share of all did not exceed, in milliseconds; `None` without any.
    pub(crate) fn ms(&self, share: f64) -> Option<f64> {
        (self.len() > 0).then(|| self.us(share) / 1e3)
    }

    /// Longest duration, in microseconds.
    pub(crate) fn max_us(&self) -> f64 {
        self.0.max() as f64 / 1e3
    }
}

impl FromIterator<Duration> for Latencies {
    fn from_iter<I: IntoIterator<Item = Duration>>(durations: I) -> Latencies {
        let mut latencies = Latencies::default();
        durations.into_iter().for_each(|duration| latencies.record(duration));
        latencies
    }
}
