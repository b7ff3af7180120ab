//! Errors of the packet generator: one sentence for the operator each.

use std::io;

use crate::netlink::NetlinkError;
use crate::xdp::XdpError;

/// An error that keeps traffic from being generated or received.
#[derive(Debug, thiserror::Error)]
pub enum PktgenError {
    /// Traffic that cannot be: the reason, and the remedy.
    #[error("{0}")]
    Traffic(String),
    /// An interface cannot be opened.
    #[error(transparent)]
    Xdp(#[from] XdpError),
    /// A network namespace cannot be entered.
    #[error("network namespace {name} cannot be entered: {source} (`ip netns` lists those that have a name)")]
    Namespace {
        /// Name or path, as the caller gave it.
        name: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel refuses to send on the interface.
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
    /// A frame that is longer than a frame of the UMEM.
    #[error("a frame of {bytes} bytes does not fit into a frame of the UMEM")]
    TooLong {
        /// Length of the frame.
        bytes: usize,
    },
    /// A thread cannot be pinned.
    #[error("no thread can be pinned to core {0}: give --cores that this process may use (`taskset -p $$`)")]
    Core(usize),
    /// The next hop's Ethernet address is not known.
    #[error("{0}")]
    Neighbor(String),
    /// A capture cannot be read.
    #[error("{file}: {reason}")]
    Capture {
        /// The file.
        file: String,
        /// The fault, and its position.
        reason: String,
    },
}

impl From<NetlinkError> for PktgenError {
    fn from(error: NetlinkError) -> PktgenError {
        XdpError::from(error).into()
    }
}
