//! Counters of one queue.

/// Counters of a socket (`struct xdp_statistics` of `linux/if_xdp.h`), and of refused descriptors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames lost before the rx ring for a reason not in this list.
    pub rx_dropped: u64,
    /// Descriptors in the fill ring that the kernel refused.
    pub rx_invalid: u64,
    /// Frames lost because the rx ring was full.
    pub rx_ring_full: u64,
    /// Frames lost because the fill ring was empty.
    pub fill_ring_empty: u64,
    /// Descriptors in the tx ring that the kernel refused.
    pub tx_invalid: u64,
    /// Times that the kernel found the tx ring empty.
    pub tx_ring_empty: u64,
    /// Descriptors from the kernel that name no frame lent to this queue: a fault of the kernel.
    pub refused: u64,
}
