//! Objects by kind, as input of the checks.

use crate::policy::evaluate::ReferenceEvaluator;
use crate::policy::objects::{ClusterNetworkPolicy, EndpointSlice, NetworkPolicy, Node, Pod, Service};
use crate::tables::Direction;

/// Objects by kind.
pub(super) struct LintObjects<'a> {
    pub(super) evaluator: ReferenceEvaluator<'a>,
    /// Pods to which policy applies, with or without an address.
    pub(super) pods: Vec<&'a Pod>,
    /// Pods on the host's network, and finished pods.
    pub(super) exempt: Vec<&'a Pod>,
    pub(super) nodes: Vec<&'a Node>,
    pub(super) network: Vec<&'a NetworkPolicy>,
    pub(super) cluster: Vec<&'a ClusterNetworkPolicy>,
    pub(super) services: Vec<&'a Service>,
    pub(super) slices: Vec<&'a EndpointSlice>,
}

/// Field of the peers of a rule.
pub(super) fn peer_list(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    }
}
