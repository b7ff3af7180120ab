//! A traffic generator and its receivers, on AF_XDP and on memory ports.
//!
//! A [`Session`] holds what is open: sockets that send, and a receiver. Each [`trial`](Session::trial) sends at one rate for
//! one time and tells what came of it; [`ndr`] asks for the highest rate with no more than a given loss. Frames are built
//! once and patched; they are sent open loop, so that a slow receiver does not slow the sender down, and what could not be
//! sent in time is told. [`Connections`] are whole TCP connections, both ends of them. [`payload`] has what a frame carries.

pub mod payload;
mod size;

mod random;

mod flows;
mod traffic;

mod template;

mod source;

mod pcap;
mod replay;

mod clock;
mod pace;
mod wire;

mod sender;

mod locate;
mod tracker;

mod receiver;

mod neighbor;
mod place;

mod session;

mod segment;

mod connect;

mod connections;

pub mod ndr;

mod report;

mod error;

pub use connect::{CONCURRENT_MAX, Connected};
pub use connections::{Connections, Dialogue};
pub use error::PktgenError;
pub use flows::{Distribution, FlowSpace};
pub use ndr::median;
pub use pace::Rate;
pub use pcap::Recording;
pub use place::Place;
pub use receiver::Measured;
pub use replay::Replay;
pub use report::{ConnectionReport, Report};
pub use sender::Sent;
pub use session::{Content, Receive, Session, Setup, Trial};
pub use size::{FCS_BYTES, FrameSize, WIRE_BYTES};
pub use traffic::{FLOWS_MAX, Kind, Traffic};
