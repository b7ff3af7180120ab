//! Links between the frames of multi-buffer packets.

use std::iter;
use std::sync::atomic::{AtomicU64, Ordering};

/// Link of each frame: the descriptor of the next frame of the packet. The link of a last frame has no
/// meaning.
///
/// The owner of a packet's token may read and write the links of its frames. Tokens pass from thread to
/// thread through rings, which order the accesses.
pub(super) struct FrameLinks(Box<[AtomicU64]>);

impl FrameLinks {
    /// Makes the links of `frames` frames.
    pub(super) fn new(frames: usize) -> FrameLinks {
        FrameLinks(iter::repeat_with(AtomicU64::default).take(frames).collect())
    }

    /// Returns the link of a frame.
    pub(super) fn next(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::Relaxed)
    }

    /// Sets the link of a frame.
    pub(super) fn set_next(&self, index: usize, descriptor: u64) {
        self.0[index].store(descriptor, Ordering::Relaxed);
    }
}
