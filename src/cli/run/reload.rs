//! Reload of the configuration on SIGHUP.

use std::path::Path;

use super::reconfigure::reconfigure;
use crate::config::Config;
use crate::control::Switch;
use crate::dataplane::Backend;

/// Reads the configuration again, and applies what a running switch takes. `config` is the configuration in force. Logs
/// the outcome, with the names of the keys that need a restart.
pub(super) fn reload(path: &Path, backend: Option<Backend>, switch: &Switch, config: &mut Config) {
    let file = path.display();
    let next = match Config::read(path) {
        Ok(next) => Config { backend: backend.unwrap_or(next.backend), ..next },
        Err(error) => return tracing::error!("the running configuration stays: {error}"),
    };
    if next == Config::default() && *config != next {
        // An editor or a copy truncates a file before it writes.
        return tracing::error!(
            "the running configuration stays: {file} has no key; reload again when it is written"
        );
    }
    let done = match reconfigure(switch, config, &next) {
        Ok(done) => done,
        Err(rejected) => {
            for error in rejected {
                tracing::error!("the running configuration stays, {file} is rejected: {error}");
            }
            return;
        }
    };
    for error in &done.failed {
        tracing::error!("a change of {file} failed: {error}");
    }
    if !done.restart.is_empty() {
        tracing::warn!("changes of {file} that need a restart: {}", done.restart.join(", "));
    }
    match done.applied.as_slice() {
        [] => tracing::info!("{file} read again: nothing to apply"),
        applied => tracing::info!("{file} read again: {}", applied.join(", ")),
    }
}
