//! Traffic: a set of destination ports of TCP, UDP and SCTP, with or without all other protocols.

use std::fmt;

use serde::Serialize;
use serde::ser::SerializeMap;

use crate::net::flow::Protocol;
use crate::policy::display;
use crate::tables::Row;

/// Number of spans of a protocol that [`Traffic::brief`] lists.
const LISTED: usize = 8;

const PROTOCOLS: [Protocol; 3] = [Protocol::TCP, Protocol::UDP, Protocol::SCTP];

/// First and last port.
type Span = (u16, u16);

/// Set of traffic. Spans are sorted and do not touch.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Traffic {
    ports: [Vec<Span>; 3],
    other: bool,
}

impl Traffic {
    /// Set of all traffic.
    pub fn everything() -> Traffic {
        Traffic { ports: [(); 3].map(|()| vec![(0, u16::MAX)]), other: true }
    }

    /// Set of the traffic that a row allows.
    pub fn allowed(row: &Row) -> Traffic {
        let ports = PROTOCOLS.map(|protocol| {
            let mut spans = Vec::new();
            let mut next = 0_u32;
            for span in row.spans(protocol) {
                if row.other.is_allow() && next < u32::from(span.first) {
                    push(&mut spans, (next as u16, span.first - 1));
                }
                if span.decision.is_allow() {
                    push(&mut spans, (span.first, span.last));
                }
                next = u32::from(span.last) + 1;
            }
            if row.other.is_allow()
                && let Ok(next) = u16::try_from(next)
            {
                push(&mut spans, (next, u16::MAX));
            }
            spans
        });
        Traffic { ports, other: row.other.is_allow() }
    }

    /// Intersection of two sets.
    #[must_use]
    pub fn intersect(&self, with: &Traffic) -> Traffic {
        self.combine(with, |a, b| a && b)
    }

    /// Difference: traffic in `self` and not in `other`.
    #[must_use]
    pub fn subtract(&self, other: &Traffic) -> Traffic {
        self.combine(other, |a, b| a && !b)
    }

    /// Tests whether the set is empty.
    pub fn is_empty(&self) -> bool {
        !self.other && self.ports.iter().all(Vec::is_empty)
    }

    /// Tests whether the set contains all traffic.
    pub fn is_everything(&self) -> bool {
        *self == Traffic::everything()
    }

    /// Tests whether the set contains a packet.
    pub fn contains(&self, protocol: Protocol, port: u16) -> bool {
        match PROTOCOLS.iter().position(|known| *known == protocol) {
            Some(index) => self.ports[index].iter().any(|(first, last)| (*first..=*last).contains(&port)),
            None => self.other,
        }
    }

    /// Spans of each protocol.
    pub fn spans(&self) -> impl Iterator<Item = (Protocol, &[(u16, u16)])> {
        PROTOCOLS.into_iter().zip(self.ports.iter().map(Vec::as_slice))
    }

    /// Tests whether the set contains protocols without ports.
    pub fn has_other(&self) -> bool {
        self.other
    }

    /// Share of ports and protocols, from 0 to 1, for the colour of a heat map.
    pub fn share(&self) -> f64 {
        let ports: u32 = self.ports.iter().flatten().map(|(first, last)| u32::from(last - first) + 1).sum();
        (f64::from(ports) / 65_536.0 + f64::from(u8::from(self.other))) / 4.0
    }

    /// Text of the set with the first spans of each protocol.
    pub fn brief(&self) -> String {
        self.text(LISTED)
    }

    /// Text: `everything`, `nothing`, or a list such as `TCP 80, 443; all UDP ports; other protocols`.
    fn text(&self, listed: usize) -> String {
        if self.is_everything() {
            return "everything".to_owned();
        }
        if self.is_empty() {
            return "nothing".to_owned();
        }
        let mut parts: Vec<String> = Vec::new();
        for (protocol, spans) in self.spans().filter(|(_, spans)| !spans.is_empty()) {
            if let [(first, last)] = spans {
                parts.push(display::ports(protocol, *first, *last));
                continue;
            }
            let texts: Vec<String> = spans.iter().take(listed).copied().map(text_of).collect();
            let more = match spans.len().saturating_sub(listed) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            parts.push(format!("{protocol} {}{more}", texts.join(", ")));
        }
        if self.other {
            parts.push("other protocols".to_owned());
        }
        parts.join("; ")
    }

    fn combine(&self, with: &Traffic, keep: fn(bool, bool) -> bool) -> Traffic {
        let mut ports = <[Vec<Span>; 3]>::default();
        for (index, spans) in ports.iter_mut().enumerate() {
            *spans = combine(&self.ports[index], &with.ports[index], keep);
        }
        Traffic { ports, other: keep(self.other, with.other) }
    }
}

/// Combines two lists of spans. Between two borders neither list changes.
fn combine(a: &[Span], b: &[Span], keep: fn(bool, bool) -> bool) -> Vec<Span> {
    let mut borders: Vec<u32> = vec![0, 1 << 16];
    for (first, last) in a.iter().chain(b) {
        borders.extend([u32::from(*first), u32::from(*last) + 1]);
    }
    borders.sort_unstable();
    borders.dedup();
    let within = |spans: &[Span], port: u16| {
        let at = spans.partition_point(|(_, last)| *last < port);
        spans.get(at).is_some_and(|(first, _)| *first <= port)
    };
    let mut kept = Vec::new();
    for pair in borders.windows(2) {
        let first = pair[0] as u16;
        if keep(within(a, first), within(b, first)) {
            push(&mut kept, (first, (pair[1] - 1) as u16));
        }
    }
    kept
}

/// Appends a span; joins it to the last one if they touch.
fn push(spans: &mut Vec<Span>, span: Span) {
    match spans.last_mut() {
        Some(before) if before.1.checked_add(1) == Some(span.0) => before.1 = span.1,
        _ => spans.push(span),
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text(usize::MAX))
    }
}

fn text_of((first, last): Span) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

impl Serialize for Traffic {
    /// Writes `{"TCP": ["80", "8000-8080"], "UDP": [], "SCTP": [], "other": false}`.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(4))?;
        for (protocol, spans) in self.spans() {
            map.serialize_entry(&protocol, &spans.iter().copied().map(text_of).collect::<Vec<_>>())?;
        }
        map.serialize_entry("other", &self.other)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::RuleId;
    use crate::tables::{Decision, PortSpan};

    fn decision(allow: bool) -> Decision {
        if allow { Decision::allow(RuleId(0)) } else { Decision::deny(RuleId(0)) }
    }

    /// Generates a row from borders at which the verdict may change.
    fn row() -> impl Strategy<Value = Row> {
        let list = prop::collection::btree_map(0..200_u16, any::<bool>(), 0..5);
        let spans = list.prop_map(|starts| {
            let starts: Vec<(u16, bool)> = starts.into_iter().collect();
            let pairs = starts.iter().enumerate();
            let span = |(at, (first, allow)): (usize, &(u16, bool))| PortSpan {
                first: *first,
                last: starts.get(at + 1).map_or(u16::MAX, |next| next.0 - 1),
                decision: decision(*allow),
            };
            pairs.map(span).collect::<Vec<_>>()
        });
        (spans, any::<bool>()).prop_map(|(tcp, other)| Row { tcp, ..Row::uniform(decision(other)) })
    }

    proptest! {

        #![proptest_config(crate::random::cases(256))]

        #[test]
        fn sets_hold_what_their_rows_allow(a in row(), b in row(), port in prop_oneof![0..210_u16, any::<u16>()]) {
            let (one, two) = (Traffic::allowed(&a), Traffic::allowed(&b));
            for protocol in [Protocol::TCP, Protocol::UDP, Protocol::ICMP] {
                let [in_a, in_b] = [&a, &b].map(|row| row.decide(protocol, port).is_allow());
                prop_assert_eq!(one.contains(protocol, port), in_a);
                prop_assert_eq!(one.intersect(&two).contains(protocol, port), in_a && in_b);
                prop_assert_eq!(one.subtract(&two).contains(protocol, port), in_a && !in_b);
            }
        }
    }

    #[test]
    fn traffic_reads_as_people_write_it() {
        let text = |traffic: &Traffic| traffic.to_string();
        assert_eq!(text(&Traffic::everything()), "everything");
        assert_eq!(text(&Traffic::default()), "nothing");
        let some = Traffic { ports: [vec![(80, 80), (443, 450)], vec![(0, u16::MAX)], vec![]], other: true };
        assert_eq!(text(&some), "TCP 80, 443-450; all UDP ports; other protocols");
        let many = (0..1000).map(|port| (2 * port, 2 * port)).collect();
        let many = Traffic { ports: [many, vec![], vec![]], other: false };
        assert_eq!(many.brief(), "TCP 0, 2, 4, 6, 8, 10, 12, 14 and 992 more");
    }
}
