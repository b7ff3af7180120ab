//! Messages of the followers of the API, and their times.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use super::object::Entry;
use super::parse::Key;

/// Times of the followers.
#[derive(Debug, Clone)]
pub struct Timing {
    /// Time for which events are gathered.
    pub gather: Duration,
    /// Longest silence of a watch. The API server sends a bookmark about every minute.
    pub idle: Duration,
    /// Time after which a watch without an event counts as followed.
    pub settle: Duration,
    /// First wait before another attempt.
    pub retry_min: Duration,
    /// Longest wait before another attempt.
    pub retry_max: Duration,
    /// Interval of looks for a kind that the server does not have.
    pub absent: Duration,
    /// Time for which a kind must be absent before its objects count as removed.
    pub vanished: Duration,
    /// Interval at which the tables of the switch are compared with those here.
    pub verify: Duration,
    /// Least time between two loads of the policies in audit mode.
    pub audit: Duration,
    /// Least time for which the policies of a namespace with too many rows are closed.
    pub reopen: Duration,
    /// Time for which one agent holds the Lease of the conditions without renewing it.
    pub lease: Duration,
    /// Time after which the server ends a watch.
    pub watch: Duration,
    /// Objects of a page.
    pub page: usize,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            gather: Duration::from_millis(2),
            idle: Duration::from_secs(150),
            settle: Duration::from_secs(2),
            retry_min: Duration::from_millis(200),
            retry_max: Duration::from_secs(5),
            absent: Duration::from_secs(20),
            vanished: Duration::from_secs(30),
            verify: Duration::from_secs(2),
            audit: Duration::from_secs(2),
            reopen: Duration::from_secs(10),
            lease: Duration::from_secs(30),
            watch: Duration::from_mins(8),
            page: 500,
        }
    }
}

impl Timing {
    /// Wait before another attempt; longer after each.
    pub(super) fn wait(&self, attempts: u32) -> Duration {
        let exponential = self.retry_min.saturating_mul(1 << attempts.min(16));
        jittered(exponential.min(self.retry_max))
    }
}

/// Duration between the half and the whole of one, so that the nodes of a cluster do not act at once.
pub(super) fn jittered(duration: Duration) -> Duration {
    let random = RandomState::new().hash_one(0_u8) >> 32;
    duration.mul_f64(0.5 + random as f64 / (1_u64 << 33) as f64)
}

/// Report of a follower.
#[derive(Debug)]
pub(super) enum Message {
    /// Snapshot of all objects begins.
    Begin,
    /// Changes, or objects of a snapshot.
    Events(Vec<Event>),
    /// Snapshot is complete: objects that it lacks are gone.
    End,
    /// Server does not have the kind.
    Absent,
    /// Watch is established.
    Following,
    /// Objects cannot be followed.
    Away(String),
}

/// Change of an object.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Nearly all events are of the larger variant.
pub(super) enum Event {
    /// Object is new or has changed.
    Upsert(Entry),
    /// Object is gone.
    Delete(Key),
}
