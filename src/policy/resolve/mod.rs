//! Resolve: converts selectors, named ports and `ipBlock` peers into address groups, and policies into rules
//! over groups. The result contains no labels.
//!
//! - [`AddressGroup`] is a set of addresses that rules refer to;
//! - [`Membership`] maps pods, nodes and namespaces to groups;
//! - [`IpBlockIndex`] maps addresses to groups by their longest prefix;
//! - [`RuleList`] is the ordered list of rules of one direction of a pod.

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
