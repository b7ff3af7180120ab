//! What the benchmark of the packet path is made of.

pub(crate) mod conntrack;
pub(crate) mod report;
pub(crate) mod rig;
pub(crate) mod traffic;
