//! Decisions since the start.

use std::collections::BTreeMap;

use crate::tables::{RuleOrigin, Verdict};

/// Number of decisions by origin and verdict.
pub(super) type Hits = BTreeMap<(RuleOrigin, Verdict), u64>;
