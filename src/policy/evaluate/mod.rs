//! The evaluator: a second, naive evaluator that reads the objects and says whether a packet may pass.
//!
//! It shares no code with resolve and compile, not even the matching of labels and prefixes, and looks at every object for
//! every packet. It is what the specification says, clause by clause (the ids are those of `docs/policy.md`), and
//! what the compiled tables are compared with.

pub(in crate::policy) mod cluster_tiers;
mod flow_verdict;
pub(in crate::policy) mod isolation;
mod peers;
pub(in crate::policy) mod ports;
mod reference;
pub(in crate::policy) mod selectors;

pub use flow_verdict::{FlowVerdict, SideVerdict, TableEvaluator};
pub use reference::ReferenceEvaluator;
pub(in crate::policy) use reference::{AddressOwner, PeerAddress, Query};
