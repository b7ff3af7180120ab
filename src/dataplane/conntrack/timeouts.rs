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
    /// TCP: picked up in its middle, and the other side has not answered yet.
    Unacknowledged => "unacknowledged", tcp_unacknowledged;
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
    /// Another protocol: one direction seen.
    OtherOneWay => "other-one-way", other_one_way;
    /// Another protocol: both directions seen.
    Other => "other", other;
}

/// Flows by what they mean to the table when it is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuotaClass {
    /// Not answered yet, or beyond its port's quota: may be evicted.
    Unassured = 0,
    /// Answered, and within its port's quota: not evicted.
    Assured = 1,
    /// Closed, kept for packets that come late: the first to be evicted.
    Ended = 2,
}

impl FlowState {
    /// The state with this number.
    #[inline]
    pub(crate) fn from_number(number: u8) -> FlowState {
        FlowState::ALL.get(usize::from(number)).copied().unwrap_or(FlowState::Other)
    }

    /// The class of flows in this state, as far as quotas allow.
    #[inline]
    pub(crate) fn class(self) -> QuotaClass {
        use FlowState::{
            Echo, Established, FinWait, LastAck, Other, OtherOneWay, Reset, SctpEstablished, SctpSetup,
            SctpShutdown, SynReceived, SynSent, TimeWait, UdpOneWay, UdpTwoWay, Unacknowledged,
        };
        match self {
            // Nothing says when an echo is over, and it is short.
            SynSent | SynReceived | Unacknowledged | UdpOneWay | Echo | SctpSetup | OtherOneWay => {
                QuotaClass::Unassured
            }
            Established | FinWait | LastAck | UdpTwoWay | SctpEstablished | Other => QuotaClass::Assured,
            TimeWait | Reset | SctpShutdown => QuotaClass::Ended,
        }
    }

    /// Whether a flow of this protocol may be in this state.
    pub(super) fn is_of(self, protocol: Protocol) -> bool {
        use FlowState::{
            Echo, Other, OtherOneWay, SctpEstablished, SctpSetup, SctpShutdown, UdpOneWay, UdpTwoWay,
        };
        match self {
            UdpOneWay | UdpTwoWay => protocol == Protocol::UDP,
            Echo => matches!(protocol, Protocol::ICMP | Protocol::ICMPV6),
            SctpSetup | SctpEstablished | SctpShutdown => protocol == Protocol::SCTP,
            OtherOneWay | Other => !matches!(protocol, Protocol::TCP | Protocol::UDP | Protocol::SCTP),
            _ => protocol == Protocol::TCP,
        }
    }

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
