//! Rule tables as a document: plain data with a versioned format.

mod canonical;
mod decision;
mod persistent_map;
mod reference_counts;
mod row;
mod rule_tables;

pub use decision::{Decision, Direction, PolicyKind, PolicyRef, RuleOrigin, Verdict};
pub use persistent_map::PersistentMap;
pub use reference_counts::ReferenceCounts;
pub use row::{PortSpan, Row};
pub use rule_tables::{Acl, FORMAT_VERSION, PodName, PodPolicy, RuleTables, TablesDiff, TablesError};
