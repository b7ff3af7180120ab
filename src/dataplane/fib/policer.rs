//! Policer: a token bucket that drops packets beyond a rate (RFC 2475 section 2.3.3.3).
//!
//! The bucket is one number, the time at which it is full again (the "virtual scheduling" form of ITU-T I.371). All workers
//! share it. A packet passes unless the bucket is in debt, and may put it into debt: segments of 64 KiB pass a bucket of any
//! size, and the rate holds over time.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::dataplane::RateLimit;
use crate::limits::{BITS_PER_SECOND_MIN, PACKET_BYTES_MAX, PORT_SEGMENTS_MAX, TRANSPORT_OFFSET_MAX};

/// Ticks of a nanosecond.
const TICKS_PER_NS: u64 = 16;
const TICKS_PER_SECOND: u64 = 1_000_000_000 * TICKS_PER_NS;
/// Fraction bits of the ticks of a byte.
const FRACTION: u32 = 16;

/// Most bytes of the frames that a packet stands for.
const WIRE_BYTES_MAX: usize = PACKET_BYTES_MAX + PORT_SEGMENTS_MAX * (TRANSPORT_OFFSET_MAX + 60);
const _: () = assert!(
    WIRE_BYTES_MAX as u64 <= u64::MAX / ((8 * TICKS_PER_SECOND << FRACTION) / BITS_PER_SECOND_MIN),
    "the ticks of a packet have 64 bits"
);

/// Policer of one direction of a pod.
#[derive(Debug)]
pub(crate) struct Policer {
    limit: RateLimit,
    /// Ticks of a byte at the rate, with [`FRACTION`] bits behind the point.
    byte_ticks: u64,
    /// Ticks of the burst at the rate.
    burst_ticks: u64,
    /// Time at which the bucket is full again, ticks since the start of the switch.
    full_at: AtomicU64,
}

impl Policer {
    /// Creates a policer with a full bucket.
    pub(super) fn new(limit: RateLimit) -> Policer {
        let ticks = u128::from(limit.burst) * u128::from(TICKS_PER_SECOND) / u128::from(limit.rate);
        Policer {
            limit,
            byte_ticks: (8 * TICKS_PER_SECOND << FRACTION) / limit.rate,
            burst_ticks: u64::try_from(ticks).unwrap_or(u64::MAX),
            full_at: AtomicU64::new(0),
        }
    }

    /// Limit that the policer keeps.
    pub(super) fn limit(&self) -> RateLimit {
        self.limit
    }

    /// Takes the tokens of a packet, if the bucket is not in debt at this time, nanoseconds since the start of the switch.
    #[inline]
    pub(crate) fn admits(&self, now_ns: u64, bytes: usize) -> bool {
        let (now, cost) = (now_ns * TICKS_PER_NS, (bytes as u64 * self.byte_ticks) >> FRACTION);
        let taken = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at| {
            (full_at <= now.saturating_add(self.burst_ticks)).then_some(full_at.max(now).saturating_add(cost))
        });
        taken.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::BITS_PER_SECOND_MAX;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Bytes that pass in so many seconds of packets of this length, `per_second` of them.
    fn passed(policer: &Policer, seconds: u64, bytes: usize, per_second: u64) -> u64 {
        let times = (0..seconds * per_second).map(|n| SECOND_NS + n * SECOND_NS / per_second);
        times.filter(|now| policer.admits(*now, bytes)).count() as u64 * bytes as u64
    }

    #[test]
    fn a_rate_holds_over_time_for_packets_of_any_length() {
        for (rate, burst, bytes, per_second) in [
            (1_000_000, 100_000, 60, 100_000),
            (1_000_000, 30_000, 1_514, 10_000),
            (100_000_000, 1_000_000, 65_535, 10_000),
            (10_000_000_000, 10_000_000, 1_514, 2_000_000),
            (1_000, 2_000, 60, 10_000),
        ] {
            let seconds = 10;
            let policer = Policer::new(RateLimit { rate, burst });
            let bits = 8 * passed(&policer, seconds, bytes, per_second);
            let (least, most) = (rate * seconds, rate * seconds + burst + 2 * 8 * bytes as u64);
            let slack = most / 200;
            assert!((least - slack..=most + slack).contains(&bits), "{rate} {burst} {bytes}: {bits}");
        }
    }

    #[test]
    fn a_burst_passes_at_once_and_is_there_again_after_a_while() {
        let policer = Policer::new(RateLimit { rate: 8_000_000, burst: 80_000 });
        let at_once = |now_ns| (0..100).filter(|_| policer.admits(now_ns, 1000)).count();
        // The last packet puts the bucket into debt.
        assert_eq!(at_once(SECOND_NS), 11);
        assert_eq!(at_once(SECOND_NS), 0);
        assert_eq!(at_once(SECOND_NS + 5_000_000), 5);
        assert_eq!(at_once(3 * SECOND_NS), 11);
        // The clock of another worker is behind.
        assert_eq!(at_once(2 * SECOND_NS), 0);
    }

    #[test]
    fn two_workers_share_the_bucket() {
        let policer = Policer::new(RateLimit { rate: 8_000_000, burst: 8_000_000 });
        let worker = || (0..10_000).filter(|_| policer.admits(SECOND_NS, 1000)).count();
        let passed = std::thread::scope(|scope| {
            let other = scope.spawn(worker);
            worker() + other.join().unwrap()
        });
        assert_eq!(passed, 1001);
    }

    #[test]
    fn extreme_limits_overflow_nothing() {
        let slow = Policer::new(RateLimit { rate: BITS_PER_SECOND_MIN, burst: u64::MAX });
        let ten_years_ns = 10 * 366 * 86_400 * SECOND_NS;
        assert!((0..1_000_000).all(|_| slow.admits(ten_years_ns, PACKET_BYTES_MAX)));
        let fast = Policer::new(RateLimit { rate: BITS_PER_SECOND_MAX, burst: 0 });
        assert!((0..1_000).all(|n| fast.admits(ten_years_ns + n, PACKET_BYTES_MAX / 2)));
    }
}
