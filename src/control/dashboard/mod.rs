//! Data of the dashboard, the page that the HTTP listener serves.
//!
//! Many pages may be open at once, each with a request a second. So both reports are computed for all of them together: an
//! [`Overview`] at most twice a second, and the [`Reachability`] once for each policy, on a thread of its own.

mod overview;
mod reachability;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;

use self::overview::Overview;
pub(super) use self::reachability::Report;
use self::reachability::{Reachability, json};
use super::Switch;

/// Time for which an overview is current.
const OVERVIEW_AGE_MAX: Duration = Duration::from_millis(500);

/// Reports of one switch, as JSON.
pub(super) struct Dashboard {
    switch: Arc<Switch>,
    overview: Mutex<Option<(Instant, Bytes)>>,
    reachability: Arc<Reachability>,
}

impl Dashboard {
    pub(super) fn new(switch: Arc<Switch>) -> Dashboard {
        Dashboard { switch, overview: Mutex::default(), reachability: Arc::default() }
    }

    /// Reports counters, times, problems and denied packets.
    pub(super) fn overview(&self) -> Bytes {
        let mut last = self.overview.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, bytes)) = &*last
            && at.elapsed() < OVERVIEW_AGE_MAX
        {
            return bytes.clone();
        }
        let bytes = json(&Overview::of(&self.switch));
        *last = Some((Instant::now(), bytes.clone()));
        bytes
    }

    /// Reports the reachability of the pods by the tables in force. Starts its computation by `spawn` if it is due.
    pub(super) fn reachability(&self, spawn: impl FnOnce(Box<dyn FnOnce() + Send>)) -> Report {
        self.reachability.report(&self.switch, spawn)
    }
}
