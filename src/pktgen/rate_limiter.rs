//! Rate limiter: the times at which frames are due. It is open loop, so lost frames do not slow it down.

use std::str::FromStr;

/// Nanoseconds in a second.
const SECOND_NS: f64 = 1e9;

/// Rate to send at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// No limit.
    Max,
    /// Frames a second.
    PerSecond(f64),
    /// The times of a capture.
    Recorded,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let lower = text.to_ascii_lowercase();
        match lower.as_str() {
            "max" => return Ok(Rate::Max),
            "recorded" => return Ok(Rate::Recorded),
            _ => (),
        }
        let number = lower.strip_suffix("pps").unwrap_or(&lower).trim_end();
        let (number, unit) = match number.split_at_checked(number.len().saturating_sub(1)) {
            Some((number, "k")) => (number, 1e3),
            Some((number, "m")) => (number, 1e6),
            _ => (number, 1.0),
        };
        match number.trim_end().parse::<f64>() {
            Ok(number) if number > 0.0 && number.is_finite() => Ok(Rate::PerSecond(number * unit)),
            _ => Err(format!("{text:?} is not a rate: write 1000, 500kpps, 1.2mpps, max or recorded")),
        }
    }
}

/// Times at which the frames of one trial are due.
#[derive(Debug, Clone)]
pub(super) enum RateLimiter {
    /// No limit: every frame is due.
    Max,
    /// One frame in so many nanoseconds.
    Every(f64),
    /// One frame at each of these times, nanoseconds since the beginning of a capture, round after round.
    Recorded(std::sync::Arc<[u64]>),
}

impl RateLimiter {
    /// Divides a rate, frames a second, among several generators.
    pub(super) fn of(rate: f64, generators: usize) -> RateLimiter {
        RateLimiter::Every(SECOND_NS * generators as f64 / rate)
    }

    /// Counts the frames that are due after `elapsed_ns`, the `sent` ones included. A capture adds at most
    /// the rest of the round that is being sent.
    #[inline]
    pub(super) fn due(&self, elapsed_ns: u64, sent: u64) -> u64 {
        match self {
            RateLimiter::Max => u64::MAX,
            RateLimiter::Every(gap) => (elapsed_ns as f64 / gap) as u64 + 1,
            RateLimiter::Recorded(times) => {
                let (round, at) = (sent / times.len() as u64, (sent % times.len() as u64) as usize);
                let Some(since) = elapsed_ns.checked_sub(round * round_ns(times)) else { return sent };
                sent + times[at..].partition_point(|time| *time <= since) as u64
            }
        }
    }

    /// Returns the time at which frame number `sent` is due, nanoseconds since the beginning.
    pub(super) fn when(&self, sent: u64) -> u64 {
        match self {
            RateLimiter::Max => 0,
            RateLimiter::Every(gap) => (sent as f64 * gap) as u64,
            RateLimiter::Recorded(times) => {
                let (round, at) = (sent / times.len() as u64, (sent % times.len() as u64) as usize);
                round * round_ns(times) + times[at]
            }
        }
    }
}

/// Duration of one round of a capture: that of the capture, and a mean gap.
fn round_ns(times: &[u64]) -> u64 {
    let last = times.last().copied().unwrap_or(0);
    last + last / (times.len() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_makes_so_many_frames_due_in_a_second_and_two_generators_share_it() {
        let limiter = RateLimiter::of(1000.0, 1);
        assert_eq!((limiter.due(0, 0), limiter.due(999_999_999, 0)), (1, 1000));
        assert_eq!(RateLimiter::of(1000.0, 2).due(999_999_999, 0), 500);
        assert_eq!((limiter.when(0), limiter.when(10)), (0, 10_000_000));
        assert_eq!(RateLimiter::Max.due(0, 7), u64::MAX);
    }

    #[test]
    fn rates_are_read_with_their_units() {
        let rates = [
            ("1000", 1e3),
            ("500kpps", 5e5),
            ("1.2mpps", 1.2e6),
            ("1 MPPS", 1e6),
            ("7pps", 7.0),
            ("2m", 2e6),
        ];
        for (text, rate) in rates {
            assert_eq!(text.parse(), Ok(Rate::PerSecond(rate)));
        }
        assert_eq!(("max".parse(), "recorded".parse()), (Ok(Rate::Max), Ok(Rate::Recorded)));
        for text in ["", "pps", "0", "-1", "fast", "k", "inf", "1gpps"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_recording_is_due_as_it_was_recorded_round_after_round() {
        let limiter = RateLimiter::Recorded([0, 100, 100, 300].into());
        assert_eq!(
            [limiter.due(0, 0), limiter.due(99, 1), limiter.due(100, 1), limiter.due(299, 3)],
            [1, 1, 3, 3]
        );
        assert_eq!([limiter.due(300, 3), limiter.due(300, 4), limiter.due(375, 4)], [4, 4, 5]);
        assert_eq!([limiter.when(3), limiter.when(4), limiter.when(5)], [300, 375, 475]);
    }
}
