//! Row: decisions for one class of peers, by protocol and destination port.

use serde::{Deserialize, Serialize};

use super::decision::Decision;
use crate::net::flow::Protocol;

/// Ports from `first` to `last`, inclusive, with one decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortSpan {
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
    /// Decision for flows to these ports.
    pub decision: Decision,
}

/// Port spans by protocol, and one decision for everything else.
///
/// A row is total. `other` decides ports that no span covers, and every protocol except TCP, UDP and SCTP: a
/// rule without ports covers these protocols, a rule with ports never does. The spans of a list are sorted
/// and disjoint. Adjacent spans differ in their decision, and no span has the decision of `other`, so equal
/// rows are equal values.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// TCP destination ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tcp: Vec<PortSpan>,
    /// UDP destination ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub udp: Vec<PortSpan>,
    /// SCTP destination ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sctp: Vec<PortSpan>,
    /// Decision for everything else.
    pub other: Decision,
}

impl Row {
    /// Row with one decision for everything.
    pub fn uniform(decision: Decision) -> Row {
        Row { tcp: Vec::new(), udp: Vec::new(), sctp: Vec::new(), other: decision }
    }

    /// Spans of a protocol; empty for protocols without ports.
    pub fn spans(&self, protocol: Protocol) -> &[PortSpan] {
        match protocol {
            Protocol::TCP => &self.tcp,
            Protocol::UDP => &self.udp,
            Protocol::SCTP => &self.sctp,
            _ => &[],
        }
    }

    /// Decision on a flow by a linear scan: the naive counterpart of the compiled rows.
    pub fn decide(&self, protocol: Protocol, dst_port: u16) -> Decision {
        self.spans(protocol)
            .iter()
            .find(|span| span.first <= dst_port && dst_port <= span.last)
            .map_or(self.other, |span| span.decision)
    }

    /// All decisions of the row.
    pub fn decisions(&self) -> impl Iterator<Item = Decision> + '_ {
        let spans = self.tcp.iter().chain(&self.udp).chain(&self.sctp);
        spans.map(|span| span.decision).chain([self.other])
    }

    /// Tests whether the spans are sorted, disjoint and minimal.
    pub fn is_canonical(&self) -> bool {
        [&self.tcp, &self.udp, &self.sctp].into_iter().all(|spans| {
            spans.iter().all(|span| span.first <= span.last && span.decision != self.other)
                && spans.windows(2).all(|pair| {
                    let apart = pair[0].last < pair[1].first;
                    let adjacent = apart && pair[0].last + 1 == pair[1].first;
                    apart && !(adjacent && pair[0].decision == pair[1].decision)
                })
        })
    }
}
