//! Rule tables: the interface between the policy compiler and the packet path.
//!
//! [`RuleTables`] is plain data: output of the compiler and input of the control socket. A [`Classifier`] is
//! its compiled form, which the workers query.
//!
//! A flow is decided in two steps. The class of the destination selects a row in the egress table of the
//! source pod; protocol and destination port select a decision in the row. The class of the source does the
//! same in the ingress table of the destination pod. The cost is two prefix lookups and two table lookups,
//! whatever the number of rules.

mod document;

// Compiled form, from the whole to its parts.
mod classifier;

mod affected_acls;

mod pod_index;

mod acl_store;
mod row_store;

mod route;

mod services;

mod prefix_table;

mod exact_table;
mod prefix_trie;

mod prefix_set;

mod arena;

#[cfg(test)]
pub(crate) mod tests;

pub use affected_acls::AffectedAcls;
pub use classifier::{Classifier, FlowDecision};
pub use document::{
    Acl, Decision, Direction, FORMAT_VERSION, PersistentMap, PodName, PodPolicy, PolicyKind, PolicyRef,
    PortSpan, ReferenceCounts, Row, RuleOrigin, RuleTables, TablesDiff, TablesError, Verdict,
};
pub use pod_index::PodAcls;
pub use prefix_table::PrefixTable;
pub use route::RouteTable;
pub use row_store::Service;
pub use services::{
    HealthCheck, PortMapping, ServicePort, ServicePortName, ServiceSet, ServiceTable, ServicesDiff,
    ServicesError, VirtualEndpoint,
};
