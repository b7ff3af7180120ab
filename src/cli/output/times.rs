//! Times of the workers as text.

use hdrhistogram::Histogram;

use crate::dataplane::TimeCounts;

/// Longest duration of the workers' buckets, nanoseconds.
const LONGEST_NS: u64 = 1 << 40;

/// Histogram of the counts, with their precision.
pub(in crate::cli) fn histogram(counts: &TimeCounts) -> Histogram<u64> {
    // Two digits are more than the workers' buckets have.
    let mut histogram = Histogram::new_with_max(LONGEST_NS, 2).expect("these bounds are valid");
    for (ns, count) in counts {
        histogram.saturating_record_n(*ns, *count);
    }
    histogram
}

/// Mean of a sum, with one digit behind the point.
pub(in crate::cli) fn ratio(sum: u64, count: u64) -> String {
    if count == 0 { "-".to_owned() } else { format!("{:.1}", sum as f64 / count as f64) }
}

/// Text of a duration with three digits: `12.3 us`.
pub(in crate::cli) fn duration(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => (ns as f64, "ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits_and_a_unit() {
        let texts = [7, 999, 1_234, 56_700, 890_123, 2_500_000, 61_000_000_000].map(duration);
        assert_eq!(texts, ["7.00 ns", "999 ns", "1.23 us", "56.7 us", "890 us", "2.50 ms", "61.0 s"]);
    }

    #[test]
    fn quantiles_are_those_of_the_counts() {
        let histogram = histogram(&vec![(1000, 90), (2000, 9), (1_000_000, 1)]);
        let near = |percent, ns: u64| histogram.value_at_percentile(percent).abs_diff(ns) <= ns / 50;
        assert!(near(50.0, 1000) && near(99.0, 2000) && near(99.99, 1_000_000), "{histogram:?}");
    }
}
