//! Explanations of flow verdicts, with the mismatches of each rule.
//!
//! The verdict and the rule that decided come from an evaluator. The explanation adds every policy that
//! selects the pods, and for each rule its match or its mismatches: address, namespace, label, protocol or
//! port.

mod explanation;
mod mismatch;
mod service;
mod text;
mod trace;

pub use explanation::{
    ExemptPod, Exemption, Explanation, PolicyLocations, PolicyTrace, RuleTrace, SideExplanation,
};
pub use mismatch::{Mismatch, MismatchKind};
pub use service::{ServiceExplanation, ServiceVerdict};
pub use trace::explain;

#[cfg(test)]
mod tests;
