//! Reload of the configuration on SIGHUP.

use std::path::Path;

use super::last_good;
use super::reconfigure::{Reconfigured, reconfigure};
use crate::config::Config;
use crate::control::Switch;
use crate::control::protocol::ConfigurationReport;
use crate::dataplane::Backend;

/// Reads the configuration again, and applies what a running switch takes. `config` is the configuration in force. Logs
/// the outcome, with the names of the keys that need a restart, and gives it to the status.
pub(super) fn reload(path: &Path, backend: Option<Backend>, switch: &Switch, config: &mut Config) {
    let report = match read_and_apply(path, backend, switch, config) {
        Ok(done) => {
            log(path, &done);
            if done.failed.is_empty() {
                last_good::keep(path, &config.control.socket);
            }
            ConfigurationReport {
                failed: done.failed.iter().map(ToString::to_string).collect(),
                restart: done.restart.into_iter().map(str::to_owned).collect(),
                ..ConfigurationReport::default()
            }
        }
        Err(rejected) => {
            for error in &rejected {
                tracing::error!("the running configuration stays, {} is rejected: {error}", path.display());
            }
            ConfigurationReport { rejected, ..ConfigurationReport::default() }
        }
    };
    switch.set_configured(config.configured());
    switch.set_configuration(ConfigurationReport { file: path.to_owned(), ..report });
}

/// Applies what a running switch takes, or returns the reasons for which the file is rejected.
fn read_and_apply(
    path: &Path,
    backend: Option<Backend>,
    switch: &Switch,
    config: &mut Config,
) -> Result<Reconfigured, Vec<String>> {
    let next = Config::read(path).map_err(|error| vec![error.to_string()])?;
    let next = Config { backend: backend.unwrap_or(next.backend), ..next };
    if next == Config::default() && *config != next {
        // An editor or a copy truncates a file before it writes.
        return Err(vec!["it has no key; reload again when it is written".to_owned()]);
    }
    let done = reconfigure(switch, config, &next);
    done.map_err(|rejected| rejected.iter().map(ToString::to_string).collect())
}

fn log(path: &Path, done: &Reconfigured) {
    let file = path.display();
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
