//! Rule tables: the one contract between the story of a policy and the story of a packet.
//!
//! [`RuleTables`] is plain data: what the compiler writes, what the control socket accepts. A
//! [`Classifier`] is the same content laid out for look-up: what the workers ask.
//!
//! To judge a new flow: the destination's class in the egress table of the source pod gives a row, the
//! protocol and destination port in the row give a decision; then the same with the source's class in the
//! ingress table of the destination pod. Two prefix look-ups and two questions to tables, however many rules.

// The document.
mod decision;
mod row;
mod rule_tables;
mod shared_map;

mod references;

mod canonical;

// The document laid out for look-up, from the whole to its parts.
mod classifier;

mod impact;

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
pub(crate) mod generate;

pub use classifier::{Classifier, Judgement, PodAcls};
pub use decision::{Decision, Direction, PolicyKind, PolicyRef, RuleOrigin, Verdict};
pub use impact::Impact;
pub use prefix_table::PrefixTable;
pub use references::References;
pub use route::RouteTable;
pub use row::{PortSpan, Row};
pub use row_store::Service;
pub use rule_tables::{Acl, FORMAT_VERSION, PodName, PodPolicy, RuleTables, TablesDiff, TablesError};
pub use shared_map::SharedMap;
