//! A ring of frames in memory: one side puts in, the other takes out, neither waits.
//!
//! As in the kernel's rings (`Documentation/networking/af_xdp.rst`), a slot holds a descriptor, the producer's and the
//! consumer's counts run freely, and each side publishes its count once for all the frames of a call.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::frame::Frame;
use crate::limits::RING_SLOTS;

const MASK: u32 = RING_SLOTS as u32 - 1;

/// The ring. One thread at a time may put in, and one take out: its owners see to that.
pub(super) struct Ring {
    slots: Box<[AtomicU64]>,
    produced: Count,
    consumed: Count,
}

/// Apart from the other side's count, so that the two sides' writes do not meet in a cache line.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicU32);

impl Ring {
    pub(super) fn new() -> Ring {
        Ring {
            slots: (0..RING_SLOTS).map(|_| AtomicU64::new(0)).collect(),
            produced: Count::default(),
            consumed: Count::default(),
        }
    }

    /// Puts frames in, in order. Panics when there are more than free slots.
    #[inline]
    pub(super) fn put(&self, frames: impl ExactSizeIterator<Item = Frame>) {
        let produced = self.produced.0.load(Ordering::Relaxed);
        let used = produced.wrapping_sub(self.consumed.0.load(Ordering::Acquire)) as usize;
        let count = frames.len();
        assert!(used + count <= RING_SLOTS, "more frames are lent than a ring has slots");
        let mut at = produced;
        for frame in frames {
            self.slots[(at & MASK) as usize].store(frame.into_descriptor(), Ordering::Relaxed);
            at = at.wrapping_add(1);
        }
        self.produced.0.store(at, Ordering::Release);
    }

    /// Takes up to `max` frames out, in order; `umem` is the one that they are of.
    #[inline]
    pub(super) fn take(&self, umem: u32, max: usize, mut each: impl FnMut(Frame)) -> usize {
        let consumed = self.consumed.0.load(Ordering::Relaxed);
        let there = self.produced.0.load(Ordering::Acquire).wrapping_sub(consumed) as usize;
        let count = there.min(max);
        for at in 0..count as u32 {
            let descriptor = self.slots[(consumed.wrapping_add(at) & MASK) as usize].load(Ordering::Relaxed);
            // The token went in as this descriptor, and comes out once: the count below goes on behind it.
            each(Frame::from_descriptor(umem, descriptor));
        }
        self.consumed.0.store(consumed.wrapping_add(count as u32), Ordering::Release);
        count
    }

    /// Empties it. The caller keeps both sides away.
    pub(super) fn clear(&self) {
        self.consumed.0.store(self.produced.0.load(Ordering::Acquire), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(indexes: std::ops::Range<u32>) -> Vec<Frame> {
        indexes.map(|index| Frame::new(7, index)).collect()
    }

    #[test]
    fn frames_come_out_in_order_with_their_place_and_length_also_where_the_counts_run_over() {
        let ring = Ring::new();
        ring.produced.0.store(u32::MAX - 1, Ordering::Relaxed);
        ring.consumed.0.store(u32::MAX - 1, Ordering::Relaxed);
        let mut given = frames(0..5);
        given[3].set_len(60).unwrap();
        given[3].grow_head(4).unwrap();
        ring.put(given.into_iter());
        let mut taken = Vec::new();
        assert_eq!(ring.take(7, 4, |frame| taken.push(frame)), 4);
        assert_eq!(ring.take(7, 4, |frame| taken.push(frame)), 1);
        assert_eq!(ring.take(7, 4, |frame| taken.push(frame)), 0);
        assert_eq!(taken.iter().map(Frame::index).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert_eq!((taken[3].len(), taken[3].headroom(), taken[3].umem()), (64, 252, 7));
    }

    #[test]
    fn a_cleared_ring_is_empty_and_holds_as_many_as_before() {
        let ring = Ring::new();
        ring.put(frames(0..3).into_iter());
        ring.clear();
        ring.put(frames(0..RING_SLOTS as u32).into_iter());
        assert_eq!(ring.take(7, usize::MAX, drop), RING_SLOTS);
    }

    #[test]
    #[should_panic(expected = "more frames are lent than a ring has slots")]
    fn a_full_ring_takes_no_more() {
        let ring = Ring::new();
        ring.put(frames(0..RING_SLOTS as u32 + 1).into_iter());
    }
}
