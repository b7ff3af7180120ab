//! Log of the commands that run until a signal.

use tracing_subscriber::EnvFilter;

use crate::cli::terminal;
use crate::config::LogFormat;

/// Levels unless `PALISADE_LOG` sets others. The agent reports each failed request itself, in one line.
const DEFAULT_FILTER: &str = "info,kube_client=off";

/// Starts the log on standard error.
pub(super) fn start_log(format: LogFormat) {
    let filter = EnvFilter::try_from_env("PALISADE_LOG").unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(terminal::LogWriter::new)
        .with_ansi(terminal::has_colors(&std::io::stderr()));
    // A second subscriber is rejected, and the first one stays.
    let _ = match format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
}
