//! Errors of tap devices: one sentence for the operator each.

use std::io;

use crate::netlink::NetlinkError;

/// A failure to make or to open a tap device. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// No such network namespace.
    #[error(
        "network namespace {namespace} does not exist: `ip netns add {namespace}` makes it, or correct its name"
    )]
    NoNamespace {
        /// Name or path of the namespace.
        namespace: String,
    },
    /// Another namespace has the name.
    #[error(
        "network namespace {namespace} is another one than the one that the port was requested for: remove the port"
    )]
    Replaced {
        /// Name or path of the namespace.
        namespace: String,
    },
    /// The interface is not a tap device.
    #[error(
        "interface {interface} of network namespace {namespace} is there, and is no tap device of this switch: remove it \
         (`ip -n {namespace} link del {interface}`), or choose another name"
    )]
    Other {
        /// Name or path of the namespace.
        namespace: String,
        /// Name of the interface.
        interface: String,
    },
    /// A process has the device open.
    #[error(
        "tap device {interface} of network namespace {namespace} is in use by another process: stop that one first"
    )]
    InUse {
        /// Name or path of the namespace.
        namespace: String,
        /// Name of the interface.
        interface: String,
    },
    /// The kernel has no tap devices, or `/dev/net/tun` is not there.
    #[error(
        "/dev/net/tun cannot be opened ({source}): load the kernel's module tun (`modprobe tun`), and run as root"
    )]
    NoDriver {
        /// Error of the kernel.
        source: io::Error,
    },
    /// A netlink request failed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// Any other refusal of the kernel.
    #[error("cannot {action}: {source}")]
    Refused {
        /// The request, in words that complete "cannot …".
        action: String,
        /// Error of the kernel.
        source: io::Error,
    },
}
