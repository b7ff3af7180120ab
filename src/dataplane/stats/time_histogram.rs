//! Histogram of durations with one writer, a worker, and any number of readers.

use std::time::Duration;

use super::counter::Counter;

/// Buckets of each power of two: a bucket is at most a sixteenth wider than its lower bound.
const SUB_BUCKETS: usize = 16;
const SUB_BUCKET_BITS: usize = SUB_BUCKETS.trailing_zeros() as usize;
/// Durations from 2^40 ns on, 18 minutes, count in the last bucket.
const BITS_MAX: usize = 40;
const BUCKETS: usize = (BITS_MAX - SUB_BUCKET_BITS + 1) * SUB_BUCKETS;

/// Counts of durations in buckets.
pub(crate) struct TimeHistogram(Box<[Counter; BUCKETS]>);

impl TimeHistogram {
    pub(crate) fn new() -> TimeHistogram {
        TimeHistogram(Box::new([const { Counter::new() }; BUCKETS]))
    }

    /// Counts a duration `count` times. Only the writer calls this.
    #[inline]
    pub(crate) fn record(&self, duration: Duration, count: u64) {
        self.0[bucket_of(duration.as_nanos() as u64)].add(count);
    }

    /// Largest duration of each bucket that has counts, nanoseconds, and the counts, in order.
    pub(crate) fn counts(&self) -> Vec<(u64, u64)> {
        let counts = self.0.iter().enumerate().map(|(bucket, counter)| (largest_in(bucket), counter.get()));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

/// Bucket of a duration: the position of its highest bit, and the bits that follow.
#[inline]
fn bucket_of(nanos: u64) -> usize {
    let nanos = nanos.min((1 << BITS_MAX) - 1) as usize;
    let shift = (nanos | SUB_BUCKETS).ilog2() as usize - SUB_BUCKET_BITS;
    shift * SUB_BUCKETS + (nanos >> shift)
}

fn largest_in(bucket: usize) -> u64 {
    let shift = (bucket / SUB_BUCKETS).saturating_sub(1);
    let sub_bucket = bucket - shift * SUB_BUCKETS;
    ((sub_bucket as u64 + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_bucket_whose_bounds_enclose_it() {
        let around = |power: u32| [(1_u64 << power) - 1, 1 << power, (1 << power) + 1, 3 << power >> 1];
        let durations = (0..BITS_MAX as u32).flat_map(around).filter(|nanos| *nanos < 1 << BITS_MAX);
        for nanos in durations.chain([15, 16, 17, 1000, 123_456_789]) {
            let bucket = bucket_of(nanos);
            let (from, to) =
                (bucket.checked_sub(1).map_or(0, |below| largest_in(below) + 1), largest_in(bucket));
            assert!((from..=to).contains(&nanos), "{nanos} in {from}..={to}");
            assert!(to - from <= from / SUB_BUCKETS as u64, "{from}..={to} is too wide");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn counts_are_those_that_were_recorded() {
        let histogram = TimeHistogram::new();
        histogram.record(Duration::from_nanos(7), 3);
        histogram.record(Duration::from_nanos(7), 1);
        histogram.record(Duration::from_millis(2), 5);
        assert_eq!(histogram.counts(), [(7, 4), (2_031_615, 5)]);
    }
}
