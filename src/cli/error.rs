//! Why a command fails: one report on standard error, and exit code 2.

use std::io;
use std::process::ExitCode;

use super::terminal;
use crate::source::load::Rejected;

/// Why a command fails.
#[derive(Debug)]
pub enum CliError {
    /// One sentence.
    Message(String),
    /// Manifests are wrong: a report that points into the files.
    Rejected(Rejected),
    /// It has been said already.
    Reported,
    /// Whoever reads the output has gone, as `head` does: nothing to report.
    BrokenPipe,
}

impl CliError {
    /// Prints what happened, and gives the exit code.
    pub fn report(&self) -> ExitCode {
        match self {
            CliError::Message(sentence) => terminal::note(&format!("palisade: {sentence}")),
            CliError::Rejected(rejected) => {
                terminal::report(&rejected.report(terminal::has_colors(&io::stderr())));
            }
            CliError::Reported => {}
            CliError::BrokenPipe => return ExitCode::SUCCESS,
        }
        ExitCode::from(2)
    }
}

impl From<Rejected> for CliError {
    fn from(rejected: Rejected) -> CliError {
        CliError::Rejected(rejected)
    }
}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> CliError {
        match error.kind() {
            io::ErrorKind::BrokenPipe => CliError::BrokenPipe,
            _ => CliError::Message(format!("the output cannot be written: {error}")),
        }
    }
}

macro_rules! message_from {
    ($($error:ty),+) => {
        $(impl From<$error> for CliError {
            fn from(error: $error) -> CliError {
                CliError::Message(error.to_string())
            }
        })+
    };
}

message_from!(crate::control::ClientError, crate::daemon::DaemonError, crate::config::ConfigError);
