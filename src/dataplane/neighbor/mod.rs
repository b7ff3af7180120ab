//! Neighbours: their Ethernet addresses, their resolution by the kernel, and the rate at which workers solicit them.

pub(super) mod resolver;
pub(super) mod solicit;
pub(super) mod table;
