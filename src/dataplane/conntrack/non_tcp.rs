//! State machine of flows other than TCP: UDP, ICMP queries, SCTP, and protocols that the switch does not
//! know.

use super::state::{FlowState, Outcome};
use crate::dataplane::packet::Packet;
use crate::net::flow::Protocol;
use crate::net::sctp::chunk;

impl FlowState {
    /// The first state of a flow of this protocol.
    #[inline]
    pub(crate) fn initial(protocol: Protocol) -> FlowState {
        match protocol {
            Protocol::UDP => FlowState::UdpOneWay,
            Protocol::ICMP | Protocol::ICMPV6 => FlowState::Echo,
            Protocol::SCTP => FlowState::SctpSetup,
            _ => FlowState::OtherOneWay,
        }
    }

    /// The verdict on a packet, and the state after it.
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
            // A responder's INIT opens an association in the other direction, which policy has not evaluated.
            // During the setup it passes: "each endpoint is attempting, at about the same time, to establish
            // an association" (RFC 9260 section 5.2.1).
            (SctpEstablished, chunk::INIT) if !from_initiator => (Outcome::Invalid, SctpEstablished),
            (state, _) => (Outcome::Pass, state),
        }
    }
}
