//! Reach: what passes between two ends, as a set, worked out on classes and rows rather than by trying packets.
//!
//! - [`Traffic`] is a set of destination ports of each protocol;
//! - [`Ends`] divides all addresses into those that no policy of some tables tells apart;
//! - [`Passing`] says what passes from one end to another.

mod allowed;
pub mod diff;
mod endpoint_groups;
mod group_names;
pub mod matrix;
mod matrix_blocks;
mod matrix_groups;
mod prefix_regions;
mod traffic;

pub use allowed::Passing;
pub use endpoint_groups::{End, EndKind, Ends, Grouping, View};
pub use group_names::Names;
pub use traffic::Traffic;
