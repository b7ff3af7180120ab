//! A traffic generator and its receivers, on AF_XDP and on memory ports.
//!
//! A [`Session`] has sending sockets and a receiver. Each [`trial`](Session::trial) sends at one rate for one
//! time and returns counts and latencies. [`ndr`] searches for the highest rate with no more than a given
//! loss. Frames are built once and patched. They are sent open loop: a slow receiver does not slow the sender
//! down, and frames that could not be sent in time are counted. A [`TcpSession`] generates whole TCP
//! connections, both ends of them. [`stamp`] is the payload of a frame.

mod clock;
mod error;
mod rate_limiter;
mod traffic;

mod frames;
mod io;
mod next_hop;
mod target;

mod session;
mod tcp;

pub mod ndr;
mod report;

pub use error::PktgenError;
pub use frames::capture::Capture;
pub use frames::replay::Replay;
pub use io::receiver::Measured;
pub use io::sender::Sent;
pub use ndr::median;
pub use rate_limiter::Rate;
pub use report::{ConnectionReport, Report};
pub use session::{Content, Receive, Session, Setup, Trial};
pub use target::Target;
pub use tcp::endpoints::{CONCURRENT_MAX, TcpTrial};
pub use tcp::{TcpSession, TcpTraffic};
pub use traffic::flows::{Distribution, FlowSpace};
pub use traffic::frame_size::{FCS_BYTES, FrameSize, WIRE_BYTES};
pub use traffic::stamp;
pub use traffic::{FLOWS_MAX, Kind, Traffic};
