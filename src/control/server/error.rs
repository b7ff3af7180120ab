//! Errors of the control socket and the HTTP listener.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Reason for which the control socket or the HTTP listener does not open.
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
    /// The group of a socket does not exist.
    #[error(
        "there is no group {group:?} for the socket {path}: create it (`groupadd --system NAME`), or correct [control]",
        path = path.display()
    )]
    NoGroup {
        /// Path of the socket.
        path: PathBuf,
        /// Name of the group.
        group: String,
    },
    /// The process may not give a socket to its group.
    #[error(
        "the socket {path} cannot be given to group {group:?}: {source}: make the switch a member \
         (`SupplementaryGroups=` of a systemd unit), or give it CAP_CHOWN",
        path = path.display()
    )]
    Group {
        /// Path of the socket.
        path: PathBuf,
        /// Name of the group.
        group: String,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The kernel refuses the HTTP listener's address.
    #[error("the HTTP listener cannot use {address}: {source}: set another [http] listen")]
    Http {
        /// Address.
        address: SocketAddr,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The HTTP listener is reachable from other machines and has no token.
    #[error("{}", http_needs_token(*.address))]
    HttpWithoutToken {
        /// Address.
        address: SocketAddr,
    },
    /// The token of the HTTP listener cannot be used.
    #[error("the token file {path} of the HTTP listener {what}", path = path.display())]
    HttpToken {
        /// Path of the file.
        path: PathBuf,
        /// Mistake and remedy.
        what: String,
    },
}

/// Mistake of an HTTP listener that other machines reach without a token, and the remedies.
pub(crate) fn http_needs_token(address: SocketAddr) -> String {
    format!(
        "other machines may reach {address}, and no token_file is configured: listen on a loopback address such as \
         127.0.0.1:{port}, or give clients a token",
        port = address.port()
    )
}
