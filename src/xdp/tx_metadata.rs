//! Transmit metadata: the request for a checksum in front of a packet
//! (`Documentation/networking/xsk-tx-metadata.rst`).

use crate::limits::XDP_HEADROOM_BYTES;

/// `struct xsk_tx_metadata` of `linux/if_xdp.h`, in front of a packet with an offload request.
#[repr(C)]
pub(super) struct TxMetadata {
    pub(super) flags: u64,
    pub(super) csum_start: u16,
    pub(super) csum_offset: u16,
    pub(super) launch_time: u64,
}

/// Bytes of the metadata in front of a packet.
pub(super) const TX_METADATA_BYTES: usize = size_of::<TxMetadata>();
/// Flag of the metadata that requests the checksum.
pub(super) const XDP_TXMD_FLAGS_CHECKSUM: u64 = 1 << 1;

const _: () = assert!(TX_METADATA_BYTES == 24 && TX_METADATA_BYTES <= XDP_HEADROOM_BYTES);
