//! Pods with tables.

use crate::policy::store::RuleSetId;
use crate::tables::PodName;

/// A pod that the tables assign_rule_sets.
#[derive(Debug)]
pub(crate) struct EnforcedPod {
    pub(super) name: PodName,
    pub(super) ingress: RuleSetId,
    pub(super) egress: RuleSetId,
}
