//! Explanations: why a flow is allowed or denied, and what it would have taken for another verdict.
//!
//! The verdict and the rule that decided come from whoever judged the flow. Around them stands every policy that selects the
//! pods, and of each rule whether it matches, or on what it fails: address, namespace, label, protocol or port.

mod explanation;
mod mismatch;
mod text;
mod trace;

pub use explanation::{
    ExemptPod, Exemption, Explanation, PolicyLocations, PolicyTrace, RuleTrace, SideExplanation,
};
pub use mismatch::{Mismatch, MismatchKind};
pub use trace::explain;

#[cfg(test)]
mod tests;
