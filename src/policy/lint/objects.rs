//! Objects by kind, for the checks.

use crate::policy::evaluate::ReferenceEvaluator;
use crate::policy::objects::{ClusterNetworkPolicy, NetworkPolicy, Node, Pod};
use crate::tables::Direction;

/// The objects that the checks look at.
pub(super) struct LintObjects<'a> {
    pub(super) evaluator: ReferenceEvaluator<'a>,
    /// Pods that policy sees, as soon as they have an address.
    pub(super) pods: Vec<&'a Pod>,
    /// Pods on the host's network, and pods that have finished.
    pub(super) exempt: Vec<&'a Pod>,
    pub(super) nodes: Vec<&'a Node>,
    pub(super) network: Vec<&'a NetworkPolicy>,
    pub(super) cluster: Vec<&'a ClusterNetworkPolicy>,
}

/// The field that lists the peers of a rule.
pub(super) fn peer_list(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    }
}
