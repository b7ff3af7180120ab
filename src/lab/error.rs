//! Errors of a lab.

use std::io;
use std::path::Path;

use rustix::io::Errno;

use crate::netlink::NetlinkError;

/// An error of a lab.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The process is not root.
    #[error("a lab makes network namespaces and interfaces, which only root may: run the command with sudo")]
    NotRoot,
    /// A plan that does not work out: the reason, and the remedy.
    #[error("{0}")]
    Plan(String),
    /// A refusal of the kernel.
    #[error("cannot {what}: {source}")]
    Kernel {
        /// The action, in words that complete "cannot …".
        what: String,
        /// The kernel's error number.
        source: io::Error,
    },
    /// A journal that cannot be read.
    #[error("{file}: not a record of a lab ({reason}): remove what it names by hand, then the file")]
    Journal {
        /// The file.
        file: String,
        /// The fault.
        reason: String,
    },
    /// No lab has this id.
    #[error("there is no lab {id}: `palisade lab list` shows the labs")]
    NoLab {
        /// The requested id.
        id: String,
    },
    /// The lab has no such pod.
    #[error("lab {lab} has no pod {pod}: its pods are {pods}")]
    NoPod {
        /// The lab.
        lab: String,
        /// The requested pod.
        pod: String,
        /// The pods of the lab.
        pods: String,
    },
    /// A signal of the user.
    #[error("interrupted; what was made is removed")]
    Interrupted,
    /// A failure of the switch: the reason, and the remedy.
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

/// Adds the action to an error of the kernel.
pub(super) trait Context<T> {
    /// Returns the error with `what`, which completes the sentence "cannot …".
    fn context(self, what: impl FnOnce() -> String) -> Result<T, LabError>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, LabError> {
        self.map_err(|error| LabError::Kernel { what: what(), source: error.into() })
    }
}

/// Writes a file of `/proc` or `/sys`.
pub(super) fn write_setting(file: impl AsRef<Path>, value: &str) -> Result<(), LabError> {
    let file = file.as_ref();
    std::fs::write(file, value).context(|| format!("write {value} to {}", file.display()))
}
