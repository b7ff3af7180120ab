//! Packets that the control side captures.

use std::net::IpAddr;

use super::DropReason;
use crate::ids::{Generation, PortId};
use crate::net::flow::{FlowKey, Protocol};

/// Selection of packets. A packet has every property that is given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CaptureFilter {
    /// Port that the packet comes from.
    pub port: Option<PortId>,
    /// Addresses of one end, and of the other end, in either direction. An empty list is any address.
    pub ends: [Vec<IpAddr>; 2],
    /// Protocol above IP.
    pub protocol: Option<Protocol>,
    /// Port of TCP, UDP or SCTP at either end.
    pub transport_port: Option<u16>,
    /// Whether only dropped packets are selected.
    pub drops_only: bool,
}

/// Captured packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedPacket {
    /// Nanoseconds from the start of the switch to the reception of the packet's batch.
    pub at_ns: u64,
    /// Port that the packet came from.
    pub port: PortId,
    /// Final verdict.
    pub verdict: PacketVerdict,
    /// Stage that gave the verdict.
    pub stage: &'static str,
    /// Whether the packet was of no known flow, and policy evaluated it.
    pub is_new_flow: bool,
    /// Generation of policy and routes that the worker used.
    pub generation: Generation,
    /// Length of the packet at reception, bytes.
    pub frame_bytes: u16,
    /// Flow of an IP packet that was parsed.
    pub flow: Option<FlowKey>,
    /// First bytes of the packet, as it was received.
    pub bytes: Vec<u8>,
}

/// Final verdict on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketVerdict {
    /// The packet left by this port.
    Forwarded(PortId),
    /// The packet was for the switch.
    Consumed,
    /// The packet was dropped.
    Dropped(DropReason),
}

impl CaptureFilter {
    /// Whether a packet has these properties. `flow` is that of an IP packet that was parsed.
    pub(in crate::dataplane) fn selects(&self, flow: Option<&FlowKey>, verdict: PacketVerdict) -> bool {
        if self.drops_only && !matches!(verdict, PacketVerdict::Dropped(_)) {
            return false;
        }
        let Some(flow) = flow else {
            return self.ends.iter().all(Vec::is_empty)
                && self.protocol.is_none()
                && self.transport_port.is_none();
        };
        let [one, other] = &self.ends;
        let has = |addresses: &[IpAddr], end| addresses.is_empty() || addresses.contains(end);
        let is_between = |src, dst| has(one, src) && has(other, dst);
        (is_between(&flow.src, &flow.dst) || is_between(&flow.dst, &flow.src))
            && self.protocol.is_none_or(|protocol| protocol == flow.protocol)
            && self.transport_port.is_none_or(|port| [flow.src_port, flow.dst_port].contains(&port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_selects_both_directions_between_its_ends() {
        let [a, b, c] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|text| text.parse::<IpAddr>().unwrap());
        let flow = FlowKey { src: a, dst: b, protocol: Protocol::TCP, src_port: 1000, dst_port: 80 };
        let forwarded = PacketVerdict::Forwarded(PortId(1));
        let selects = |filter: &CaptureFilter| {
            [flow, flow.reversed()].map(|flow| filter.selects(Some(&flow), forwarded))
        };
        let ends = |one: &[IpAddr], other: &[IpAddr]| CaptureFilter {
            ends: [one.to_vec(), other.to_vec()],
            ..CaptureFilter::default()
        };
        assert_eq!(selects(&ends(&[], &[])), [true; 2]);
        assert_eq!(selects(&ends(&[a], &[])), [true; 2]);
        assert_eq!(selects(&ends(&[], &[c, b])), [true; 2]);
        assert_eq!(selects(&ends(&[b], &[a])), [true; 2]);
        assert_eq!(selects(&ends(&[a], &[c])), [false; 2]);
        assert_eq!(selects(&ends(&[a], &[a])), [false; 2]);
        let by_port = |port| CaptureFilter { transport_port: Some(port), ..CaptureFilter::default() };
        assert_eq!((selects(&by_port(80)), selects(&by_port(81))), ([true; 2], [false; 2]));
        assert!(!by_port(80).selects(None, forwarded), "a packet without ports");
        assert!(ends(&[], &[]).selects(None, forwarded));
        let drops = CaptureFilter { drops_only: true, ..CaptureFilter::default() };
        assert_eq!(selects(&drops), [false; 2]);
        assert!(drops.selects(None, PacketVerdict::Dropped(DropReason::Malformed)));
    }
}
