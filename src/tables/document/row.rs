//! A row: what happens to one class of peers, by protocol and destination port.

use serde::{Deserialize, Serialize};

use super::Decision;
use crate::net::flow::Protocol;

/// Ports from `first` to `last`, both included, with one decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortSpan {
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
    /// What happens to a flow to one of them.
    pub decision: Decision,
}

/// Port spans per protocol, and one decision for the rest.
///
/// A row is total: whatever a list of spans does not cover is decided by `other`, and so is every protocol
/// that is not TCP, UDP or SCTP (a rule without ports covers those too; a rule with ports never does).
/// Spans of a list are sorted, do not overlap, and neighbours that touch differ in decision; none says
/// what `other` says anyway, so equal rows are equal values.
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
    /// Everything else.
    pub other: Decision,
}

impl Row {
    /// A row that decides everything alike.
    pub fn uniform(decision: Decision) -> Row {
        Row { tcp: Vec::new(), udp: Vec::new(), sctp: Vec::new(), other: decision }
    }

    /// The spans of a protocol; none for protocols without ports.
    pub fn spans(&self, protocol: Protocol) -> &[PortSpan] {
        match protocol {
            Protocol::TCP => &self.tcp,
            Protocol::UDP => &self.udp,
            Protocol::SCTP => &self.sctp,
            _ => &[],
        }
    }

    /// The decision on a flow, found by looking at every span: the naive twin of the classifier's rows.
    pub fn decide(&self, protocol: Protocol, dst_port: u16) -> Decision {
        self.spans(protocol)
            .iter()
            .find(|span| span.first <= dst_port && dst_port <= span.last)
            .map_or(self.other, |span| span.decision)
    }

    /// Every decision that the row can come to.
    pub fn decisions(&self) -> impl Iterator<Item = Decision> + '_ {
        let spans = self.tcp.iter().chain(&self.udp).chain(&self.sctp);
        spans.map(|span| span.decision).chain([self.other])
    }

    /// Whether the spans are sorted, apart, and as few as can be.
    pub fn is_canonical(&self) -> bool {
        [&self.tcp, &self.udp, &self.sctp].into_iter().all(|spans| {
            spans.iter().all(|span| span.first <= span.last && span.decision != self.other)
                && spans.windows(2).all(|pair| {
                    let apart = pair[0].last < pair[1].first;
                    let touching = apart && pair[0].last + 1 == pair[1].first;
                    apart && !(touching && pair[0].decision == pair[1].decision)
                })
        })
    }
}
