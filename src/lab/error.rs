//! What can go wrong in a lab.

use std::io;
use std::path::Path;

use rustix::io::Errno;

use crate::netlink::NetlinkError;

/// Why a lab does not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// No privilege.
    #[error("a lab makes network namespaces and interfaces, which only root may: run the command with sudo")]
    NotRoot,
    /// The plan does not work out: what, and what to do.
    #[error("{0}")]
    Plan(String),
    /// The kernel refused something.
    #[error("cannot {what}: {source}")]
    Kernel {
        /// What was tried.
        what: String,
        /// Its answer.
        source: io::Error,
    },
    /// A record of a lab cannot be read.
    #[error("{file}: not a record of a lab ({reason}): remove what it names by hand, then the file")]
    Journal {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no such lab.
    #[error("there is no lab {id}: `palisade lab list` shows the labs")]
    NoLab {
        /// What was asked for.
        id: String,
    },
    /// There is no such pod.
    #[error("lab {lab} has no pod {pod}: its pods are {pods}")]
    NoPod {
        /// The lab.
        lab: String,
        /// What was asked for.
        pod: String,
        /// The pods that are there.
        pods: String,
    },
    /// The user has had enough.
    #[error("interrupted; what was made is removed")]
    Interrupted,
    /// The switch did not do its part: what, and what to do.
    #[error("{0}")]
    Switch(String),
}

impl From<NetlinkError> for LabError {
    fn from(error: NetlinkError) -> LabError {
        let (what, source) = match error {
            NetlinkError::NoInterface { interface } => {
                (format!("find interface {interface}"), Errno::NODEV.into())
            }
            NetlinkError::Refused { action, source } => (action, source),
        };
        LabError::Kernel { what, source }
    }
}

/// Says what was being done when the kernel refused.
pub(super) trait Doing<T> {
    /// `what` completes the sentence "cannot …".
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, LabError>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, LabError> {
        self.map_err(|error| LabError::Kernel { what: what(), source: error.into() })
    }
}

/// Writes a file of `/proc` or `/sys`.
pub(super) fn write_setting(file: impl AsRef<Path>, value: &str) -> Result<(), LabError> {
    let file = file.as_ref();
    std::fs::write(file, value).doing(|| format!("write {value} to {}", file.display()))
}
