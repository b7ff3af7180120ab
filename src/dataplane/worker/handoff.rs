//! Hand-off of frames to a port with fewer queues than workers.
//!
//! A worker without a queue of the port hands the port's frames to a worker with one: worker `w` to worker
//! `w` modulo the number of queues. Each worker has a UMEM of its own, so the bytes are copied twice: into a
//! copy buffer of the queue between the two workers, and into a frame of the other UMEM. The copy buffers are
//! allocated with the queue, and return to the producer. A queue has one producer: buffers that it finds free
//! stay free for it, so a frame is counted as forwarded only if it has a buffer. A packet of several frames
//! takes as many buffers, which move together.

use std::sync::Arc;

use crossbeam::queue::ArrayQueue;

use crate::ids::WorkerId;
use crate::limits::{
    FRAME_BYTES, HANDOFF_BUFFERS_MAX, HANDOFF_BUFFERS_MIN, MTU_OF_ONE_FRAME_MAX, MULTI_BUFFER_FRAMES_MAX,
    XDP_HEADROOM_BYTES,
};
use crate::net::ethernet;
use crate::xdp::{Frame, PortQueue, Umem};

/// Bytes of the Ethernet header of a transmitted frame, with a VLAN tag.
const HEADER_BYTES: usize = ethernet::HEADER_BYTES + ethernet::TAG_BYTES;
/// Least MTU of a queue: that of IPv6 (RFC 8200 section 5). Solicitations of the switch fit into it as well.
const MTU_MIN: usize = 1280;

/// Access of a worker to a port.
#[allow(clippy::large_enum_variant)] // There are few, and the large one is the common one.
pub(crate) enum Access {
    /// A queue of the worker's own, and the receive ends of the hand-off queues whose frames it transmits.
    Queue(PortQueue, ReceiveEnds),
    /// A hand-off queue to a worker that has a queue.
    Remote(TransmitEnd),
}

/// Receive ends of the hand-off queues to one worker and port.
pub(crate) type ReceiveEnds = Vec<Arc<HandoffQueue>>;

/// Transmit end of a hand-off queue.
pub(crate) struct TransmitEnd {
    queue: Arc<HandoffQueue>,
    /// Worker that transmits the frames.
    pub owner: WorkerId,
}

/// Hand-off queue from one worker to another, for one port.
pub(crate) struct HandoffQueue {
    full: ArrayQueue<Box<CopyBuffer>>,
    empty: ArrayQueue<Box<CopyBuffer>>,
    /// Largest number of frames of a packet.
    frames_max: usize,
}

/// Copy of a frame.
struct CopyBuffer {
    bytes: Box<[u8]>,
    len: usize,
    /// The further frames of a packet.
    rest: Option<Box<CopyBuffer>>,
    /// Checksum that is left to the kernel ([`Frame::leave_checksum`]).
    checksum_left: Option<(u16, u16)>,
}

/// Distributes access to a port with this MTU over `workers` workers, of which the first have these queues.
///
/// Panics without any queue.
pub(crate) fn accesses(workers: usize, queues: Vec<PortQueue>, mtu: usize) -> Vec<Access> {
    let owners = queues.len();
    let mut accesses: Vec<Access> =
        queues.into_iter().map(|queue| Access::Queue(queue, Vec::new())).collect();
    for producer in owners..workers {
        let buffers = (HANDOFF_BUFFERS_MAX / (workers - owners)).max(HANDOFF_BUFFERS_MIN);
        let queue = Arc::new(HandoffQueue::new(buffers, mtu));
        let owner = producer % owners;
        if let Access::Queue(_, receive_ends) = &mut accesses[owner] {
            receive_ends.push(queue.clone());
        }
        accesses.push(Access::Remote(TransmitEnd { queue, owner: WorkerId(owner as u16) }));
    }
    accesses
}

impl TransmitEnd {
    /// Frames that the queue certainly takes.
    #[inline]
    pub(crate) fn credit(&self) -> usize {
        self.queue.empty.len()
    }

    /// Frames that the empty queue takes.
    pub(crate) fn capacity(&self) -> usize {
        self.queue.empty.capacity()
    }

    /// Enqueues a copy of the packet, whose frames lie in `umem`. Returns false if the queue has no space for
    /// it.
    #[inline]
    pub(crate) fn enqueue(&self, umem: &Umem, packet: &Frame) -> bool {
        let queue = &*self.queue;
        // Only the producer takes free buffers.
        if packet.frames() > queue.frames_max.min(self.credit()) {
            return false;
        }
        let Some(mut first) = queue.fill(umem.data(packet)) else { return false };
        first.checksum_left = packet.checksum_left();
        let mut last = &mut first.rest;
        for part in umem.rest(packet) {
            match queue.fill(part) {
                Some(buffer) => last = &mut last.insert(buffer).rest,
                None => return queue.recycle(first),
            }
        }
        // Each of the two rings has a slot for every buffer.
        queue.full.push(first).is_ok()
    }
}

impl HandoffQueue {
    fn new(buffers: usize, mtu: usize) -> HandoffQueue {
        let bytes = (mtu.max(MTU_MIN) + HEADER_BYTES).min(FRAME_BYTES - XDP_HEADROOM_BYTES);
        let frames_max = if mtu > MTU_OF_ONE_FRAME_MAX { MULTI_BUFFER_FRAMES_MAX } else { 1 };
        let queue =
            HandoffQueue { full: ArrayQueue::new(buffers), empty: ArrayQueue::new(buffers), frames_max };
        for _ in 0..buffers {
            let buffer = CopyBuffer { bytes: vec![0; bytes].into(), len: 0, rest: None, checksum_left: None };
            let _ = queue.empty.push(Box::new(buffer));
        }
        queue
    }

    /// A copy buffer with these bytes; `None` if none is free, or the bytes are too many.
    #[inline]
    fn fill(&self, bytes: &[u8]) -> Option<Box<CopyBuffer>> {
        let mut buffer = self.empty.pop()?;
        if bytes.len() > buffer.bytes.len() {
            let _ = self.empty.push(buffer);
            return None;
        }
        buffer.bytes[..bytes.len()].copy_from_slice(bytes);
        buffer.len = bytes.len();
        Some(buffer)
    }

    /// Returns the buffers of a packet, and false: the packet was not enqueued.
    #[cold]
    fn recycle(&self, first: Box<CopyBuffer>) -> bool {
        let mut next = Some(first);
        while let Some(mut buffer) = next {
            next = buffer.rest.take();
            let _ = self.empty.push(buffer);
        }
        false
    }

    /// Whether the queue is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.full.is_empty()
    }

    /// Dequeues packets into frames from the end of `free`, up to `max` frames, and appends these to `out`.
    /// Returns the number of frames.
    #[inline]
    pub(crate) fn dequeue(
        &self,
        umem: &Umem,
        free: &mut Vec<Frame>,
        out: &mut Vec<Frame>,
        max: usize,
    ) -> usize {
        let mut taken = 0;
        // The number of frames of the next packet is known only after it is dequeued.
        while taken + self.frames_max <= max && free.len() >= self.frames_max {
            let Some(first) = self.full.pop() else { break };
            let frame = self.unpack(first, umem, free);
            taken += frame.as_ref().map_or(0, Frame::frames);
            out.extend(frame);
        }
        taken
    }

    /// Copies a packet into free frames, and returns its buffers.
    #[inline]
    fn unpack(&self, mut first: Box<CopyBuffer>, umem: &Umem, free: &mut Vec<Frame>) -> Option<Frame> {
        let mut packet = first.to_frame(umem, free)?;
        if let Some((start, field)) = first.checksum_left {
            packet.leave_checksum(start.into(), field.into());
        }
        let mut next = first.rest.take();
        let _ = self.empty.push(first);
        while let Some(mut buffer) = next {
            let appended = umem.append(&mut packet, buffer.to_frame(umem, free)?);
            debug_assert!(appended.is_ok(), "it was a packet in the other UMEM");
            free.extend(appended.err());
            next = buffer.rest.take();
            let _ = self.empty.push(buffer);
        }
        Some(packet)
    }
}

impl CopyBuffer {
    /// A free frame with the bytes of the buffer.
    #[inline]
    fn to_frame(&self, umem: &Umem, free: &mut Vec<Frame>) -> Option<Frame> {
        let mut frame = free.pop()?;
        let written = umem.write(&mut frame, &self.bytes[..self.len]);
        debug_assert!(written.is_ok(), "a buffer fits into a frame");
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PortId;
    use crate::limits::MTU_MAX;

    const PACKETS: u32 = 20_000;

    fn access(workers: usize, queues: usize, mtu: usize) -> Vec<Access> {
        let (umem, _) = Umem::in_memory(1);
        let queue = |_| PortQueue::memory(&umem.binder(), PortId(0)).unwrap().0;
        accesses(workers, (0..queues).map(queue).collect(), mtu)
    }

    /// A producer with a UMEM of its own.
    struct Producer {
        transmit_end: TransmitEnd,
        umem: Umem,
        packet: Frame,
    }

    impl Producer {
        fn enqueue(&mut self, packet: &[u8]) -> bool {
            self.umem.write(&mut self.packet, packet).unwrap();
            self.transmit_end.enqueue(&self.umem, &self.packet)
        }

        fn credit(&self) -> usize {
            self.transmit_end.credit()
        }
    }

    fn queue() -> (Producer, ReceiveEnds) {
        let mut both = access(2, 1, 1500).into_iter();
        let (Some(Access::Queue(_, receive_ends)), Some(Access::Remote(transmit_end))) =
            (both.next(), both.next())
        else {
            panic!("the first worker has the queue")
        };
        let (umem, mut frames) = Umem::in_memory(1);
        (Producer { transmit_end, umem, packet: frames.remove(0) }, receive_ends)
    }

    #[test]
    fn every_worker_without_a_queue_has_one_owner_and_each_owner_hears_from_all_of_its_own() {
        for (workers, queues) in [(1, 1), (2, 1), (5, 2), (4, 4), (64, 7)] {
            let accesses = access(workers, queues, 1500);
            assert_eq!(accesses.len(), workers);
            let mut enqueued = vec![0; queues];
            for (worker, access) in accesses.iter().enumerate() {
                match access {
                    Access::Queue(..) => assert!(worker < queues),
                    Access::Remote(transmit_end) => {
                        assert_eq!(transmit_end.owner.index(), worker % queues);
                        enqueued[worker % queues] += 1;
                    }
                }
            }
            for (access, enqueued) in accesses.iter().zip(enqueued) {
                let Access::Queue(_, receive_ends) = access else { panic!("owners come first") };
                assert_eq!(receive_ends.len(), enqueued);
            }
        }
    }

    #[test]
    fn packets_come_out_whole_and_in_order_and_never_more_than_were_promised_places() {
        let (mut producer, receive_ends) = queue();
        let (umem, mut free) = Umem::in_memory(1024);
        assert_eq!(producer.credit(), HANDOFF_BUFFERS_MAX);
        let packet = |number: usize| vec![number as u8; 60 + number];
        for number in 0..HANDOFF_BUFFERS_MAX {
            assert!(producer.enqueue(&packet(number)));
        }
        assert!(!producer.enqueue(b"one too many"));
        assert_eq!(producer.credit(), 0);
        let mut out = Vec::new();
        assert_eq!(receive_ends[0].dequeue(&umem, &mut free, &mut out, 64), 64);
        assert_eq!(producer.credit(), 64);
        while receive_ends[0].dequeue(&umem, &mut free, &mut out, 64) > 0 {}
        assert!(receive_ends[0].is_empty());
        assert_eq!((out.len(), free.len()), (HANDOFF_BUFFERS_MAX, 1024 - HANDOFF_BUFFERS_MAX));
        for (number, frame) in out.iter().enumerate() {
            assert_eq!(umem.data(frame), packet(number));
        }
        assert_eq!(producer.credit(), producer.transmit_end.capacity());
    }

    /// The packet of a frame and the frames after it.
    fn bytes(umem: &Umem, packet: &Frame) -> Vec<u8> {
        std::iter::once(umem.data(packet)).chain(umem.rest(packet)).collect::<Vec<_>>().concat()
    }

    #[test]
    fn a_packet_of_several_frames_comes_out_whole_or_not_yet_or_is_not_taken() {
        let mut both = access(2, 1, MTU_MAX).into_iter();
        let (Some(Access::Queue(_, receive_ends)), Some(Access::Remote(transmit_end))) =
            (both.next(), both.next())
        else {
            panic!("the first worker has the queue")
        };
        let (theirs, mut frames) = Umem::in_memory(40);
        let mut packet = |parts: usize, byte: u8| {
            let mut frames: Vec<Frame> = frames.drain(..parts).collect();
            for (number, frame) in frames.iter_mut().enumerate() {
                theirs.write(frame, &vec![byte + number as u8; 3000]).unwrap();
            }
            let mut packet = frames.remove(0);
            frames.into_iter().for_each(|frame| theirs.append(&mut packet, frame).unwrap());
            packet
        };
        let (long, short) = (packet(MULTI_BUFFER_FRAMES_MAX, 1), packet(3, 100));
        assert!(transmit_end.enqueue(&theirs, &long) && transmit_end.enqueue(&theirs, &short));
        assert_eq!(transmit_end.capacity() - transmit_end.credit(), MULTI_BUFFER_FRAMES_MAX + 3);
        let (umem, mut free) = Umem::in_memory(MULTI_BUFFER_FRAMES_MAX + 2);
        let (mut out, mut early) = (Vec::new(), Vec::new());
        assert_eq!(receive_ends[0].dequeue(&umem, &mut free, &mut out, MULTI_BUFFER_FRAMES_MAX - 1), 0);
        assert_eq!(receive_ends[0].dequeue(&umem, &mut free, &mut out, 64), MULTI_BUFFER_FRAMES_MAX);
        assert_eq!(bytes(&umem, &out[0]), bytes(&theirs, &long));
        assert_eq!(receive_ends[0].dequeue(&umem, &mut free, &mut early, 64), 0, "it might be as long");
        umem.release(out.remove(0), &mut free);
        assert_eq!(receive_ends[0].dequeue(&umem, &mut free, &mut out, 64), 3);
        assert_eq!(bytes(&umem, &out[0]), bytes(&theirs, &short));
        assert_eq!(
            (free.len(), transmit_end.credit()),
            (MULTI_BUFFER_FRAMES_MAX - 1, transmit_end.capacity())
        );
        while transmit_end.credit() >= MULTI_BUFFER_FRAMES_MAX {
            assert!(transmit_end.enqueue(&theirs, &long));
        }
        let room = transmit_end.credit();
        assert!(room > 0 && !transmit_end.enqueue(&theirs, &long), "half a packet has no place");
        assert_eq!(transmit_end.credit(), room);
        let (plain, _) = queue();
        assert!(!plain.transmit_end.enqueue(&theirs, &short), "that port takes one frame a packet");
        assert_eq!(plain.credit(), plain.transmit_end.capacity());
    }

    #[test]
    fn what_the_owner_has_no_frame_for_waits() {
        let (mut producer, receive_ends) = queue();
        let (umem, mut free) = Umem::in_memory(2);
        for number in 0..3 {
            assert!(producer.enqueue(&[number; 60]));
        }
        let mut out = Vec::new();
        assert_eq!(receive_ends[0].dequeue(&umem, &mut free, &mut out, 64), 2);
        assert_eq!(receive_ends[0].dequeue(&umem, &mut free, &mut out, 64), 0);
        assert!(!receive_ends[0].is_empty());
        free.append(&mut out);
        assert_eq!(receive_ends[0].dequeue(&umem, &mut free, &mut out, 64), 1);
        assert_eq!(umem.data(&out[0]), [2; 60]);
    }

    #[test]
    fn a_packet_longer_than_the_ports_frames_is_not_taken_and_keeps_no_place() {
        let (mut producer, receive_ends) = queue();
        assert!(!producer.enqueue(&[0; 1519]));
        assert_eq!(producer.credit(), producer.transmit_end.capacity());
        assert!(producer.enqueue(&[0; 1518]));
        assert!(!receive_ends[0].is_empty());
    }

    #[test]
    fn one_thread_gives_and_another_takes_and_every_packet_arrives_once() {
        let (mut producer, receive_ends) = queue();
        let (umem, mut free) = Umem::in_memory(64);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..PACKETS {
                    while !producer.enqueue(&number.to_ne_bytes()) {
                        std::thread::yield_now();
                    }
                }
            });
            let (mut out, mut expected) = (Vec::new(), 0);
            while expected < PACKETS {
                if receive_ends[0].dequeue(&umem, &mut free, &mut out, 64) == 0 {
                    std::thread::yield_now();
                }
                for frame in out.drain(..) {
                    assert_eq!(umem.data(&frame), expected.to_ne_bytes());
                    expected += 1;
                    free.push(frame);
                }
            }
        });
        assert_eq!((producer.credit(), free.len()), (producer.transmit_end.capacity(), 64));
    }
}
