//! States, sides and quota classes of flows.

use crate::net::flow::Protocol;

/// The two sides of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Side {
    /// The sender of the first packet.
    Initiator = 0,
    /// The other side.
    Responder = 1,
}

/// Verdict of a flow's state on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The packet passes.
    Pass,
    /// The packet does not belong to the flow.
    Invalid,
    /// The packet opens another flow between the same ports, which policy has to evaluate.
    Reopen,
}

/// Classes of flows for the quota of their port and for eviction from a full table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuotaClass {
    /// Not answered yet, or beyond its port's quota: may be evicted.
    Unassured = 0,
    /// Answered, and within its port's quota: not evicted.
    Assured = 1,
    /// Closed, and kept for late packets: evicted first.
    Ended = 2,
}

macro_rules! flow_states {
    ($($(#[doc = $doc:literal])+ $name:ident => $text:literal;)+) => {
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
    };
}

flow_states! {
    /// TCP: SYN seen.
    SynSent => "syn-sent";
    /// TCP: SYN answered.
    SynReceived => "syn-received";
    /// TCP: picked up in its middle, without an answer so far.
    Unacknowledged => "unacknowledged";
    /// TCP: open.
    Established => "established";
    /// TCP: one side has sent its FIN.
    FinWait => "fin-wait";
    /// TCP: both sides have sent their FIN, and the last one is not acknowledged yet.
    LastAck => "last-ack";
    /// TCP: both sides have sent their FIN, and both are acknowledged.
    TimeWait => "time-wait";
    /// TCP: reset.
    Reset => "reset";
    /// UDP: one direction seen.
    UdpOneWay => "udp-one-way";
    /// UDP: both directions seen.
    UdpTwoWay => "udp-two-way";
    /// ICMP query: an echo, or another request that its own reply answers.
    Echo => "echo";
    /// SCTP: association not yet up.
    SctpSetup => "sctp-setup";
    /// SCTP: association up.
    SctpEstablished => "sctp-established";
    /// SCTP: association shutting down or aborted.
    SctpShutdown => "sctp-shutdown";
    /// Another protocol: one direction seen.
    OtherOneWay => "other-one-way";
    /// Another protocol: both directions seen.
    Other => "other";
}

impl FlowState {
    /// The state with this number.
    #[inline]
    pub(crate) fn from_number(number: u8) -> FlowState {
        FlowState::ALL.get(usize::from(number)).copied().unwrap_or(FlowState::Other)
    }

    /// The class of flows in this state that are within their port's quota.
    #[inline]
    pub(crate) fn class(self) -> QuotaClass {
        use FlowState::{
            Echo, Established, FinWait, LastAck, Other, OtherOneWay, Reset, SctpEstablished, SctpSetup,
            SctpShutdown, SynReceived, SynSent, TimeWait, UdpOneWay, UdpTwoWay, Unacknowledged,
        };
        match self {
            // An ICMP query is short, and no packet marks its end: it never becomes assured.
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
}
