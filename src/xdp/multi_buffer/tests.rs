use std::collections::HashSet;

use super::assembler::PARTS_MAX;
use super::*;
use crate::ids::PortId;
use crate::limits::RING_SLOTS;
use crate::xdp::frame::CONTINUED;
use crate::xdp::frame_ownership::Direction;
use crate::xdp::{MemoryPeer, PortQueue};

struct Bench {
    umem: Umem,
    free: Vec<Frame>,
    queue: PortQueue,
    peer: MemoryPeer,
    batch: Vec<Frame>,
}

impl Bench {
    fn new(frames: usize) -> Bench {
        Bench::with_free(frames, 0)
    }

    /// Makes a bench with `free_frames` frames that are not lent to the queue.
    fn with_free(frames: usize, free_frames: usize) -> Bench {
        let (umem, free) = Umem::in_memory(frames + free_frames);
        let (queue, peer) = PortQueue::memory(&umem.binder(), PortId(3)).unwrap();
        let mut bench = Bench { umem, free, queue, peer, batch: Vec::with_capacity(64) };
        bench.queue.refill(&mut bench.umem, &mut bench.free, frames);
        bench
    }

    fn receive(&mut self, packet: &[u8]) -> Frame {
        assert!(self.peer.inject(packet));
        assert_eq!(self.queue.receive(&mut self.umem, &mut self.batch, 64), 1);
        self.batch.pop().unwrap()
    }

    fn transmit(&mut self, frame: Frame) -> Vec<Vec<u8>> {
        let mut frames = vec![frame];
        assert_eq!(self.queue.transmit(&mut self.umem, &mut frames), 1);
        self.peer.collect()
    }

    fn bytes(&self, frame: &Frame) -> Vec<u8> {
        std::iter::once(self.umem.data(frame)).chain(self.umem.rest(frame)).collect::<Vec<_>>().concat()
    }

    /// Every frame is in a ring, held, or free, and no two tokens are of one.
    fn check(mut self, held: Vec<Frame>) {
        for frame in held.into_iter().chain(std::mem::take(&mut self.batch)) {
            self.umem.release(frame, &mut self.free);
        }
        self.queue.complete(&mut self.umem, &mut self.free);
        self.umem.reclaim(self.queue.close(), &mut self.free);
        assert_eq!(self.free.len(), self.umem.frames_total());
        assert!(self.free.iter().all(|frame| !frame.is_multi_buffer()));
        assert_eq!(self.free.iter().map(Frame::index).collect::<HashSet<_>>().len(), self.free.len());
    }
}

fn packet(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

#[test]
fn a_packet_of_any_length_is_one_token_and_crosses_intact() {
    for len in [1, PACKET_ROOM, PACKET_ROOM + 1, 9014, 2 * PACKET_ROOM, PACKET_BYTES_MAX] {
        let mut bench = Bench::new(40);
        let frame = bench.receive(&packet(len));
        let frames = len.div_ceil(PACKET_ROOM);
        assert_eq!((frame.len(), frame.frames(), frame.is_oversized()), (len, frames, false));
        assert_eq!(bench.queue.receiving(), 40 - frames);
        assert_eq!(bench.bytes(&frame), packet(len));
        assert_eq!(bench.transmit(frame), [packet(len)]);
        assert_eq!(bench.queue.outstanding(), frames);
        bench.check(vec![]);
    }
}

#[test]
fn a_packet_goes_on_in_frames_appended_to_it_while_it_is_one() {
    let mut bench = Bench::new(60);
    let (mut packet_bytes, mut packet_token) = (packet(1000), bench.receive(&packet(1000)));
    for number in 1..MULTI_BUFFER_FRAMES_MAX {
        let part = bench.receive(&packet(1000 + number));
        bench.umem.append(&mut packet_token, part).unwrap();
        packet_bytes.extend(packet(1000 + number));
        assert_eq!((packet_token.len(), packet_token.frames()), (packet_bytes.len(), number + 1));
        assert_eq!(bench.bytes(&packet_token), packet_bytes);
    }
    let one_more = bench.receive(&packet(1));
    let one_more = bench.umem.append(&mut packet_token, one_more).unwrap_err();
    let (mut longest, chain) = (bench.receive(&packet(PACKET_BYTES_MAX)), bench.receive(&packet(9000)));
    let one_more = bench.umem.append(&mut longest, one_more).unwrap_err();
    let mut short = bench.receive(&packet(1));
    let chain = bench.umem.append(&mut short, chain).unwrap_err();
    assert_eq!(bench.bytes(&packet_token), packet_bytes);
    bench.check(vec![packet_token, one_more, longest, chain, short]);
}

#[test]
fn a_packet_that_comes_in_parts_is_handed_out_when_it_is_whole() {
    let mut bench = Bench::new(40);
    assert!(bench.peer.inject(&packet(9000)) && bench.peer.inject(&packet(100)));
    assert_eq!(bench.queue.receive(&mut bench.umem, &mut bench.batch, 2), 0);
    assert_eq!(bench.queue.lent(), 40, "the parts are the queue's still");
    assert_eq!(bench.queue.receive(&mut bench.umem, &mut bench.batch, 2), 2);
    let lengths: Vec<_> = bench.batch.iter().map(|frame| (frame.len(), frame.frames())).collect();
    assert_eq!(lengths, [(9000, 3), (100, 1)]);
    bench.check(vec![]);
}

#[test]
fn a_queue_that_closes_in_the_middle_of_a_packet_gives_its_frames_back() {
    let mut bench = Bench::new(40);
    assert!(bench.peer.inject(&packet(9000)));
    assert_eq!(bench.queue.receive(&mut bench.umem, &mut bench.batch, 2), 0);
    bench.check(vec![]);
}

#[test]
fn what_is_cut_off_a_packet_is_trimmed_off_its_chain() {
    for len in [1, PACKET_ROOM, PACKET_ROOM + 1, 2 * PACKET_ROOM, 9000] {
        let mut bench = Bench::new(40);
        let mut frame = bench.receive(&packet(9014));
        frame.truncate(len);
        assert_eq!((frame.len(), frame.frames()), (len, 3));
        assert_eq!(bench.bytes(&frame), packet(9014)[..len]);
        bench.umem.trim(&mut frame, &mut bench.free);
        assert_eq!((frame.len(), frame.frames()), (len, len.div_ceil(PACKET_ROOM)));
        assert_eq!(bench.bytes(&frame), packet(9014)[..len]);
        assert_eq!(bench.transmit(frame), [&packet(9014)[..len]]);
        bench.check(vec![]);
    }
}

#[test]
fn a_header_is_pushed_before_a_packet_whose_head_is_full() {
    let full = [PACKET_ROOM - 3, PACKET_ROOM, 2 * PACKET_ROOM - 3, 2 * PACKET_ROOM, 17 * PACKET_ROOM];
    let others = [PACKET_ROOM + 1, 9014, 2 * PACKET_ROOM - 4, 60_000];
    for len in full.into_iter().chain(others) {
        let mut bench = Bench::with_free(40, 1);
        let mut frame = bench.receive(&packet(len));
        bench.umem.grow_head(&mut frame, 4, &mut bench.free).unwrap();
        bench.umem.data_mut(&mut frame)[..4].copy_from_slice(b"tag ");
        let longer = [b"tag ".to_vec(), packet(len)].concat();
        assert_eq!((frame.len(), bench.bytes(&frame)), (len + 4, longer.clone()));
        assert_eq!(bench.transmit(frame), [longer]);
        bench.check(vec![]);
    }
    for len in [PACKET_ROOM, 2 * PACKET_ROOM] {
        let mut bench = Bench::new(40);
        let mut full = bench.receive(&packet(len));
        assert_eq!(
            bench.umem.grow_head(&mut full, 4, &mut Vec::new()),
            Err(DoesNotFit { needed: 4, room: 0 })
        );
        assert_eq!(bench.bytes(&full), packet(len), "it is as it was");
        bench.check(vec![full]);
    }
}

#[test]
fn a_packet_longer_than_any_may_be_is_one_token_without_bytes() {
    for len in [PACKET_BYTES_MAX + 1, 20 * PACKET_ROOM] {
        let mut bench = Bench::new(40);
        let frame = bench.receive(&packet(len));
        assert!(frame.is_oversized() && bench.umem.data(&frame).is_empty());
        assert_eq!(frame.frames(), len.div_ceil(PACKET_ROOM));
        let next = bench.receive(&packet(9000));
        assert_eq!(bench.bytes(&next), packet(9000));
        bench.check(vec![frame, next]);
    }
}

#[test]
fn descriptors_that_the_kernel_should_not_send_cost_the_packet_and_no_frame() {
    let mut bench = Bench::new(8);
    let queue_id = bench.umem.binder().allocate_queue_id().unwrap();
    let (mut assembler, mut out) = (Assembler::new(), Vec::new());
    for frame in bench.free.drain(..) {
        bench.umem.ownership.lend(frame.index(), queue_id, Direction::Receive);
    }
    bench.queue.receive(&mut bench.umem, &mut out, 8);
    let part = |index: u64, offset: u64, len: u64| index | offset << 32 | len << 48;
    // None of these frames is lent to this queue id: the queue's refill took them.
    let foreign = [part(0, 256, 3840) | CONTINUED, part(1, 256, 10)];
    let taken: Vec<_> =
        foreign.map(|word| assembler.add(&mut bench.umem, queue_id, word, &mut out)).into_iter().collect();
    assert_eq!(taken[1], Taken { packets: 0, frames: 0, refused: 2 });
    assert!(out.is_empty() && assembler.is_idle());
    bench.check(vec![]);
}

#[test]
fn a_chain_without_an_end_is_dropped_in_pieces_and_no_frame_is_lost() {
    let (mut umem, free) = Umem::in_memory(PARTS_MAX + 4);
    let queue_id = umem.binder().allocate_queue_id().unwrap();
    let descriptors: Vec<u64> = free.iter().map(Frame::descriptor).collect();
    for frame in free {
        umem.ownership.lend(frame.index(), queue_id, Direction::Receive);
    }
    let (mut assembler, mut out, mut taken) = (Assembler::new(), Vec::new(), Taken::default());
    for (number, descriptor) in descriptors.iter().enumerate() {
        let goes_on = number + 2 < descriptors.len();
        let word = (descriptor | 10 << 48) | if goes_on { CONTINUED } else { 0 };
        taken += assembler.add(&mut umem, queue_id, word, &mut out);
    }
    assert_eq!(taken, Taken { packets: 3, frames: PARTS_MAX + 4, refused: 0 });
    assert_eq!(out.iter().map(Frame::is_oversized).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(out.iter().map(Frame::frames).collect::<Vec<_>>(), [PARTS_MAX, 3, 1]);
    assert_eq!(umem.frames_lent(), 0);
}

#[test]
fn a_ring_takes_packets_as_a_whole_or_not_at_all() {
    let mut bench = Bench::new(2 * RING_SLOTS);
    let mut frames = Vec::with_capacity(RING_SLOTS);
    while frames.len() < RING_SLOTS / 3 + 1 {
        let frame = bench.receive(&packet(9000));
        frames.push(frame);
        bench.queue.refill(&mut bench.umem, &mut bench.free, RING_SLOTS);
    }
    assert_eq!(bench.queue.transmit(&mut bench.umem, &mut frames), RING_SLOTS / 3);
    assert_eq!((frames.len(), bench.queue.outstanding()), (1, RING_SLOTS - RING_SLOTS % 3));
    assert_eq!(bench.queue.transmit(&mut bench.umem, &mut frames), 0);
    assert!(bench.peer.collect().iter().all(|sent| *sent == packet(9000)));
    bench.check(frames);
}
