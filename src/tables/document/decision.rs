//! Decision: a verdict, and the rule that it comes from.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::RuleId;
use crate::printable;

/// Verdict on a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Flow passes.
    Allow,
    /// Packets of the flow are dropped silently.
    Deny,
}

/// Direction of a flow, seen from a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// To the pod: the peer is the source.
    Ingress,
    /// From the pod: the peer is the destination.
    Egress,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        })
    }
}

/// Verdict and its rule in four bytes: the verdict in the top bit, the rule id below.
///
/// In JSON: `{"verdict":"deny","rule":7}`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "DecisionText", into = "DecisionText")]
pub struct Decision(u32);

impl Decision {
    const DENY: u32 = 1 << 31;

    /// Decision to allow, by `rule`.
    #[inline]
    pub fn allow(rule: RuleId) -> Decision {
        debug_assert!(rule.0 < Decision::DENY);
        Decision(rule.0 & !Decision::DENY)
    }

    /// Decision to deny, by `rule`.
    #[inline]
    pub fn deny(rule: RuleId) -> Decision {
        debug_assert!(rule.0 < Decision::DENY);
        Decision(rule.0 | Decision::DENY)
    }

    /// Decision with this verdict and rule.
    pub fn new(verdict: Verdict, rule: RuleId) -> Decision {
        match verdict {
            Verdict::Allow => Decision::allow(rule),
            Verdict::Deny => Decision::deny(rule),
        }
    }

    /// Tests whether the decision allows the flow.
    #[inline]
    pub fn is_allow(self) -> bool {
        self.0 & Decision::DENY == 0
    }

    /// Verdict.
    #[inline]
    pub fn verdict(self) -> Verdict {
        if self.is_allow() { Verdict::Allow } else { Verdict::Deny }
    }

    /// Rule.
    #[inline]
    pub fn rule(self) -> RuleId {
        RuleId(self.0 & !Decision::DENY)
    }

    /// Four bytes, for storage in atomics.
    #[inline]
    pub fn to_bits(self) -> u32 {
        self.0
    }

    /// Inverse of [`Decision::to_bits`].
    #[inline]
    pub fn from_bits(bits: u32) -> Decision {
        Decision(bits)
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({})", self.verdict(), self.rule())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DecisionText {
    verdict: Verdict,
    rule: RuleId,
}

impl From<DecisionText> for Decision {
    fn from(text: DecisionText) -> Decision {
        // The check of the tables rejects ids out of range; until then their top bit must not change the
        // verdict.
        Decision::new(text.verdict, RuleId(text.rule.0 & !Decision::DENY))
    }
}

impl From<Decision> for DecisionText {
    fn from(decision: Decision) -> DecisionText {
        DecisionText { verdict: decision.verdict(), rule: decision.rule() }
    }
}

/// Kind of a policy object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PolicyKind {
    /// `networking.k8s.io/v1`.
    NetworkPolicy,
    /// `policy.networking.k8s.io/v1alpha2`.
    ClusterNetworkPolicy,
    /// `policy.networking.k8s.io/v1alpha1`, admin tier.
    AdminNetworkPolicy,
    /// `policy.networking.k8s.io/v1alpha1`, baseline tier.
    BaselineAdminNetworkPolicy,
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            PolicyKind::NetworkPolicy => "NetworkPolicy",
            PolicyKind::ClusterNetworkPolicy => "ClusterNetworkPolicy",
            PolicyKind::AdminNetworkPolicy => "AdminNetworkPolicy",
            PolicyKind::BaselineAdminNetworkPolicy => "BaselineAdminNetworkPolicy",
        })
    }
}

/// Name of a policy object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyRef {
    /// Kind.
    pub kind: PolicyKind,
    /// Namespace; empty for cluster-wide kinds.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl fmt::Display for PolicyRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{} {}", self.kind, printable::line(&self.name))
        } else {
            let (namespace, name) = (printable::line(&self.namespace), printable::line(&self.name));
            write!(f, "{} {namespace}/{name}", self.kind)
        }
    }
}

/// Origin of a decision.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "kebab-case", deny_unknown_fields)]
pub enum RuleOrigin {
    /// No policy isolates the pod in this direction: every flow passes.
    NotIsolated {
        /// Direction.
        direction: Direction,
    },
    /// At least one policy isolates the pod in this direction, and no rule matched.
    DefaultDeny {
        /// Direction.
        direction: Direction,
        /// Isolating policies, sorted.
        policies: Vec<PolicyRef>,
    },
    /// Rule of a policy matched first.
    Rule {
        /// Policy.
        policy: PolicyRef,
        /// Direction.
        direction: Direction,
        /// Index in `spec.ingress` or `spec.egress`.
        index: u32,
        /// Name of the rule, if its kind has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// Traffic from the node of the pod: "Traffic is allowed to a pod ... OR if the traffic source is the
    /// pod's local node" (`networking/v1` types.go, ingress).
    OwnNode,
}

/// Most isolating policies of [`RuleOrigin::brief`].
const BRIEF_POLICIES_MAX: usize = 16;

impl RuleOrigin {
    /// Tests for a rule of a policy of the cluster: any kind but `NetworkPolicy`. Such policies alone apply to a pod that reaches
    /// itself through its own Service.
    pub fn is_of_cluster_policy(&self) -> bool {
        matches!(self, RuleOrigin::Rule { policy, .. } if policy.kind != PolicyKind::NetworkPolicy)
    }

    /// Policies that the origin names.
    pub fn policies(&self) -> &[PolicyRef] {
        match self {
            RuleOrigin::Rule { policy, .. } => std::slice::from_ref(policy),
            RuleOrigin::DefaultDeny { policies, .. } => policies,
            RuleOrigin::NotIsolated { .. } | RuleOrigin::OwnNode => &[],
        }
    }

    /// Copy for one of many records: the first policies where many isolate the pod.
    #[must_use]
    pub fn brief(&self) -> RuleOrigin {
        match self {
            RuleOrigin::DefaultDeny { direction, policies } => RuleOrigin::DefaultDeny {
                direction: *direction,
                policies: policies.iter().take(BRIEF_POLICIES_MAX).cloned().collect(),
            },
            other => other.clone(),
        }
    }
}

impl fmt::Display for RuleOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleOrigin::NotIsolated { direction } => {
                write!(f, "no policy isolates the pod for {direction}")
            }
            RuleOrigin::DefaultDeny { direction, policies } => {
                write!(f, "isolated for {direction} by ")?;
                for (i, policy) in policies.iter().enumerate() {
                    write!(f, "{}{policy}", if i == 0 { "" } else { ", " })?;
                }
                write!(f, "; no rule matched")
            }
            RuleOrigin::Rule { policy, direction, index, name } => {
                write!(f, "{policy} {direction}[{index}]")?;
                name.iter().try_for_each(|name| write!(f, " {name:?}"))
            }
            RuleOrigin::OwnNode => write!(f, "traffic from the pod's own node"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decision_keeps_verdict_and_rule() {
        for rule in [0, 1, (1 << 31) - 1] {
            assert!(Decision::allow(RuleId(rule)).is_allow());
            assert!(!Decision::deny(RuleId(rule)).is_allow());
            assert_eq!(Decision::deny(RuleId(rule)).rule(), RuleId(rule));
            let text = serde_json::to_string(&Decision::deny(RuleId(rule))).unwrap();
            assert_eq!(serde_json::from_str::<Decision>(&text).unwrap(), Decision::deny(RuleId(rule)));
        }
    }

    #[test]
    fn a_brief_origin_has_few_policies() {
        let policy = |number: u32| PolicyRef {
            kind: PolicyKind::NetworkPolicy,
            namespace: "default".to_owned(),
            name: number.to_string(),
        };
        let of = |count| RuleOrigin::DefaultDeny {
            direction: Direction::Egress,
            policies: (0..count).map(policy).collect(),
        };
        assert_eq!((of(1000).brief(), of(3).brief()), (of(BRIEF_POLICIES_MAX as u32), of(3)));
        assert_eq!(RuleOrigin::OwnNode.brief(), RuleOrigin::OwnNode);
    }
}
