//! Events of flows, for those who follow them.

use serde::{Deserialize, Serialize};

use crate::net::flow::FlowKey;

/// Beginning, end or revalidation of a flow, as the worker saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowEvent {
    /// Milliseconds since the start of the switch.
    pub at_ms: u32,
    /// Kind of the event.
    pub kind: FlowEventKind,
    /// Five-tuple of the original direction.
    pub key: FlowKey,
    /// Name of the state.
    pub state: &'static str,
    /// Packets and bytes of the original direction and of the replies.
    pub counts: [(u64, u64); 2],
}

/// Kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowEventKind {
    /// A flow has been inserted.
    Opened,
    /// A flow has ended.
    Closed(FlowEnd),
    /// A change of policy allows the flow still.
    Revalidated,
}

/// Reason for the end of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowEnd {
    /// Its ends have closed or reset the connection.
    Finished,
    /// It had no packet for longer than its state allows.
    Idle,
    /// It had to give way to a new flow in a full table.
    Evicted,
    /// A change of policy denies it.
    Policy,
    /// A pod at one of its ends has gone.
    PodGone,
    /// A flush has ended it.
    Flushed,
}

impl FlowEnd {
    /// Reason in words.
    pub fn describe(self) -> &'static str {
        match self {
            FlowEnd::Finished => "its ends have closed it",
            FlowEnd::Idle => "no packet for longer than its state allows",
            FlowEnd::Evicted => "evicted for a new flow",
            FlowEnd::Policy => "policy denies it now",
            FlowEnd::PodGone => "a pod at its ends has gone",
            FlowEnd::Flushed => "flushed",
        }
    }
}

/// Events that wait for the control side.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowEvents {
    /// Events, those of each worker in their order.
    pub events: Vec<FlowEvent>,
    /// Milliseconds since the start of the switch, the clock of the events.
    pub now_ms: u32,
    /// Events since the start that found no place, because the control side did not take the others in time.
    pub lost: u64,
}
