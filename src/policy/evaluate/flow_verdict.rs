//! Findings: what is said of a flow, whoever says it, and the tables as one who says it.

use serde::Serialize;

use crate::tables::{RuleOrigin, Verdict};

/// What one side of a flow says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SideVerdict {
    /// Whether it lets the flow pass.
    pub verdict: Verdict,
    /// Why.
    pub origin: RuleOrigin,
}

/// What both sides of a flow say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FlowVerdict {
    /// The source, if it is a pod that policy judges.
    pub egress: Option<SideVerdict>,
    /// The destination, if it is a pod that policy judges.
    pub ingress: Option<SideVerdict>,
}

impl FlowVerdict {
    /// Whether the flow passes: no side denies it.
    pub fn verdict(&self) -> Verdict {
        let denies =
            |side: &Option<SideVerdict>| side.as_ref().is_some_and(|side| side.verdict == Verdict::Deny);
        if denies(&self.egress) || denies(&self.ingress) { Verdict::Deny } else { Verdict::Allow }
    }
}
