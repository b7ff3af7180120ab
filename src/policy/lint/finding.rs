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
    /// Selector asks for the name of a namespace by a label that no namespace has.
    NameLabelOfNamespace,
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
    /// Block contains the virtual address of a Service, and no backend.
    BlockOfService,
    /// Pods may connect to some addresses, but cannot resolve names.
    BlocksDns,
    /// Two cluster-wide policies of a tier have one priority.
    TiedPriority,
    /// Service selects no pod.
    ServiceSelectsNoPod,
    /// Rule names the port of a Service, and its backends have another.
    PortOfService,
    /// Annotation `palisade.dev/ignore-CHECK` silences no finding.
    IgnoredWithoutEffect,
}

impl Check {
    /// All checks.
    pub const ALL: [Check; 17] = [
        Check::SelectsNoPod,
        Check::HostNetworkOrFinished,
        Check::PeerSelectsNothing,
        Check::NameLabelOfNamespace,
        Check::RulesWithoutType,
        Check::NamedPortMissing,
        Check::NamedPortOfAddresses,
        Check::ShadowedRule,
        Check::ExceptWithoutEffect,
        Check::EmptyBlock,
        Check::BlockInPodNetwork,
        Check::BlockOfService,
        Check::BlocksDns,
        Check::TiedPriority,
        Check::ServiceSelectsNoPod,
        Check::PortOfService,
        Check::IgnoredWithoutEffect,
    ];

    /// Name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        self.texts()[0]
    }

    /// Sentence about the finding.
    pub fn summary(self) -> &'static str {
        self.texts()[1]
    }

    /// Sentence about the correction.
    pub fn advice(self) -> &'static str {
        self.texts()[2]
    }

    fn texts(self) -> [&'static str; 3] {
        match self {
            Check::SelectsNoPod => [
                "selects-no-pod",
                "Policy selects no pod.",
                "Compare the selector with the labels and the namespace of the pods: a policy without pods changes nothing.",
            ],
            Check::HostNetworkOrFinished => [
                "host-network-or-finished",
                "All pods that a policy or a peer selects are on the host's network or have finished.",
                "Write a rule for the node's address: pods on the host's network send from it, and policy does not apply to them.",
            ],
            Check::PeerSelectsNothing => [
                "peer-selects-nothing",
                "Peer selects no pod or node.",
                "Compare both selectors with the labels of the pods and of their namespaces: nothing matches the entry.",
            ],
            Check::NameLabelOfNamespace => [
                "name-label-of-namespace",
                "Selector asks for the name of a namespace by a label that no namespace has.",
                "Write kubernetes.io/metadata.name: every namespace has this label with its name.",
            ],
            Check::RulesWithoutType => [
                "rules-without-type",
                "Direction has rules, and `policyTypes` lacks it.",
                "Add the direction to policyTypes, or remove the rules: they mean nothing, and the direction is not isolated.",
            ],
            Check::NamedPortMissing => [
                "named-port-missing",
                "No destination pod has a port of the name.",
                "Name the port in the containers of the pods, or write its number.",
            ],
            Check::NamedPortOfAddresses => [
                "named-port-of-addresses",
                "Rule names a port of addresses; only pods have named ports.",
                "Write the number of the port.",
            ],
            Check::ShadowedRule => [
                "shadowed-rule",
                "Another rule covers the rule.",
                "Remove it: the policy means the same without it.",
            ],
            Check::ExceptWithoutEffect => [
                "except-without-effect",
                "Another block allows the addresses of an `except`.",
                "Take the addresses out of the other block too: an exception narrows its own block and denies nothing.",
            ],
            Check::EmptyBlock => [
                "empty-block",
                "Exceptions of a block leave no address.",
                "Narrow the exceptions, or remove the block.",
            ],
            Check::BlockInPodNetwork => [
                "block-in-pod-network",
                "Block contains addresses of pods, which change.",
                "Select the pods by their labels.",
            ],
            Check::BlockOfService => [
                "block-of-service",
                "Block contains the virtual address of a Service, and no backend.",
                "Select the pods behind the Service by their labels: policy sees their addresses, after translation.",
            ],
            Check::BlocksDns => [
                "blocks-dns",
                "Pods may connect to some addresses, but cannot resolve names.",
                "Allow UDP and TCP port 53 to the DNS servers.",
            ],
            Check::TiedPriority => [
                "tied-priority",
                "Two cluster-wide policies of a tier have one priority.",
                "Give each policy a priority of its own: the API leaves the order of equal ones open.",
            ],
            Check::ServiceSelectsNoPod => [
                "service-selects-no-pod",
                "Service selects no pod.",
                "Compare the selector with the labels of the pods of the namespace: connections to the Service are refused.",
            ],
            Check::PortOfService => [
                "port-of-service",
                "Rule names the port of a Service, and its backends have another.",
                "Write the port of the pods: policy sees their ports, after translation.",
            ],
            Check::IgnoredWithoutEffect => [
                "ignored-without-effect",
                "Annotation `palisade.dev/ignore-CHECK` silences no finding.",
                "Correct the name of the check, give a reason as the value, or remove the annotation.",
            ],
        }
    }
}
