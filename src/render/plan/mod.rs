//! Plan: rule tables as lists of rules over named address sets, for one address family. Every format prints a plan.
//!
//! A plan follows from the content of the tables alone. Names stay the same while members of sets change, so that
//! a difference of two plans is small.

mod acl;
mod build;
mod draft;
mod names;
mod prefix_tree;
mod types;

pub(crate) use names::{comment, counter, digest, identifier};
pub(crate) use types::{AclPlan, AddressSet, Endpoint, Family, Peers, Plan, PlanRule, PodLists, Span};
