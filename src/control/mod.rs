//! The control socket: HTTP with JSON on a Unix socket.
//!
//! A [`Client`] asks, a [`Server`] hands the request to the [`Switch`], which checks it, makes a new world of it and
//! publishes that to its [`Engine`], the dataplane. What goes over the socket is in [`protocol`]. A request that
//! does not check changes nothing.

pub mod protocol;

mod engine;
pub mod explain;
mod refusal;
mod requests;
mod state;
mod switch;

mod accept;
mod routes;
mod server;
mod socket;

mod client;
mod connection;
mod daemon;
mod links;

pub use client::{Client, ClientError};
pub use daemon::{Daemon, DaemonError};

pub use engine::Engine;
pub use refusal::Refusal;
pub(crate) use requests::{check_pod, port_spec};
pub(crate) use server::leave_cores;
pub use server::{Claim, Server, ServerError};
pub use switch::{Closing, PortRoute, Switch, SwitchSettings};

/// Where the control socket is unless the configuration says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/palisade/control.sock";
