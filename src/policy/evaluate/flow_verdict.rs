//! Flow verdict: the verdicts of both sides of a flow, with the rules that decided.

use serde::Serialize;

use crate::tables::{RuleOrigin, Verdict};

/// Verdict of one side of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SideVerdict {
    /// Verdict.
    pub verdict: Verdict,
    /// Rule that decided.
    pub origin: RuleOrigin,
}

/// Verdicts of both sides of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FlowVerdict {
    /// Verdict of the source, if policy applies to it.
    pub egress: Option<SideVerdict>,
    /// Verdict of the destination, if policy applies to it.
    pub ingress: Option<SideVerdict>,
}

impl FlowVerdict {
    /// Verdict of the flow: allow unless a side denies it.
    pub fn verdict(&self) -> Verdict {
        let denies =
            |side: &Option<SideVerdict>| side.as_ref().is_some_and(|side| side.verdict == Verdict::Deny);
        if denies(&self.egress) || denies(&self.ingress) { Verdict::Deny } else { Verdict::Allow }
    }

    /// Rule of the first side that denies the flow.
    pub fn denial(&self) -> Option<&RuleOrigin> {
        let mut sides = self.egress.iter().chain(&self.ingress);
        sides.find(|side| side.verdict == Verdict::Deny).map(|side| &side.origin)
    }
}
