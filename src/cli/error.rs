//! Why a command fails: one report on standard error, and exit code 2.

use std::io;
use std::process::ExitCode;

use super::terminal;
use crate::source::load::Rejected;

/// Why a command fails.
#[derive(Debug)]
pub enum Failure {
    /// One sentence.
    Sentence(String),
    /// Manifests are wrong: a report that points into the files.
    Rejected(Rejected),
    /// It has been said already.
    Told,
    /// Whoever reads the output has gone, as `head` does: nothing to report.
    ReaderGone,
}

impl Failure {
    /// Prints what happened, and gives the exit code.
    pub fn report(&self) -> ExitCode {
        match self {
            Failure::Sentence(sentence) => terminal::note(&format!("palisade: {sentence}")),
            Failure::Rejected(rejected) => {
                terminal::report(&rejected.report(terminal::has_colors(&io::stderr())));
            }
            Failure::Told => {}
            Failure::ReaderGone => return ExitCode::SUCCESS,
        }
        ExitCode::from(2)
    }
}

impl From<Rejected> for Failure {
    fn from(rejected: Rejected) -> Failure {
        Failure::Rejected(rejected)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::ReaderGone,
            _ => Failure::Sentence(format!("the output cannot be written: {error}")),
        }
    }
}

macro_rules! sentences {
    ($($error:ty),+) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Failure {
                Failure::Sentence(error.to_string())
            }
        })+
    };
}

sentences!(crate::control::ClientError, crate::daemon::DaemonError, crate::config::ConfigError);
