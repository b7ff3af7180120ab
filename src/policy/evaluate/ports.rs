//! Clauses P1 to P7: the `ports` of a rule.

use super::query::{AddressOwner, Query};
use crate::net::flow::Protocol;
use crate::policy::objects::{ClusterPort, Pod, PortMatch, Ports};
use crate::tables::Direction;

/// Clause P7: an absent list matches every protocol. Clause M5: entries are alternatives.
pub(in crate::policy) fn network_ports_match(ports: &Ports, query: &Query<'_>) -> bool {
    match ports {
        Ports::All => true,
        Ports::Any(entries) => entries.iter().any(|entry| match entry {
            PortMatch::Range { protocol, first, last } => range(*protocol, *first, *last, query),
            PortMatch::Named { protocol, name } => named(Some(*protocol), name, query),
        }),
    }
}

/// Clause C14.
pub(in crate::policy) fn cluster_ports_match(ports: Option<&[ClusterPort]>, query: &Query<'_>) -> bool {
    match ports {
        None => true,
        Some(entries) => entries.iter().any(|entry| match entry {
            ClusterPort::Range { protocol, first, last } => range(*protocol, *first, *last, query),
            ClusterPort::Named { protocol, name } => named(*protocol, name, query),
        }),
    }
}

/// Clauses P1, P2 and P10: equal protocol, and a destination port between both ports, inclusive.
fn range(protocol: Protocol, first: u16, last: u16, query: &Query<'_>) -> bool {
    let port = query.dst_port;
    query.protocol.has_ports() && query.protocol == protocol && first <= port && port <= last
}

/// Clauses P3 to P6 and C15: the destination pod of the flow has a port with this name and the protocol of
/// the flow.
fn named(protocol: Option<Protocol>, name: &str, query: &Query<'_>) -> bool {
    let Some(destination) = destination_pod(query) else { return false };
    protocol.is_none_or(|protocol| protocol == query.protocol)
        && destination.ports.iter().any(|port| {
            port.name.as_deref() == Some(name)
                && port.protocol == query.protocol
                && port.port == query.dst_port
        })
}

/// Clause B5: destination pod of the flow; other destinations have no named ports.
pub(in crate::policy) fn destination_pod<'a>(query: &Query<'a>) -> Option<&'a Pod> {
    match (query.direction, query.peer.owner) {
        (Direction::Ingress, _) => Some(query.pod),
        (Direction::Egress, AddressOwner::Pod(pod)) => Some(pod),
        (Direction::Egress, AddressOwner::Node(_) | AddressOwner::External) => None,
    }
}
