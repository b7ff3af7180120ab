//! Rule tables: the one contract between the story of a policy and the story of a packet.
//!
//! [`RuleTables`] is plain data: what the compiler writes, what the control socket accepts. A
//! [`Classifier`] is the same content laid out for look-up: what the workers ask.
//!
//! To judge a new flow: the destination's class in the egress table of the source pod gives a row, the
//! protocol and destination port in the row give a decision; then the same with the source's class in the
//! ingress table of the destination pod. Two prefix look-ups and two questions to tables, however many rules.

mod document;

// The document laid out for look-up, from the whole to its parts.
mod classifier;

mod affected_acls;

mod pod_index;

mod acl_store;
mod row_store;

mod route;

mod prefix_table;

mod exact_table;
mod prefix_trie;

mod prefix_set;

mod arena;

#[cfg(test)]
pub(crate) mod tests;

pub use affected_acls::AffectedAcls;
pub use classifier::{Classifier, FlowDecision, PodAcls};
pub use document::{
    Acl, Decision, Direction, FORMAT_VERSION, PersistentMap, PodName, PodPolicy, PolicyKind, PolicyRef,
    PortSpan, ReferenceCounts, Row, RuleOrigin, RuleTables, TablesDiff, TablesError, Verdict,
};
pub use prefix_table::PrefixTable;
pub use route::RouteTable;
pub use row_store::Service;
