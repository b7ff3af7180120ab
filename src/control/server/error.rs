//! Errors of the control socket.

use std::io;
use std::path::PathBuf;

/// Reason for which the control socket does not open.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Another switch serves the socket.
    #[error(
        "another switch is running and answers at {path}: stop it, or give this one another [control] socket",
        path = path.display()
    )]
    Alive {
        /// Path of the socket.
        path: PathBuf,
    },
    /// Another kind of file has the path.
    #[error("{path} exists and is not a socket: move it away, or set another [control] socket", path = path.display())]
    NotASocket {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file system or the kernel refuses the socket.
    #[error("the control socket {path} cannot be opened: {source}", path = path.display())]
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
}
