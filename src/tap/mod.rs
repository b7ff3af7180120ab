//! Tap devices as ports (`Documentation/networking/tuntap.rst`).
//!
//! A tap device is an interface whose other end is a file. The switch makes it inside a pod's network
//! namespace, and keeps the descriptors: nothing of the pod is in the namespace of the node, and without the
//! switch the interface has no carrier. A packet crosses the descriptor whole: a segment of up to 64 KB with an
//! unfinished checksum, behind a virtio-net header ([`crate::net::virtio_net`]) that describes both.
//!
//! | file | contents |
//! |---|---|
//! | `device.rs` | creation of a device, and its identity |
//! | `queue.rs` | packets in and out of one queue |
//! | `ioctl.rs` | requests of `linux/if_tun.h`, and the identity of a namespace |

mod device;
mod error;
mod ioctl;
mod queue;

pub use device::{TapDevice, TapSpec, UnreadPackets};
pub use error::TapError;
pub use ioctl::namespace_cookie;
pub use queue::TapQueue;
