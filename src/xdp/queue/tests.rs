use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;
use crate::limits::BATCH_FRAMES_MAX;

fn port(frames: usize) -> (Umem, Vec<Frame>, PortQueue, MemoryPeer) {
    let (umem, free) = Umem::in_memory(frames);
    let (queue, peer) = PortQueue::memory(&umem.binder(), PortId(3)).unwrap();
    (umem, free, queue, peer)
}

#[test]
fn a_packet_comes_in_and_goes_out_by_the_four_rings() {
    let (mut umem, mut free, mut queue, peer) = port(8);
    assert_eq!(queue.refill(&mut umem, &mut free, 5), 5);
    assert_eq!((queue.lent(), free.len()), (5, 3));
    assert!(peer.inject(b"a packet"));
    let mut batch = Vec::with_capacity(4);
    assert_eq!(queue.receive(&mut umem, &mut batch, 4), 1);
    assert_eq!(umem.data(&batch[0]), b"a packet");
    assert!(batch[0].headroom() >= 4, "room to push a tag");
    umem.data_mut(&mut batch[0])[..1].copy_from_slice(b"A");
    assert_eq!(queue.transmit(&mut umem, &mut batch), 1);
    assert_eq!(queue.kick(), Kick::Done);
    assert_eq!(queue.complete(&mut umem, &mut free), 0, "not before the other side has it");
    assert_eq!(peer.collect(), [b"A packet"]);
    assert_eq!(queue.outstanding(), 1);
    assert_eq!(queue.complete(&mut umem, &mut free), 1);
    assert_eq!((queue.outstanding(), queue.lent(), free.len()), (0, 4, 4));
    assert_eq!(queue.port(), PortId(3));
}

#[test]
fn a_packet_without_a_frame_to_receive_it_is_lost_and_counted() {
    let (mut umem, mut free, mut queue, peer) = port(4);
    assert!(!peer.inject(b"early"));
    queue.refill(&mut umem, &mut free, 1);
    assert!(peer.inject(b"in time"));
    assert!(!peer.inject(b"late"));
    assert_eq!(queue.statistics(), Statistics { fill_ring_empty: 2, ..Statistics::default() });
}

#[test]
fn a_packet_longer_than_a_frame_is_dropped_and_its_frame_is_not() {
    let (mut umem, mut free, mut queue, peer) = port(1);
    queue.refill(&mut umem, &mut free, 1);
    assert!(!peer.inject_with(1 << 20, |_| panic!("there is no room to write")));
    assert_eq!(queue.statistics(), Statistics { rx_dropped: 1, ..Statistics::default() });
    assert!(peer.inject(b"short"));
}

#[test]
fn refill_tops_up_to_the_fill_target_and_waiting_frames_count() {
    let (mut umem, mut free, mut queue, peer) = port(2 * RING_SLOTS);
    assert_eq!(queue.refill(&mut umem, &mut free, 10), 10);
    assert!(peer.inject(b"x"));
    assert_eq!(queue.refill(&mut umem, &mut free, 10), 0);
    assert_eq!(queue.refill(&mut umem, &mut free, 12), 2);
    assert_eq!(queue.refill(&mut umem, &mut free, usize::MAX), RING_SLOTS - 12);
}

#[test]
fn transmit_takes_from_the_front_and_leaves_the_rest_in_order() {
    let (mut umem, mut frames, mut queue, peer) = port(RING_SLOTS + 3);
    for (number, frame) in frames.iter_mut().enumerate() {
        umem.write(frame, &number.to_be_bytes()).unwrap();
    }
    assert_eq!(queue.transmit(&mut umem, &mut frames), RING_SLOTS);
    let rest: Vec<_> = frames.iter().map(|frame| umem.data(frame).to_vec()).collect();
    assert_eq!(
        rest,
        [RING_SLOTS, RING_SLOTS + 1, RING_SLOTS + 2].map(|number| number.to_be_bytes().to_vec())
    );
    let mut expected = 0..RING_SLOTS;
    assert_eq!(
        peer.drain_with(|packet| assert_eq!(packet, expected.next().unwrap().to_be_bytes())),
        RING_SLOTS
    );
    assert_eq!(queue.transmit(&mut umem, &mut frames), 0, "the completion ring is full");
    let mut free = Vec::with_capacity(RING_SLOTS);
    assert_eq!(queue.complete(&mut umem, &mut free), RING_SLOTS);
    assert_eq!(queue.transmit(&mut umem, &mut frames), 3);
}

#[test]
fn nothing_grows_beyond_its_capacity() {
    let (mut umem, mut free, mut queue, peer) = port(8);
    queue.refill(&mut umem, &mut free, 8);
    (0..8).for_each(|_| assert!(peer.inject(b"x")));
    let mut batch = Vec::with_capacity(3);
    let capacity = batch.capacity();
    assert_eq!(queue.receive(&mut umem, &mut batch, 8), capacity);
    assert_eq!(queue.receive(&mut umem, &mut batch, 8), 0);
    queue.transmit(&mut umem, &mut batch);
    peer.collect();
    assert_eq!(queue.complete(&mut umem, &mut Vec::new()), 0);
    assert_eq!(queue.outstanding(), capacity);
}

#[test]
fn a_closed_queue_gives_back_each_frame_once_from_all_four_rings() {
    let (mut umem, mut free, mut queue, peer) = port(16);
    queue.refill(&mut umem, &mut free, 6);
    (0..3).for_each(|_| assert!(peer.inject(b"x")));
    let mut batch = Vec::with_capacity(BATCH_FRAMES_MAX);
    assert_eq!(queue.receive(&mut umem, &mut batch, 1), 1);
    queue.transmit(&mut umem, &mut batch);
    peer.collect();
    let mut unseen: Vec<Frame> = free.drain(..2).collect();
    queue.transmit(&mut umem, &mut unseen);
    // The fill ring has 3, the rx ring 2, the completion ring 1, the tx ring 2.
    assert_eq!((queue.lent(), umem.frames_lent()), (8, 8));
    umem.reclaim(queue.close(), &mut free);
    assert_eq!((free.len(), umem.frames_lent()), (16, 0));
    let distinct: HashSet<usize> = free.iter().map(Frame::index).collect();
    assert_eq!(distinct.len(), 16);
    assert!(!peer.inject(b"x"), "nothing goes in any more");
    assert!(peer.collect().is_empty());
}

#[test]
fn frames_that_the_kernel_may_still_write_to_stay_lent() {
    let (mut umem, mut free, mut queue, _peer) = port(8);
    queue.refill(&mut umem, &mut free, 5);
    let closed = ClosedQueue { queue_id: None, ..queue.close() };
    umem.reclaim(closed, &mut free);
    assert_eq!((free.len(), umem.frames_lent()), (3, 5));
}

#[test]
fn frames_are_conserved_while_the_other_side_is_busy_on_another_thread() {
    let (mut umem, mut free, mut queue, peer) = port(64);
    let stop = AtomicBool::new(false);
    let mut received = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                peer.inject(b"x");
                peer.drain_with(|packet| assert_eq!(packet, b"x"));
            }
        });
        let mut batch = Vec::with_capacity(BATCH_FRAMES_MAX);
        while received < 20_000 {
            queue.complete(&mut umem, &mut free);
            queue.refill(&mut umem, &mut free, 32);
            received += queue.receive(&mut umem, &mut batch, 16);
            queue.transmit(&mut umem, &mut batch);
            assert_eq!(queue.lent() + batch.len() + free.len(), umem.frames_total());
        }
        // The queue closes while the peer uses the rings.
        umem.reclaim(queue.close(), &mut free);
        free.append(&mut batch);
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(free.iter().map(Frame::index).collect::<HashSet<_>>().len(), 64);
    assert_eq!((free.len(), umem.frames_lent()), (64, 0));
}

#[test]
#[should_panic(expected = "a queue of UMEM")]
fn a_queue_is_not_used_with_another_umem() {
    let (_umem, _free, mut queue, _peer) = port(1);
    let (mut other, mut others) = Umem::in_memory(1);
    queue.refill(&mut other, &mut others, 1);
}

#[test]
#[should_panic(expected = "is used with UMEM")]
fn a_frame_of_another_umem_is_not_transmitted() {
    let (mut umem, _free, mut queue, _peer) = port(1);
    let (_other, mut others) = Umem::in_memory(1);
    queue.transmit(&mut umem, &mut others);
}

#[test]
#[should_panic(expected = "is given back to UMEM")]
fn a_closed_queue_is_not_reclaimed_by_another_umem() {
    let (_umem, mut free, queue, _peer) = port(1);
    let (mut other, _others) = Umem::in_memory(1);
    other.reclaim(queue.close(), &mut free);
}
