//! Resolve: selectors, named ports and ip blocks become sets of addresses, and rules over them. No labels left.
//!
//! - a [`AddressGroup`] is a set of addresses that rules name, by what a person calls it;
//! - [`Membership`] knows which groups a pod, a node and a namespace are in;
//! - [`IpBlockIndex`] knows which groups an address is in for the prefix that it has;
//! - a [`RuleList`] is everything that judges one direction of a pod, in order.

mod group;
mod ip_blocks;
mod members;
mod pod_direction;
mod rule_list;

pub(crate) use group::PortName;
pub use group::{AddressGroup, NamespaceScope, PodSet};
pub(crate) use ip_blocks::IpBlockIndex;
pub(crate) use members::{AddressOwner, Membership};
pub(crate) use pod_direction::{PodDirection, RuleSetKey};
pub(crate) use rule_list::{Action, PortTerm, Rule, RuleIndex, RuleList};
