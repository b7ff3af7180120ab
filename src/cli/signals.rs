//! Termination signals of the commands that clean up before they end.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::CliError;

/// Returns a flag that termination signals set, so that a command can clean up before it ends.
pub(super) fn interruption() -> Result<Arc<AtomicBool>, CliError> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, flag.clone())
            .map_err(|error| CliError::Message(format!("signals cannot be watched: {error}")))?;
    }
    Ok(flag)
}
