//! Proxy rules: the endpoints that a node uses for a port (`pkg/proxy/topology.go` of Kubernetes).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::policy::objects::{Endpoint, TrafficPolicy};

/// Node from which endpoints are seen.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NodeView<'a> {
    /// Name; without one every endpoint counts as the node's own.
    pub(super) name: Option<&'a str>,
    /// Label `topology.kubernetes.io/zone`.
    pub(super) zone: Option<&'a str>,
}

/// Endpoints of one port, ready or not, by address and target port.
pub(super) type Candidates<'a> = BTreeMap<SocketAddr, &'a Endpoint>;

impl NodeView<'_> {
    /// Tests whether an endpoint runs on the node.
    pub(super) fn is_local(&self, endpoint: &Endpoint) -> bool {
        self.name.is_none_or(|name| endpoint.node.as_deref() == Some(name))
    }
}

/// Endpoints that take new flows, sorted. Each address family is a proxy of its own.
pub(super) fn backends(
    candidates: &Candidates<'_>,
    policy: TrafficPolicy,
    view: NodeView<'_>,
) -> Vec<SocketAddr> {
    let (v4, v6): (Vec<_>, Vec<_>) =
        candidates.iter().map(|(address, endpoint)| (*address, *endpoint)).partition(|(at, _)| at.is_ipv4());
    [v4, v6].into_iter().flat_map(|of_family| of_one_family(of_family, policy, view)).collect()
}

fn of_one_family(
    mut endpoints: Vec<(SocketAddr, &Endpoint)>,
    policy: TrafficPolicy,
    view: NodeView<'_>,
) -> Vec<SocketAddr> {
    if policy == TrafficPolicy::Local {
        endpoints.retain(|(_, endpoint)| view.is_local(endpoint));
    }
    let addresses = |chosen: &dyn Fn(&Endpoint) -> bool| -> Vec<SocketAddr> {
        endpoints.iter().filter(|(_, endpoint)| chosen(endpoint)).map(|(address, _)| *address).collect()
    };
    if !endpoints.iter().any(|(_, endpoint)| endpoint.ready) {
        // "if there are 0 cluster-wide endpoints, we can try to fallback to any terminating endpoints that
        // are ready" (CategorizeEndpoints).
        return addresses(&|endpoint| endpoint.serving && endpoint.terminating);
    }
    match (policy, hint(&endpoints, view)) {
        (TrafficPolicy::Cluster, Some(Hint::Node(node))) => {
            addresses(&|endpoint| endpoint.ready && names(&endpoint.node_hints, node))
        }
        (TrafficPolicy::Cluster, Some(Hint::Zone(zone))) => {
            addresses(&|endpoint| endpoint.ready && names(&endpoint.zone_hints, zone))
        }
        _ => addresses(&|endpoint| endpoint.ready),
    }
}

/// Hint that selects endpoints.
#[derive(Debug, Clone, Copy)]
enum Hint<'a> {
    Node(&'a str),
    Zone(&'a str),
}

/// Hint that all ready endpoints have and that one of them has for this node; that about nodes first.
fn hint<'a>(endpoints: &[(SocketAddr, &Endpoint)], view: NodeView<'a>) -> Option<Hint<'a>> {
    let is_usable = |wanted: &str, hints: fn(&Endpoint) -> &[String]| {
        let ready = || endpoints.iter().map(|(_, endpoint)| *endpoint).filter(|endpoint| endpoint.ready);
        ready().all(|endpoint| !hints(endpoint).is_empty())
            && ready().any(|endpoint| names(hints(endpoint), wanted))
    };
    let node = view.name.filter(|name| is_usable(name, |endpoint| &endpoint.node_hints));
    let zone = || view.zone.filter(|zone| is_usable(zone, |endpoint| &endpoint.zone_hints));
    node.map(Hint::Node).or_else(|| zone().map(Hint::Zone))
}

fn names(hints: &[String], name: &str) -> bool {
    hints.iter().any(|hint| hint == name)
}

/// Reason for which a node does not use an endpoint.
pub(super) fn reason(endpoint: &Endpoint, policy: TrafficPolicy, view: NodeView<'_>) -> &'static str {
    match (endpoint.ready, endpoint.terminating) {
        (false, true) if endpoint.serving => "it terminates, and others are ready",
        (false, true) => "it terminates, and does not serve",
        (false, false) => "it is not ready",
        (true, _) if policy == TrafficPolicy::Local && !view.is_local(endpoint) => {
            "it runs on another node, and the traffic policy is Local"
        }
        (true, _) => "its topology hints name other zones or nodes",
    }
}
