//! Packets that the control side captures.

use super::{DropReason, FlowFilter};
use crate::ids::{Generation, PortId};
use crate::net::flow::FlowKey;

/// Selection of packets. A packet has every property that is given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CaptureFilter {
    /// Port that the packet comes from.
    pub port: Option<PortId>,
    /// Properties of the flow, in either direction.
    pub flows: FlowFilter,
    /// Whether only dropped packets are selected.
    pub drops_only: bool,
    /// Reason of their drop.
    pub reason: Option<DropReason>,
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
        let reason = match verdict {
            PacketVerdict::Dropped(reason) => Some(reason),
            PacketVerdict::Forwarded(_) | PacketVerdict::Consumed => None,
        };
        if self.drops_only && reason.is_none() || self.reason.is_some() && reason != self.reason {
            return false;
        }
        flow.map_or(self.flows.is_any(), |flow| self.flows.selects_either_way(flow))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::net::flow::Protocol;

    #[test]
    fn a_filter_selects_both_directions_of_a_flow_and_packets_without_one() {
        let flow = FlowKey {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            protocol: Protocol::TCP,
            src_port: 1000,
            dst_port: 80,
        };
        let forwarded = PacketVerdict::Forwarded(PortId(1));
        let selects = |filter: &CaptureFilter| {
            [flow, flow.reversed()].map(|flow| filter.selects(Some(&flow), forwarded))
        };
        let of = |flows| CaptureFilter { flows, ..CaptureFilter::default() };
        let from = |address: IpAddr| FlowFilter {
            ends: [Some(vec![address.into()]), None],
            ..FlowFilter::default()
        };
        assert_eq!(selects(&of(FlowFilter::default())), [true; 2]);
        assert_eq!(selects(&of(from(flow.src))), [true; 2]);
        assert_eq!(selects(&of(from([10, 0, 0, 3].into()))), [false; 2]);
        assert!(!of(from(flow.src)).selects(None, forwarded), "a packet without addresses");
        assert!(of(FlowFilter::default()).selects(None, forwarded));
    }

    #[test]
    fn a_filter_selects_drops_by_their_reason() {
        let drops = CaptureFilter { drops_only: true, ..CaptureFilter::default() };
        let malformed = CaptureFilter { reason: Some(DropReason::Malformed), ..CaptureFilter::default() };
        for filter in [&drops, &malformed] {
            assert!(!filter.selects(None, PacketVerdict::Consumed));
            assert!(filter.selects(None, PacketVerdict::Dropped(DropReason::Malformed)));
        }
        assert!(drops.selects(None, PacketVerdict::Dropped(DropReason::NoRoute)));
        assert!(!malformed.selects(None, PacketVerdict::Dropped(DropReason::NoRoute)));
    }
}
