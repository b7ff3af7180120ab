//! Idle times after which flows end.

use std::time::Duration;

use super::state::FlowState;
use crate::dataplane::Timeouts;

/// Idle time after which a flow ends, milliseconds, by number of its state.
pub(super) fn timeouts_ms(timeouts: &Timeouts) -> Vec<u32> {
    let ms = |state: &FlowState| u32::try_from(timeout(*state, timeouts).as_millis()).unwrap_or(u32::MAX / 2);
    FlowState::ALL.iter().map(ms).collect()
}

fn timeout(state: FlowState, timeouts: &Timeouts) -> Duration {
    match state {
        FlowState::SynSent => timeouts.tcp_syn_sent,
        FlowState::SynReceived => timeouts.tcp_syn_received,
        FlowState::Unacknowledged => timeouts.tcp_unacknowledged,
        FlowState::Established => timeouts.tcp_established,
        FlowState::FinWait | FlowState::LastAck => timeouts.tcp_fin_wait,
        FlowState::TimeWait => timeouts.tcp_time_wait,
        FlowState::Reset | FlowState::SctpShutdown => timeouts.tcp_close,
        FlowState::UdpOneWay => timeouts.udp_one_way,
        FlowState::UdpTwoWay => timeouts.udp_two_way,
        FlowState::Echo => timeouts.icmp_echo,
        FlowState::SctpSetup => timeouts.sctp_setup,
        FlowState::SctpEstablished => timeouts.sctp_established,
        FlowState::OtherOneWay => timeouts.other_one_way,
        FlowState::Other => timeouts.other,
    }
}
