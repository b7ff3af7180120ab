//! Real traffic between pods through the kernel's network stacks: a server, and clients that return the
//! outcome of a connection.
//!
//! A socket belongs to the network namespace of the thread that made it. Servers and clients make their
//! sockets inside the pod, and use them from any thread.

mod measure;
mod pattern;
mod probe;
mod server;
mod service;
mod transfer;

pub use measure::{Latency, Throughput, latency, throughput};
pub use probe::{Outcome, Probe, ping, tcp_connect, udp_exchange};
pub use server::{Server, Services};
pub use transfer::{TransferError, transfer};
