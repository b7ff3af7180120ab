//! Clauses P1 to P7: which flows the `ports` of a rule match.

use super::reference::{AddressOwner, Query};
use crate::net::flow::Protocol;
use crate::policy::objects::{ClusterPort, Pod, PortMatch, Ports};
use crate::tables::Direction;

/// Clause P7: no list is every protocol. Clause M5: entries are alternatives.
pub(in crate::policy) fn network_ports_match(ports: &Ports, question: &Query<'_>) -> bool {
    match ports {
        Ports::All => true,
        Ports::Any(entries) => entries.iter().any(|entry| match entry {
            PortMatch::Range { protocol, first, last } => range(*protocol, *first, *last, question),
            PortMatch::Named { protocol, name } => named(Some(*protocol), name, question),
        }),
    }
}

/// Clause C14.
pub(in crate::policy) fn cluster_ports_match(ports: Option<&[ClusterPort]>, question: &Query<'_>) -> bool {
    match ports {
        None => true,
        Some(entries) => entries.iter().any(|entry| match entry {
            ClusterPort::Range { protocol, first, last } => range(*protocol, *first, *last, question),
            ClusterPort::Named { protocol, name } => named(*protocol, name, question),
        }),
    }
}

/// Clauses P1, P2 and P10: protocols agree and the destination port lies between the two, both included.
fn range(protocol: Protocol, first: u16, last: u16, question: &Query<'_>) -> bool {
    let port = question.dst_port;
    question.protocol.has_ports() && question.protocol == protocol && first <= port && port <= last
}

/// Clauses P3 to P6 and C15: the name is looked up on the destination pod of the flow, under the flow's protocol.
fn named(protocol: Option<Protocol>, name: &str, question: &Query<'_>) -> bool {
    let Some(destination) = destination_pod(question) else { return false };
    protocol.is_none_or(|protocol| protocol == question.protocol)
        && destination.ports.iter().any(|port| {
            port.name.as_deref() == Some(name)
                && port.protocol == question.protocol
                && port.port == question.dst_port
        })
}

/// Clause B5: whoever is not a pod has no named ports.
pub(in crate::policy) fn destination_pod<'a>(question: &Query<'a>) -> Option<&'a Pod> {
    match (question.direction, question.peer.holder) {
        (Direction::Ingress, _) => Some(question.subject),
        (Direction::Egress, AddressOwner::Pod(pod)) => Some(pod),
        (Direction::Egress, AddressOwner::Node(_) | AddressOwner::External) => None,
    }
}
