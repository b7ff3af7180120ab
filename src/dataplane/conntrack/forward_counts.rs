//! Counts of translated flows that lie beside their bindings: those of packets that took a cached hop.

/// Packets of a flow's initiator that its entry has not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ForwardCount {
    /// Number of packets. The other fields have no meaning where it is zero.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time of the last one, milliseconds.
    pub last_seen_ms: u32,
}

/// Counts of the initiators of translated flows, which the numbers of their slots name.
pub(crate) trait ForwardCounts: Send + Sync {
    /// Count of the flow in a slot, which has had this binding.
    fn count_of(&self, binding: u32, flow: u32) -> ForwardCount;

    /// Gives the count away.
    fn take_count(&self, binding: u32, flow: u32) -> ForwardCount;

    /// Ends the cached hop of a flow.
    fn end_hop(&self, binding: u32, flow: u32);
}
