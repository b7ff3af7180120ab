//! Findings of the checks.

use std::fmt;

use serde::Serialize;

use crate::policy::objects::ServiceName;
use crate::printable;
use crate::tables::PolicyRef;

/// Finding of a check.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LintFinding {
    /// Policy, or Service.
    pub policy: LintSubject,
    /// Field: `spec.ingress[0].ports[1]`.
    pub path: String,
    /// Check.
    pub check: Check,
    /// State of the field and its consequence.
    pub message: String,
}

/// Object of a finding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(untagged)]
pub enum LintSubject {
    /// Policy.
    Policy(PolicyRef),
    /// Service.
    Service {
        /// `Service`.
        kind: &'static str,
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
    },
}

impl LintSubject {
    /// Service as the object of a finding.
    pub fn of_service(service: &ServiceName) -> LintSubject {
        LintSubject::Service {
            kind: "Service",
            namespace: service.namespace.clone(),
            name: service.name.clone(),
        }
    }
}

impl From<PolicyRef> for LintSubject {
    fn from(policy: PolicyRef) -> LintSubject {
        LintSubject::Policy(policy)
    }
}

impl fmt::Display for LintSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LintSubject::Policy(policy) => policy.fmt(f),
            LintSubject::Service { kind, namespace, name } => {
                write!(f, "{kind} {}/{}", printable::line(namespace), printable::line(name))
            }
        }
    }
}

/// Checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// Policy selects no pod.
    SelectsNoPod,
    /// All pods that a policy or a peer selects are on the host's network or have finished.
    HostNetworkOrFinished,
    /// Peer selects no pod or node.
    PeerSelectsNothing,
    /// Direction has rules, and `policyTypes` lacks it.
    RulesWithoutType,
    /// No destination pod has a port of the name.
    NamedPortMissing,
    /// Rule names a port of addresses; only pods have named ports.
    NamedPortOfAddresses,
    /// Another rule covers the rule.
    ShadowedRule,
    /// Another block allows the addresses of an `except`.
    ExceptWithoutEffect,
    /// Exceptions of a block leave no address.
    EmptyBlock,
    /// Block contains addresses of pods, which change.
    BlockInPodNetwork,
    /// Pods may connect to some addresses, but cannot resolve names.
    BlocksDns,
    /// Two cluster-wide policies of a tier have one priority.
    TiedPriority,
    /// Service selects no pod.
    ServiceSelectsNoPod,
    /// Rule names the port of a Service, and its backends have another.
    PortOfService,
}

impl Check {
    /// All checks.
    pub const ALL: [Check; 14] = [
        Check::SelectsNoPod,
        Check::HostNetworkOrFinished,
        Check::PeerSelectsNothing,
        Check::RulesWithoutType,
        Check::NamedPortMissing,
        Check::NamedPortOfAddresses,
        Check::ShadowedRule,
        Check::ExceptWithoutEffect,
        Check::EmptyBlock,
        Check::BlockInPodNetwork,
        Check::BlocksDns,
        Check::TiedPriority,
        Check::ServiceSelectsNoPod,
        Check::PortOfService,
    ];

    /// Name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        self.texts().0
    }

    /// Sentence about what it finds.
    pub fn summary(self) -> &'static str {
        self.texts().1
    }

    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Check::SelectsNoPod => ("selects-no-pod", "Policy selects no pod."),
            Check::HostNetworkOrFinished => (
                "host-network-or-finished",
                "All pods that a policy or a peer selects are on the host's network or have finished.",
            ),
            Check::PeerSelectsNothing => ("peer-selects-nothing", "Peer selects no pod or node."),
            Check::RulesWithoutType => {
                ("rules-without-type", "Direction has rules, and policyTypes lacks it.")
            }
            Check::NamedPortMissing => ("named-port-missing", "No destination pod has a port of the name."),
            Check::NamedPortOfAddresses => {
                ("named-port-of-addresses", "Rule names a port of addresses; only pods have named ports.")
            }
            Check::ShadowedRule => ("shadowed-rule", "Another rule covers the rule."),
            Check::ExceptWithoutEffect => {
                ("except-without-effect", "Another block allows the addresses of an except.")
            }
            Check::EmptyBlock => ("empty-block", "Exceptions of a block leave no address."),
            Check::BlockInPodNetwork => {
                ("block-in-pod-network", "Block contains addresses of pods, which change.")
            }
            Check::BlocksDns => {
                ("blocks-dns", "Pods may connect to some addresses, but cannot resolve names.")
            }
            Check::TiedPriority => {
                ("tied-priority", "Two cluster-wide policies of a tier have one priority.")
            }
            Check::ServiceSelectsNoPod => ("service-selects-no-pod", "Service selects no pod."),
            Check::PortOfService => {
                ("port-of-service", "Rule names the port of a Service, and its backends have another.")
            }
        }
    }
}
