//! Findings of the checks.

use serde::Serialize;

use crate::tables::PolicyRef;

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LintFinding {
    /// The policy.
    pub policy: PolicyRef,
    /// The field: `spec.ingress[0].ports[1]`.
    pub path: String,
    /// Which check.
    pub check: Check,
    /// What is, and what follows from it.
    pub message: String,
}

/// The checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// A policy selects no pod.
    SelectsNoPod,
    /// All pods that a policy or a peer selects are on the host's network or have finished.
    HostNetworkOrFinished,
    /// A peer selects no pod or no node.
    PeerSelectsNothing,
    /// A direction has rules, and `policyTypes` lacks it.
    RulesWithoutType,
    /// No destination pod has a port of the name.
    NamedPortMissing,
    /// A rule asks addresses, not pods, for a port by name.
    NamedPortOfAddresses,
    /// Another rule says the same and more.
    ShadowedRule,
    /// What an `except` takes out is allowed all the same.
    ExceptWithoutEffect,
    /// The exceptions of a block leave no address.
    EmptyBlock,
    /// A block names addresses of pods, which come and go.
    BlockInPodNetwork,
    /// Pods may connect to some places, but cannot look up names.
    BlocksDns,
    /// Two cluster-wide policies have one priority.
    TiedPriority,
}

impl Check {
    /// Its name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Check::SelectsNoPod => "selects-no-pod",
            Check::HostNetworkOrFinished => "host-network-or-finished",
            Check::PeerSelectsNothing => "peer-selects-nothing",
            Check::RulesWithoutType => "rules-without-type",
            Check::NamedPortMissing => "named-port-missing",
            Check::NamedPortOfAddresses => "named-port-of-addresses",
            Check::ShadowedRule => "shadowed-rule",
            Check::ExceptWithoutEffect => "except-without-effect",
            Check::EmptyBlock => "empty-block",
            Check::BlockInPodNetwork => "block-in-pod-network",
            Check::BlocksDns => "blocks-dns",
            Check::TiedPriority => "tied-priority",
        }
    }
}
