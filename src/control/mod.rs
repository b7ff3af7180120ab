//! The control socket: HTTP with JSON on a Unix socket.
//!
//! A [`Client`] asks, a [`Server`] hands the request to the [`Switch`], which checks it, makes a new world of it and
//! publishes that to its [`DataplaneApi`], the dataplane. What goes over the socket is in [`protocol`]. A request that
//! does not check changes nothing.

pub mod protocol;

mod api_error;
mod dataplane_api;
pub mod explain;
mod settings;
mod state;
mod switch;
mod validation;

mod interface_monitor;
mod server;

mod client;

pub use api_error::ApiError;
pub use client::{Client, ClientError};
pub use dataplane_api::DataplaneApi;
pub(crate) use interface_monitor::InterfaceMonitor;
pub use server::{BoundSocket, Server, ServerError};
pub(crate) use server::{avoid_worker_cores, raise_descriptor_limit};
pub use settings::{CoverageCheck, PortRoute, SwitchSettings};
pub use switch::Switch;
pub(crate) use validation::{validate_pod, validate_port};

/// Where the control socket is unless the configuration says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/palisade/control.sock";
