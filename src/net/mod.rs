//! Packets: header views, checksums, and the flow key. No unsafe code, no allocation.
//!
//! A view is a reference to as many bytes as its header has at least, so that reading a field cannot fail.
//! Making a view of a short slice returns `None`. Offsets are those of the RFC named in each file.

pub(crate) mod address;
pub mod arp;
pub mod checksum;
pub mod ecn;
pub mod ethernet;
pub mod flow;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
pub mod mac;
pub mod sctp;
pub mod tcp;
pub mod udp;
pub mod virtio_net;
pub mod vxlan;

/// The 16-bit number at the start of two bytes, network order.
#[inline]
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Reads the 32-bit number at `at`, network order.
#[inline]
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
