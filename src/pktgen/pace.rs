//! When frames are due: open loop, whatever becomes of them.

/// Nanoseconds of a second.
pub(super) const SECOND_NS: f64 = 1e9;

/// How fast to send.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// As fast as it goes.
    Max,
    /// Frames a second.
    PerSecond(f64),
}

/// When the frames of one run are due.
#[derive(Debug, Clone)]
pub(super) enum Pace {
    /// At once.
    Max,
    /// One after so many nanoseconds.
    Every(f64),
    /// At these times from the beginning of a recording, nanoseconds, and again after its last.
    Recorded(std::sync::Arc<[u64]>),
}

impl Pace {
    /// This generator's share of a rate.
    pub(super) fn of(rate: Rate, generators: u32) -> Pace {
        match rate {
            Rate::Max => Pace::Max,
            Rate::PerSecond(frames) => Pace::Every(SECOND_NS * f64::from(generators) / frames),
        }
    }

    /// Frames that are due after `elapsed_ns`, those counted that were sent. Of a recording, at most one more round than
    /// has been sent.
    #[inline]
    pub(super) fn due(&self, elapsed_ns: u64, sent: u64) -> u64 {
        match self {
            Pace::Max => u64::MAX,
            Pace::Every(gap) => (elapsed_ns as f64 / gap) as u64 + 1,
            Pace::Recorded(times) => {
                let (round, at) = (sent / times.len() as u64, (sent % times.len() as u64) as usize);
                let Some(since) = elapsed_ns.checked_sub(round * round_ns(times)) else { return sent };
                sent + times[at..].partition_point(|time| *time <= since) as u64
            }
        }
    }

    /// When frame number `sent` is due, nanoseconds from the beginning.
    pub(super) fn when(&self, sent: u64) -> u64 {
        match self {
            Pace::Max => 0,
            Pace::Every(gap) => (sent as f64 * gap) as u64,
            Pace::Recorded(times) => {
                let (round, at) = (sent / times.len() as u64, (sent % times.len() as u64) as usize);
                round * round_ns(times) + times[at]
            }
        }
    }
}

/// How long one round of a recording lasts: as long as it did, and a mean gap.
fn round_ns(times: &[u64]) -> u64 {
    let last = times.last().copied().unwrap_or(0);
    last + last / (times.len() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_makes_so_many_frames_due_in_a_second_and_two_generators_share_it() {
        let pace = Pace::of(Rate::PerSecond(1000.0), 1);
        assert_eq!((pace.due(0, 0), pace.due(999_999_999, 0)), (1, 1000));
        assert_eq!(Pace::of(Rate::PerSecond(1000.0), 2).due(999_999_999, 0), 500);
        assert_eq!((pace.when(0), pace.when(10)), (0, 10_000_000));
        assert_eq!(Pace::of(Rate::Max, 1).due(0, 7), u64::MAX);
    }

    #[test]
    fn a_recording_is_due_as_it_was_recorded_round_after_round() {
        let pace = Pace::Recorded([0, 100, 100, 300].into());
        assert_eq!([pace.due(0, 0), pace.due(99, 1), pace.due(100, 1), pace.due(299, 3)], [1, 1, 3, 3]);
        assert_eq!([pace.due(300, 3), pace.due(300, 4), pace.due(375, 4)], [4, 4, 5]);
        assert_eq!([pace.when(3), pace.when(4), pace.when(5)], [300, 375, 475]);
    }
}
