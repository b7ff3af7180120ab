//! Counters of flows, for those who export them.

use super::flow_event::FlowEnd;
use crate::ids::PortId;
use crate::net::flow::FlowKey;

/// Counters of a flow at one moment. Times are milliseconds since the start of the switch, modulo 2^32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowCount {
    /// Five-tuple of the original direction.
    pub key: FlowKey,
    /// Port that its first packet came from.
    pub port: PortId,
    /// Time of its insertion, `None` for a flow that was restored.
    pub opened_ms: Option<u32>,
    /// Time of its last packet.
    pub last_seen_ms: u32,
    /// Packets and bytes (IP headers included) of the original direction and of the replies.
    pub counts: [(u64, u64); 2],
}

/// Flow that has left the flow table, or has given way to another connection on the same ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedFlow {
    /// Final counters.
    pub flow: FlowCount,
    /// Reason for the end. A connection that its ends have closed is finished, whatever then takes it off the table.
    pub reason: FlowEnd,
}

/// Ended flows that wait for the control side.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndedFlows {
    /// Flows, those of each worker in the order of their ends.
    pub flows: Vec<EndedFlow>,
    /// Milliseconds since the start of the switch.
    pub now_ms: u32,
    /// Ended flows since the start that found no place, because the control side did not take the others in time.
    pub lost: u64,
}

/// Counters of the flows of a dataplane. One caller takes the ended flows.
pub trait FlowCounters {
    /// Passes the counters of all flows to `see`, in no order, until it returns false. Workers are not disturbed: flows that
    /// come and go meanwhile may be missed.
    fn read(&self, see: &mut dyn FnMut(&FlowCount) -> bool);

    /// Starts or ends the collection of ended flows.
    fn follow_ended(&self, is_followed: bool);

    /// Takes the ended flows that wait.
    fn take_ended(&self) -> EndedFlows;
}
