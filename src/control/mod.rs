//! The control socket: HTTP with JSON on a Unix socket.

pub mod protocol;
