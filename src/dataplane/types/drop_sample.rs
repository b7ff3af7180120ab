//! Sample of a dropped frame.

use super::DropReason;
use crate::ids::{Generation, PortId};
use crate::net::flow::FlowKey;

/// Most bytes of a frame in a sample: the headers of an IPv6 packet with some extension headers.
pub const SAMPLE_BYTES_MAX: usize = 128;

/// Samples that wait for the control side.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DropSamples {
    /// Samples, in no order.
    pub samples: Vec<DropSample>,
    /// Milliseconds since the start of the switch, the clock of the samples.
    pub now_ms: u32,
    /// Samples since the start that found no place, because the control side did not take the others in time.
    pub lost: u64,
}

/// Sample of a dropped frame, as the worker saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DropSample {
    /// Milliseconds since the start of the switch.
    pub at_ms: u32,
    /// Port that the frame came from.
    pub port: PortId,
    /// Reason of the drop.
    pub reason: DropReason,
    /// Generation of policy and routes that the worker used.
    pub generation: Generation,
    /// Length of the frame at reception, bytes.
    pub frame_bytes: u16,
    /// Flow of a packet that policy denied, or whose frame has been overwritten by an answer of the switch.
    pub flow: Option<FlowKey>,
    /// Flow that policy evaluated: that of the packet, or of the reply direction for a packet of a known flow.
    pub evaluated: Option<FlowKey>,
    /// First bytes of the frame, of which `head_bytes` count.
    pub head: [u8; SAMPLE_BYTES_MAX],
    /// Number of bytes in `head`.
    pub head_bytes: u8,
}

impl DropSample {
    /// First bytes of the frame.
    pub fn head(&self) -> &[u8] {
        &self.head[..usize::from(self.head_bytes)]
    }
}
