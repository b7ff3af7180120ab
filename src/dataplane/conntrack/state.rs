//! States of a flow, and how long each may be idle.

use super::tcp::Outcome;
use crate::dataplane::Timeouts;
use crate::dataplane::packet::Packet;
use crate::net::flow::Protocol;
use crate::net::sctp::chunk;

macro_rules! flow_states {
    ($($(#[doc = $doc:literal])+ $name:ident => $text:literal, $timeout:ident;)+) => {
        /// The state of a flow.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub(crate) enum FlowState {
            $($(#[doc = $doc])+ $name,)+
        }

        impl FlowState {
            /// All states, in the order of their numbers.
            pub(crate) const ALL: &'static [FlowState] = &[$(FlowState::$name,)+];

            /// The name that operators see.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(FlowState::$name => $text,)+ }
            }
        }

        /// Idle time after which a flow is forgotten, milliseconds, by state.
        pub(crate) fn timeouts_ms(timeouts: &Timeouts) -> Vec<u32> {
            let ms = |timeout: std::time::Duration| u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX / 2);
            vec![$(ms(timeouts.$timeout),)+]
        }
    };
}

flow_states! {
    /// TCP: SYN seen.
    SynSent => "syn-sent", tcp_syn_sent;
    /// TCP: SYN answered.
    SynReceived => "syn-received", tcp_syn_received;
    /// TCP: open.
    Established => "established", tcp_established;
    /// TCP: one side has finished.
    FinWait => "fin-wait", tcp_fin_wait;
    /// TCP: both sides have finished, the last acknowledgement is on its way.
    LastAck => "last-ack", tcp_fin_wait;
    /// TCP: both sides have finished and know it.
    TimeWait => "time-wait", tcp_time_wait;
    /// TCP: reset.
    Reset => "reset", tcp_close;
    /// UDP: one direction seen.
    UdpOneWay => "udp-one-way", udp_one_way;
    /// UDP: both directions seen.
    UdpTwoWay => "udp-two-way", udp_two_way;
    /// ICMP query: an echo, or another request that its own reply answers.
    Echo => "echo", icmp_echo;
    /// SCTP: association not yet up.
    SctpSetup => "sctp-setup", sctp_setup;
    /// SCTP: association up.
    SctpEstablished => "sctp-established", sctp_established;
    /// SCTP: association going down, or gone.
    SctpShutdown => "sctp-shutdown", tcp_close;
    /// Another protocol.
    Other => "other", other;
}

impl FlowState {
    /// The state with this number.
    #[inline]
    pub(crate) fn from_number(number: u8) -> FlowState {
        FlowState::ALL.get(usize::from(number)).copied().unwrap_or(FlowState::Other)
    }

    /// Whether nobody has answered yet: the first to go when there is no place left.
    #[inline]
    pub(crate) fn is_embryonic(self) -> bool {
        use FlowState::{Echo, Reset, SctpSetup, SctpShutdown, SynReceived, SynSent, TimeWait, UdpOneWay};
        matches!(self, SynSent | SynReceived | UdpOneWay | Echo | SctpSetup | SctpShutdown | Reset | TimeWait)
    }

    /// Whether a flow of this protocol may be in this state.
    pub(super) fn fits(self, protocol: Protocol) -> bool {
        use FlowState::{Echo, Other, SctpEstablished, SctpSetup, SctpShutdown, UdpOneWay, UdpTwoWay};
        match self {
            UdpOneWay | UdpTwoWay => protocol == Protocol::UDP,
            Echo => matches!(protocol, Protocol::ICMP | Protocol::ICMPV6),
            SctpSetup | SctpEstablished | SctpShutdown => protocol == Protocol::SCTP,
            Other => !matches!(protocol, Protocol::TCP | Protocol::UDP | Protocol::SCTP),
            _ => protocol == Protocol::TCP,
        }
    }

    /// The first state of a flow that is not TCP.
    #[inline]
    pub(crate) fn first(protocol: Protocol) -> FlowState {
        match protocol {
            Protocol::UDP => FlowState::UdpOneWay,
            Protocol::ICMP | Protocol::ICMPV6 => FlowState::Echo,
            Protocol::SCTP => FlowState::SctpSetup,
            _ => FlowState::Other,
        }
    }

    /// What becomes of a packet of a flow that is not TCP, and the state after it.
    #[inline]
    pub(crate) fn after(self, packet: &Packet, from_initiator: bool) -> (Outcome, FlowState) {
        use FlowState::{SctpEstablished, SctpSetup, SctpShutdown, UdpOneWay, UdpTwoWay};
        match (self, packet.flags) {
            (UdpOneWay, _) if !from_initiator => (Outcome::Pass, UdpTwoWay),
            (SctpSetup, chunk::COOKIE_ACK) if !from_initiator => (Outcome::Pass, SctpEstablished),
            (SctpSetup | SctpEstablished, chunk::ABORT | chunk::SHUTDOWN_COMPLETE) => {
                (Outcome::Pass, SctpShutdown)
            }
            (SctpShutdown, chunk::INIT) => (Outcome::Reopen, SctpShutdown),
            // A responder that opens would be an association in the other direction, which nobody has judged; but both
            // sides may open at once (RFC 9260 section 5.2.1).
            (SctpEstablished, chunk::INIT) if !from_initiator => (Outcome::Invalid, SctpEstablished),
            (state, _) => (Outcome::Pass, state),
        }
    }
}
