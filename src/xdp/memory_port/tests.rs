//! The ring of frames.

use std::sync::atomic::Ordering;

use super::ring::Ring;
use crate::limits::RING_SLOTS;

#[test]
fn descriptors_come_out_in_order_also_where_the_counts_run_over() {
    let ring = Ring::new();
    ring.produced.0.store(u32::MAX - 1, Ordering::Relaxed);
    ring.consumed.0.store(u32::MAX - 1, Ordering::Relaxed);
    ring.put([7, 6, 5, 4, 3].into_iter());
    assert_eq!(ring.len(), 5);
    let mut taken = Vec::new();
    assert_eq!(ring.take(4, |descriptor| taken.push(descriptor)), 4);
    assert_eq!(ring.take(4, |descriptor| taken.push(descriptor)), 1);
    assert_eq!(ring.take(4, |descriptor| taken.push(descriptor)), 0);
    assert_eq!(taken, [7, 6, 5, 4, 3]);
}

#[test]
fn a_cleared_ring_is_empty_and_holds_as_many_as_before() {
    let ring = Ring::new();
    ring.put([1, 2, 3].into_iter());
    ring.clear();
    ring.put(vec![4; RING_SLOTS].into_iter());
    assert_eq!(ring.take(usize::MAX, |descriptor| assert_eq!(descriptor, 4)), RING_SLOTS);
}

#[test]
#[should_panic(expected = "more frames are lent than a ring has slots")]
fn a_full_ring_takes_no_more() {
    let ring = Ring::new();
    ring.put(vec![0; RING_SLOTS + 1].into_iter());
}
