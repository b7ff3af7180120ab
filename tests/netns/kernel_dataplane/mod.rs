//! The switch with the backend nftables: the kernel forwards.

mod policy;
mod rig;
