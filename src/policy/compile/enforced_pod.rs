//! Pods with ACL tables.

use crate::policy::store::RuleSetId;
use crate::tables::PodName;

/// Pod for which the switch enforces policy, and its rule sets.
#[derive(Debug, Clone)]
pub(crate) struct EnforcedPod {
    pub(super) name: PodName,
    pub(super) ingress: RuleSetId,
    pub(super) egress: RuleSetId,
}
