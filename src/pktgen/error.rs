//! Why traffic is not generated: one sentence for the operator each.

use std::io;

use crate::netlink::NetlinkError;
use crate::xdp::XdpError;

/// What keeps traffic from being generated or received.
#[derive(Debug, thiserror::Error)]
pub enum PktgenError {
    /// Such traffic cannot be: what, and what to do.
    #[error("{0}")]
    Traffic(String),
    /// An interface cannot be opened.
    #[error(transparent)]
    Xdp(#[from] XdpError),
    /// A network namespace cannot be entered.
    #[error("network namespace {name} cannot be entered: {source} (`ip netns` lists those that have a name)")]
    Namespace {
        /// As it was given.
        name: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The interface takes no frames.
    #[error("interface {interface} cannot send: {source}")]
    Send {
        /// The interface.
        interface: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The interface has taken no frame for a second.
    #[error("interface {interface} takes no frames: set it and its peer up (`ip link set {interface} up`)")]
    Stalled {
        /// The interface.
        interface: String,
    },
    /// A frame does not fit.
    #[error("a frame of {bytes} bytes does not fit into a frame of the UMEM")]
    TooLong {
        /// Its bytes.
        bytes: usize,
    },
    /// A thread cannot be pinned.
    #[error("no thread can be pinned to core {0}: give --cores that this process may use (`taskset -p $$`)")]
    Core(usize),
    /// The next hop's Ethernet address is not known.
    #[error("{0}")]
    Neighbor(String),
    /// A recording cannot be read.
    #[error("{file}: {reason}")]
    Capture {
        /// The file.
        file: String,
        /// What is wrong with it, and where.
        reason: String,
    },
}

impl From<NetlinkError> for PktgenError {
    fn from(error: NetlinkError) -> PktgenError {
        XdpError::from(error).into()
    }
}
