//! Refusals of the kernel, with the action that it refused.

use std::io;

use rustix::io::Errno;

/// A refusal of the kernel.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// No such interface in the network namespace of the calling thread.
    #[error("interface {interface} does not exist")]
    NoInterface {
        /// The interface's name, or its index as `number N`.
        interface: String,
    },
    /// Any other error number.
    #[error("cannot {action}: {source}")]
    Refused {
        /// The request, in words that complete "cannot …".
        action: String,
        /// The kernel's error number.
        source: io::Error,
    },
}

/// Adds the action to an error of the kernel.
pub(super) trait Context<T> {
    /// Returns the error with `action`, which completes the sentence "cannot …".
    fn context(self, action: impl FnOnce() -> String) -> Result<T, NetlinkError>;

    /// Returns [`NetlinkError::NoInterface`] for `ENODEV`, and otherwise the error with `action`.
    fn on(self, interface: &str, action: impl FnOnce() -> String) -> Result<T, NetlinkError>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, action: impl FnOnce() -> String) -> Result<T, NetlinkError> {
        self.map_err(|source| NetlinkError::Refused { action: action(), source })
    }

    fn on(self, interface: &str, action: impl FnOnce() -> String) -> Result<T, NetlinkError> {
        match self {
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => {
                Err(NetlinkError::NoInterface { interface: interface.to_owned() })
            }
            other => other.context(action),
        }
    }
}
