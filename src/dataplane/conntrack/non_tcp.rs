//! State machine of flows other than TCP: UDP, ICMP queries, SCTP, and protocols that the switch does not know.

use super::state::{FlowState, Outcome};
use crate::dataplane::packet::Packet;
use crate::net::flow::Protocol;
use crate::net::sctp::chunk;

impl FlowState {
    /// The first state of a flow that is not TCP.
    #[inline]
    pub(crate) fn initial(protocol: Protocol) -> FlowState {
        match protocol {
            Protocol::UDP => FlowState::UdpOneWay,
            Protocol::ICMP | Protocol::ICMPV6 => FlowState::Echo,
            Protocol::SCTP => FlowState::SctpSetup,
            _ => FlowState::OtherOneWay,
        }
    }

    /// What becomes of a packet of a flow that is not TCP, and the state after it.
    #[inline]
    pub(crate) fn advance(self, packet: &Packet, from_initiator: bool) -> (Outcome, FlowState) {
        use FlowState::{Other, OtherOneWay, SctpEstablished, SctpSetup, SctpShutdown, UdpOneWay, UdpTwoWay};
        match (self, packet.flags) {
            (UdpOneWay, _) if !from_initiator => (Outcome::Pass, UdpTwoWay),
            (OtherOneWay, _) if !from_initiator => (Outcome::Pass, Other),
            (SctpSetup, chunk::COOKIE_ACK) if !from_initiator => (Outcome::Pass, SctpEstablished),
            (SctpSetup | SctpEstablished, chunk::ABORT | chunk::SHUTDOWN_COMPLETE) => {
                (Outcome::Pass, SctpShutdown)
            }
            (SctpShutdown, chunk::INIT) => (Outcome::Reopen, SctpShutdown),
            // A responder that opens would be an association in the other direction, which nobody has policy_epoch; but both
            // sides may open at once (RFC 9260 section 5.2.1).
            (SctpEstablished, chunk::INIT) if !from_initiator => (Outcome::Invalid, SctpEstablished),
            (state, _) => (Outcome::Pass, state),
        }
    }
}
