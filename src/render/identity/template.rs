//! Rows as entries of a policy map, before they have an identity.

use super::model::Service;
use super::ports::masked;
use crate::net::flow::Protocol;
use crate::tables::{Decision, Row, Verdict};

/// Service with its decision.
pub(super) type Slot = (Service, Decision);

/// Protocols with ports.
const WITH_PORTS: [Protocol; 3] = [Protocol::TCP, Protocol::UDP, Protocol::SCTP];

/// Entries of a row for an identity, beside those of the default row for the wildcard identity.
pub(super) fn of_identity(row: &Row, default: &Row) -> Vec<Slot> {
    let mut slots = Vec::new();
    // Without an entry for all traffic, the wildcard identity decides the rest.
    let rest = if row.other.verdict() == default.other.verdict() {
        default.clone()
    } else {
        slots.push((Service::ANY, row.other));
        Row::uniform(row.other)
    };
    for protocol in WITH_PORTS {
        let differs =
            |decision: Decision, port: u16| decision.verdict() != rest.decide(protocol, port).verdict();
        for (first, last, decision) in segments(row, &rest, protocol) {
            if differs(decision, first) {
                push(&mut slots, protocol, (first, last), decision);
            }
        }
    }
    slots
}

/// Entries of the default row for the wildcard identity. `others` are the rows of identities: where one of them allows
/// ports that the default row denies, a denial would win over it, so that all other traffic is allowed instead.
pub(super) fn of_wildcard(default: &Row, others: &[&Row]) -> Vec<Slot> {
    let mut slots = Vec::new();
    let contrary = contrary(default);
    if !default.other.is_allow() || contrary.is_empty() || others.iter().all(|row| denies(row, &contrary)) {
        if default.other.is_allow() {
            slots.push((Service::ANY, default.other));
        }
        for (protocol, ports, decision) in contrary {
            push(&mut slots, protocol, ports, decision);
        }
        return slots;
    }
    for number in 0..=u8::MAX {
        let protocol = Protocol(number);
        for (first, last, decision) in segments(default, default, protocol) {
            if decision.is_allow() {
                push(&mut slots, protocol, (first, last), decision);
            }
        }
    }
    slots
}

/// Ports with another verdict than everything else.
fn contrary(row: &Row) -> Vec<(Protocol, (u16, u16), Decision)> {
    let of_protocol = |protocol: Protocol| {
        let spans = row.spans(protocol).iter();
        let spans = spans.filter(|span| span.decision.verdict() != row.other.verdict());
        spans.map(move |span| (protocol, (span.first, span.last), span.decision))
    };
    WITH_PORTS.into_iter().flat_map(of_protocol).collect()
}

/// Tests whether a row denies all of these ports.
fn denies(row: &Row, ports: &[(Protocol, (u16, u16), Decision)]) -> bool {
    ports.iter().all(|&(protocol, (first, last), _)| {
        let within =
            segments(row, row, protocol).into_iter().filter(|part| part.0 <= last && part.1 >= first);
        within.into_iter().all(|(_, _, decision)| decision.verdict() == Verdict::Deny)
    })
}

/// Ports of a protocol in the parts that neither row divides, with the decision of the first row.
fn segments(row: &Row, other: &Row, protocol: Protocol) -> Vec<(u16, u16, Decision)> {
    let mut starts = vec![0_u32];
    for span in row.spans(protocol).iter().chain(other.spans(protocol)) {
        starts.extend([u32::from(span.first), u32::from(span.last) + 1]);
    }
    starts.sort_unstable();
    starts.dedup();
    let ends = starts.iter().skip(1).copied().chain([1 << 16]);
    let parts = starts.iter().zip(ends).filter(|(start, end)| **start < *end);
    let part = |(&start, end): (&u32, u32)| {
        let port = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
        (port(start), port(end - 1), row.decide(protocol, port(start)))
    };
    parts.map(part).collect()
}

fn push(slots: &mut Vec<Slot>, protocol: Protocol, (first, last): (u16, u16), decision: Decision) {
    let service = |(port, bits)| Service { protocol: Some(protocol.0), port, bits };
    slots.extend(masked(first, last).into_iter().map(|part| (service(part), decision)));
}
