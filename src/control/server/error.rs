//! Errors of the control socket.

use std::io;
use std::path::PathBuf;

/// Error of opening the control socket.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Another switch has it.
    #[error(
        "another switch is running and answers at {path}: stop it, or give this one another [control] socket",
        path = path.display()
    )]
    Alive {
        /// The socket.
        path: PathBuf,
    },
    /// Something else has the name.
    #[error("{path} exists and is not a socket: move it away, or set another [control] socket", path = path.display())]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// The file system or the kernel refuses.
    #[error("the control socket {path} cannot be opened: {source}", path = path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}
