//! Real traffic between pods, by the kernel's own stacks: a server, and clients that say what became of a connection.
//!
//! A socket belongs to the namespace of the thread that made it. So servers and clients make theirs inside the pod, and
//! use them from any thread.

mod measure;
mod pattern;
mod probe;
mod server;
mod transfer;

pub use measure::{Latency, Throughput, latency, throughput};
pub use probe::{Outcome, Probe, ping, tcp_connect, udp_exchange};
pub use server::{Server, Services};
pub use transfer::{TransferError, transfer};
