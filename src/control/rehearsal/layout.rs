//! Tables that are not in force, laid out for the ports and pods of a moment.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::dataplane::{Candidate, CandidateTables};
use crate::tables::RuleTables;

/// Least time between two walks over the flow table. Flows that end stay in the table for longer.
const WALK_INTERVAL: Duration = Duration::from_secs(1);
/// Least time between two walks, as a multiple of the time that a walk takes.
const WALK_SHARE: u32 = 10;
/// Time after which a walk that has not ended is no reason to wait with the next one.
pub(super) const WALK_TIME_MAX: Duration = Duration::from_mins(1);

/// Time of the next walk after one that `began` and ends now.
pub(super) fn next_walk(began: Instant) -> Instant {
    Instant::now() + WALK_INTERVAL.max(began.elapsed() * WALK_SHARE)
}

/// Candidate tables and their layout, used without a lock: a layout and a walk take long.
pub(super) struct Layout {
    pub(super) tables: Arc<RuleTables>,
    pub(super) candidate: Option<Arc<Candidate>>,
}

impl Layout {
    /// The candidate for the ports and pods of this moment.
    pub(super) fn current(mut self, workers: &dyn CandidateTables) -> Option<(Layout, Arc<Candidate>)> {
        if self.fitting(workers).is_none() {
            self.candidate = workers.lay_out(&self.tables).map(Arc::new);
        }
        let candidate = self.candidate.clone()?;
        Some((self, candidate))
    }

    /// The candidate, if it is laid out for the ports and pods of this moment.
    pub(super) fn fitting(&self, workers: &dyn CandidateTables) -> Option<&Arc<Candidate>> {
        self.candidate.as_ref().filter(|candidate| workers.fits(candidate))
    }
}
