//! The switch with the backend nftables: the kernel forwards.

mod life;
mod policy;
mod rig;
