//! AF_XDP: frames between the kernel's drivers and the switch, without the kernel's network stack between.
//!
//! One file per concept of `Documentation/networking/af_xdp.rst`. A worker has one [`Umem`], whose frames it holds as
//! [`Frame`] tokens, and one [`PortQueue`] for each port. A [`Program`] in the kernel sends what a port receives to
//! the queue's socket, and drops it while there is none; on an uplink only what is for the node's pods.
//!
//! ```text
//!            refill            the kernel writes a packet           receive
//!  free list ------> fill ring ---------------------------> rx ring -------> batch
//!      ^                                                                       | transmit
//!      +------------ completion ring <--------------------- tx ring <----------+
//!         complete                    the kernel sends it
//! ```
//!
//! What holds at any time: frames lent to queues + frames that the worker holds = frames of the UMEM. A ledger in the
//! UMEM knows for each frame to which queue it is lent, so that a closed queue gives every one back, and a descriptor
//! that comes back from where it was not lent is counted and refused.
//!
//! All unsafe code of the crate is here and in [`crate::mem`].

#![allow(unsafe_code)]

mod anchor;
mod attach;
mod chain;
mod drop_counter;
mod error;
mod frame;
mod interface;
mod kernel_log;
mod ledger;
mod link;
mod lost;
mod memory;
mod memory_ring;
mod prefixes;
mod program;
mod queue;
mod region;
mod socket;
mod umem;

pub use drop_counter::{DropCounter, Dropped};
pub use error::XdpError;
pub(crate) use error::one_frame;
pub use frame::{DoesNotFit, Frame};
pub use interface::{Interface, node_addresses};
pub use link::{Pins, sweep};
pub use lost::{LossCounters, LostFrames};
pub use memory::MemoryPeer;
pub use program::{Guard, Mode, Program};
pub use queue::{ClosedQueue, Kick, PortQueue, Statistics};
pub use umem::{Binder, Umem};
