//! Reach: what passes between two ends, as a set, worked out on classes and rows rather than by trying packets.
//!
//! - [`Traffic`] is a set of destination ports of each protocol;
//! - [`Ends`] divides all addresses into those that no policy of some tables tells apart;
//! - [`Passing`] says what passes from one end to another.

mod ends;
mod naming;
mod passing;
mod regions;
mod traffic;

pub use ends::{End, EndKind, Ends, Grouping, View};
pub use naming::Names;
pub use passing::Passing;
pub use traffic::Traffic;
