//! What the benchmark of the packet path is made of.

#![allow(dead_code)] // Each benchmark uses its part.

pub(crate) mod conntrack;
pub(crate) mod pair;
pub(crate) mod report;
pub(crate) mod rig;
pub(crate) mod traffic;
