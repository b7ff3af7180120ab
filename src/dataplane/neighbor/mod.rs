//! Neighbours: Ethernet addresses behind ports and on uplinks, and solicitations of the missing ones.

mod parts;
pub(super) mod resolver;
mod slot;
pub(super) mod solicit;
pub(super) mod table;
mod unresolved;
pub(super) mod uplink_table;

#[cfg(test)]
mod loom_tests;
