//! Evaluation of flows, by the objects ([`ReferenceEvaluator`]) and by rule tables ([`TableEvaluator`]).
//!
//! The reference evaluator is naive. It shares no code with resolve and compile, not even the matching of
//! labels and prefixes, and inspects every object for every packet. It follows the specification clause by
//! clause (the ids are those of `docs/policy.md`). Tests compare the compiled tables with it.

pub(in crate::policy) mod cluster_tiers;
mod flow_verdict;
pub(in crate::policy) mod isolation;
mod object_index;
mod peers;
pub(in crate::policy) mod ports;
mod query;
mod reference;
pub(in crate::policy) mod selectors;
mod table_evaluator;

pub use flow_verdict::{FlowVerdict, SideVerdict};
pub use object_index::ObjectIndex;
pub(in crate::policy) use query::{AddressOwner, PeerAddress, Query};
pub use reference::ReferenceEvaluator;
pub use table_evaluator::TableEvaluator;
