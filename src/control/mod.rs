//! Control API: HTTP with JSON on a Unix socket.
//!
//! A [`Client`] sends requests, and a [`Server`] passes them to the [`Switch`]. The switch validates each
//! request, builds a new desired state and publishes it to the dataplane through [`DataplaneApi`](crate::dataplane::DataplaneApi). The module
//! [`protocol`] defines the messages. An invalid request changes nothing.

pub mod protocol;

mod api_error;
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
pub(crate) use interface_monitor::InterfaceMonitor;
pub use server::{BoundSocket, Server, ServerError};
pub(crate) use server::{avoid_worker_cores, raise_descriptor_limit};
pub use settings::{CoverageCheck, PortRoute, SwitchSettings};
pub use switch::Switch;
pub(crate) use validation::{validate_pod, validate_port};

/// Default path of the control socket.
pub const DEFAULT_SOCKET: &str = "/run/palisade/control.sock";
