//! Resolve: selectors, named ports and ip blocks become sets of addresses, and rules over them. No labels left.
//!
//! - a [`Group`] is a set of addresses that rules name, by what a person calls it;
//! - [`Members`] knows which groups a pod, a node and a namespace are in;
//! - [`Blocks`] knows which groups an address is in for the prefix that it has;
//! - a [`RuleSet`] is everything that judges one direction of a pod, in order.

mod group;
mod ip_blocks;
mod members;
mod pod_direction;
mod rule_list;

pub(crate) use group::PortName;
pub use group::{Group, NamespaceScope, PodSet};
pub(crate) use ip_blocks::Blocks;
pub(crate) use members::{Holder, Members};
pub(crate) use pod_direction::{Subject, SubjectKey};
pub(crate) use rule_list::{Action, PortTerm, Rule, RuleIndex, RuleSet};
