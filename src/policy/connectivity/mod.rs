//! Connectivity: allowed traffic between endpoint groups, computed on classes and rows without sample
//! packets.
//!
//! - [`Traffic`] is a set of destination ports of each protocol;
//! - [`EndpointGroups`] divides all addresses into groups that no policy of some tables tells apart;
//! - [`AllowedTraffic`] computes the allowed traffic from one group to another;
//! - [`matrix`] lists it for all pairs, and [`diff`] compares two sets of tables.

mod allowed;
pub mod diff;
mod endpoint_groups;
mod group_names;
pub mod matrix;
mod matrix_blocks;
mod matrix_groups;
mod prefix_regions;
mod traffic;

pub use allowed::AllowedTraffic;
pub use endpoint_groups::{EndpointGroup, EndpointGroups, EndpointPolicy, GroupMembers, Grouping};
pub use group_names::GroupNames;
pub use traffic::Traffic;
