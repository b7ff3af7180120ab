//! The control socket: HTTP with JSON on a Unix socket.

pub mod protocol;

mod client;

pub use client::{Client, ClientError};

/// Where the control socket is unless the configuration says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/palisade/control.sock";
