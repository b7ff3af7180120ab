//! Errors of commands: one report on standard error, and exit code 2.

use std::io;
use std::process::ExitCode;

use super::terminal;
use crate::source::load::Rejected;

/// Reason for which a command fails.
#[derive(Debug)]
pub enum CliError {
    /// Message of one sentence.
    Message(String),
    /// Invalid manifests, with a report that points into the files.
    Rejected(Rejected),
    /// Failure that is reported already.
    Reported,
    /// The reader of the output has closed the pipe, as `head` does. Nothing is reported.
    BrokenPipe,
}

impl CliError {
    /// Prints the error and returns the exit code.
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
