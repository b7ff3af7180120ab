//! Reach: what passes between two groups, as a set, worked out on classes and rows rather than by trying packets.
//!
//! - [`Traffic`] is a set of destination ports of each protocol;
//! - [`EndpointGroups`] divides all addresses into those that no policy of some tables tells apart;
//! - [`AllowedTraffic`] says what passes from one group to another.

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
