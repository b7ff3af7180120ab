//! In-memory ring of frames with one producer and one consumer, neither of which waits.
//!
//! As in the kernel's rings (`Documentation/networking/af_xdp.rst`), a slot has a descriptor, the counts of
//! producer and consumer are free-running, and each side publishes its count once for all frames of a call. `loom_tests.rs` explores
//! the interleavings.

use std::sync::atomic::Ordering;

use super::parts::{AtomicU32, AtomicU64, RING_SLOTS};

const MASK: u32 = RING_SLOTS as u32 - 1;

/// The ring. Its owners ensure one producer and one consumer at a time.
pub(in crate::xdp) struct Ring {
    slots: Box<[AtomicU64]>,
    pub(super) produced: Count,
    pub(super) consumed: Count,
}

/// A count in a cache line of its own, so that the two sides do not write to the same line.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Count(pub(super) AtomicU32);

impl Ring {
    pub(in crate::xdp) fn new() -> Ring {
        Ring {
            slots: (0..RING_SLOTS).map(|_| AtomicU64::new(0)).collect(),
            produced: Count::default(),
            consumed: Count::default(),
        }
    }

    /// Enqueues descriptors in order. Panics if there are more of them than free slots.
    #[inline]
    pub(in crate::xdp) fn put(&self, descriptors: impl ExactSizeIterator<Item = u64>) {
        let produced = self.produced.0.load(Ordering::Relaxed);
        let used = produced.wrapping_sub(self.consumed.0.load(Ordering::Acquire)) as usize;
        let count = descriptors.len();
        assert!(used + count <= RING_SLOTS, "more frames are lent than a ring has slots");
        let mut at = produced;
        for descriptor in descriptors {
            self.slots[(at & MASK) as usize].store(descriptor, Ordering::Relaxed);
            at = at.wrapping_add(1);
        }
        self.produced.0.store(at, Ordering::Release);
    }

    /// Descriptors in the ring. For the consumer the number does not decrease until it dequeues.
    pub(in crate::xdp) fn len(&self) -> usize {
        self.produced.0.load(Ordering::Acquire).wrapping_sub(self.consumed.0.load(Ordering::Relaxed)) as usize
    }

    /// Dequeues up to `max` descriptors in order. Each comes out once, and the caller owns its frame.
    #[inline]
    pub(in crate::xdp) fn take(&self, max: usize, mut each: impl FnMut(u64)) -> usize {
        let consumed = self.consumed.0.load(Ordering::Relaxed);
        let count = self.len().min(max);
        for at in 0..count as u32 {
            each(self.slots[(consumed.wrapping_add(at) & MASK) as usize].load(Ordering::Relaxed));
        }
        self.consumed.0.store(consumed.wrapping_add(count as u32), Ordering::Release);
        count
    }

    /// Empties the ring. The caller ensures that neither side uses it.
    pub(in crate::xdp) fn clear(&self) {
        self.consumed.0.store(self.produced.0.load(Ordering::Acquire), Ordering::Release);
    }
}
