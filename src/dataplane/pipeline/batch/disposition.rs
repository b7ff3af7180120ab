//! Disposition of a frame.

use crate::dataplane::DropReason;
use crate::ids::PortId;

/// Disposition of a frame. Each frame gets exactly one final disposition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// No stage has decided.
    Pending,
    /// The stage `translate` has routed the packet: it leaves by its adjacency, and no stage before `rewrite` decides on it.
    Routed,
    /// A later fragment that the stage `fragments` decides on. After that stage: one that waits for the first
    /// fragment of its datagram.
    Held,
    /// The frame leaves by this port.
    Forward(PortId),
    /// The frame was for the switch.
    Consumed,
    /// The frame is dropped.
    Dropped(DropReason),
}
