//! Neighbours: Ethernet addresses behind ports and on uplinks, and solicitations of the missing ones.

pub(super) mod resolver;
pub(super) mod solicit;
pub(super) mod table;
pub(super) mod uplink_table;
