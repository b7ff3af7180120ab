//! Control API: HTTP with JSON on a Unix socket, and metrics, probes and status on a TCP listener.
//!
//! A [`Client`] sends requests, and a [`Server`] passes them to the [`Switch`]. The switch validates each
//! request, builds a new desired state and publishes it to the dataplane through [`DataplaneApi`](crate::dataplane::DataplaneApi). The module
//! [`protocol`] defines the messages. An invalid request changes nothing.

pub mod protocol;

mod api_error;
mod captures;
mod dashboard;
mod deny_log;
mod drops;
pub mod explain;
mod frame_summary;
mod health;
mod in_force;
mod ipfix;
mod metrics;
mod rehearsal;
mod services;
mod settings;
mod state;
mod steering;
mod switch;
mod validation;

mod background;
mod flows;
mod interface_monitor;
mod served_services;
mod server;

mod client;

pub use api_error::ApiError;
pub use background::{Periodic, export_flows};
pub(crate) use background::{
    collect_drops, detach_node_sockets, keep_node_routes, keep_node_sockets, remove_node_routes,
};
pub use client::{Client, ClientError};
pub use drops::DropQuery;
pub(crate) use frame_summary::summarize;
pub(crate) use interface_monitor::InterfaceMonitor;
pub use metrics::Format as MetricsFormat;
pub use server::{BoundSocket, HttpListener, Server, ServerError, SocketPlace};
pub(crate) use server::{avoid_worker_cores, http_needs_token, needs_token, raise_descriptor_limit};
pub use settings::{Configured, CoverageCheck, IpfixSettings, PortRoute, SwitchSettings};
pub use switch::Switch;
pub(crate) use validation::{is_container_port, validate_pod, validate_port, validate_route};

/// Default path of the control socket.
pub const DEFAULT_SOCKET: &str = "/run/palisade/control.sock";
