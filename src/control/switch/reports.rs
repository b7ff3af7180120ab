//! Reports of the parts of the process about what they could not do, for the status.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use super::{NodePart, Switch, shown};
use crate::control::ApiError;
use crate::control::protocol::{ConfigurationReport, RejectedReload, ReloadRequested};
use crate::control::state::unix_seconds;
use crate::limits::REJECTED_ERRORS_MAX;

impl Switch {
    /// Records that a change of the watched directory was rejected, or with `None` that one was accepted.
    pub fn set_rejected_reload(&self, rejected: Option<(&Path, &[String])>) {
        let report = rejected.map(|(path, errors)| {
            let shown = errors.iter().take(REJECTED_ERRORS_MAX).map(|error| shown(error)).collect();
            Arc::new(RejectedReload {
                path: path.to_owned(),
                at_unix_s: unix_seconds(SystemTime::now()),
                errors: shown,
                left_out: errors.len().saturating_sub(REJECTED_ERRORS_MAX),
            })
        });
        self.rejected_reload.store(report);
    }

    /// Has requests for a reload of the configuration call `reload`, which does not wait for its end. The first one stays.
    pub fn on_reload_request(&self, reload: impl Fn() + Send + Sync + 'static) {
        let _ = self.reload.set(Box::new(reload));
    }

    /// Asks the process to reload its configuration, whose outcome the status has later.
    pub fn request_reload(&self) -> Result<ReloadRequested, ApiError> {
        let reload = self.reload.get().ok_or(ApiError::NoConfiguration)?;
        let reloads = self.configuration.load().as_deref().map_or(0, |report| report.reloads);
        reload();
        Ok(ReloadRequested { reloads })
    }

    /// Records the outcome of a reload of the configuration.
    pub fn set_configuration(&self, report: ConfigurationReport) {
        let reloads = self.configuration.load().as_deref().map_or(0, |before| before.reloads) + 1;
        let read_unix_s = unix_seconds(SystemTime::now());
        self.configuration.store(Some(Arc::new(ConfigurationReport { reloads, read_unix_s, ..report })));
    }

    /// Records why the node's own kernel does not have all that the switch gives it, or with `None` that it has.
    pub(in crate::control) fn set_node_problem(&self, part: NodePart, problem: Option<String>) {
        let place = &self.node_problems[part as usize];
        let before = place.swap(problem.map(Arc::new));
        let now = place.load();
        if let Some(problem) = now.as_ref().filter(|problem| before.as_ref() != Some(problem)) {
            tracing::warn!("{problem}");
        }
    }
}
