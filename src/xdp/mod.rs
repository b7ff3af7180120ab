//! AF_XDP: frames pass between the kernel's drivers and the switch without the kernel's network stack.
//!
//! One file per concept of `Documentation/networking/af_xdp.rst`. A worker has one [`Umem`], whose frames it
//! holds as [`Frame`] tokens, and one [`PortQueue`] for each port. A [`Program`] in the kernel redirects the
//! frames that a port receives to the queue's socket, and drops them without one; on an uplink, only frames
//! for the node's pods.
//!
//! ```text
//!            refill            the kernel writes a packet           receive
//!  free list ------> fill ring ---------------------------> rx ring -------> batch
//!      ^                                                                       | transmit
//!      +------------ completion ring <--------------------- tx ring <----------+
//!         complete                    the kernel sends it
//! ```
//!
//! Invariant: frames lent to queues + frames that the worker holds = frames of the UMEM. The ownership table
//! of the UMEM has the queue that each frame is lent to. A closed queue gives back every frame, and a
//! descriptor from a ring that its frame was not lent to is counted and refused.
//!
//! The unsafe code of the crate is in this module, in [`crate::mem`], and in one block of [`crate::tap`].

#![allow(unsafe_code)]

mod driver_counters;
mod error;
mod frame;
mod frame_links;
mod frame_ownership;
pub(crate) mod libbpf;
mod loss_counters;
mod memory_port;
mod multi_buffer;
pub mod offload;
mod program;
mod queue;
mod socket;
mod statistics;
mod tap_rings;
mod tx_metadata;
mod umem;
mod umem_area;
mod umem_owner;

pub use error::XdpError;
pub(crate) use error::{check_mtu, one_frame};
pub use frame::{DoesNotFit, Frame};
pub use libbpf::link::{
    NoBpfFileSystem, Pins, check_tcx, is_on_bpf_file_system, namespace_cookie, offload_pin, program_pin,
    sweep,
};
pub use libbpf::pinned::{PinDirectory, PinUse, own_pin_use, pin_directories};
pub use loss_counters::{LossCounters, LostFrames};
pub use memory_port::MemoryPeer;
pub use multi_buffer::mtu_of_this_kernel;
pub use program::constants::UplinkConstants;
pub use program::drop_counter::{DropCounter, Dropped};
pub use program::node_marker::NodeMarker;
pub use program::services::ServiceDestinations;
pub use program::{Guard, Mode, Program, has_program_of_switch, remove_program_of_switch};
pub use queue::PortQueue;
pub use socket::Kick;
pub use statistics::Statistics;
pub use umem::{Binder, ClosedQueue, Umem};
