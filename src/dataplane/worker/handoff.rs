//! How frames get to a port that has fewer queues than the switch has workers.
//!
//! A worker without a queue of the port hands what it forwards there to one that has: worker `w` to worker `w` modulo the number
//! of queues. UMEMs are a worker's own, so the bytes are copied: into a parcel of the lane between the two, and from there into
//! a frame of the other UMEM. The parcels are made with the lane and go round in it. A lane has one giver: what it finds empty
//! stays its own to fill, so that a frame is counted as forwarded only when it has a place. A packet of several frames takes as many
//! parcels, which go together.

use std::sync::Arc;

use crossbeam::queue::ArrayQueue;

use crate::ids::WorkerId;
use crate::limits::{
    FRAME_BYTES, HANDOVER_PARCELS_MAX, HANDOVER_PARCELS_MIN, MTU_OF_ONE_FRAME_MAX, MULTI_BUFFER_FRAMES_MAX,
    XDP_HEADROOM_BYTES,
};
use crate::net::ethernet;
use crate::xdp::{Frame, PortQueue, Umem};

/// Bytes of a frame as it leaves, with a tag.
const HEADER_BYTES: usize = ethernet::HEADER_BYTES + ethernet::TAG_BYTES;
/// Least MTU that a lane is made for: that of IPv6 (RFC 8200 section 5). What the switch itself asks fits into it as well.
const MTU_MIN: usize = 1280;

/// How a worker reaches a port.
#[allow(clippy::large_enum_variant)] // There are few, and the large one is the common one.
pub(crate) enum Access {
    /// By a queue of its own, by which it also sends what comes out of these lanes.
    Queue(PortQueue, ReceiveEnds),
    /// By another worker.
    TransmitEnd(TransmitEnd),
}

/// The receiving ends of the lanes to one worker and port.
pub(crate) type ReceiveEnds = Vec<Arc<HandoffQueue>>;

/// The giving end of a lane.
pub(crate) struct TransmitEnd {
    lane: Arc<HandoffQueue>,
    /// Who sends what is given.
    pub owner: WorkerId,
}

/// Frames on their way from one worker to a port of another's.
pub(crate) struct HandoffQueue {
    full: ArrayQueue<Box<Parcel>>,
    empty: ArrayQueue<Box<Parcel>>,
    /// Most frames of a packet.
    frames_max: usize,
}

/// A copy of one frame.
struct Parcel {
    bytes: Box<[u8]>,
    len: usize,
    /// The rest of a packet of several frames.
    rest: Option<Box<Parcel>>,
    /// Where a checksum is left to who sends it ([`Frame::leave_checksum`]).
    checksum_left: Option<(u16, u16)>,
}

/// How each of so many workers reaches a port with this MTU, of which the first ones have these queues.
///
/// Panics without any queue.
pub(crate) fn accesses(workers: usize, queues: Vec<PortQueue>, mtu: usize) -> Vec<Access> {
    let owners = queues.len();
    let mut accesses: Vec<Access> =
        queues.into_iter().map(|queue| Access::Queue(queue, Vec::new())).collect();
    for giver in owners..workers {
        let parcels = (HANDOVER_PARCELS_MAX / (workers - owners)).max(HANDOVER_PARCELS_MIN);
        let lane = Arc::new(HandoffQueue::new(parcels, mtu));
        let owner = giver % owners;
        if let Access::Queue(_, inlets) = &mut accesses[owner] {
            inlets.push(lane.clone());
        }
        accesses.push(Access::TransmitEnd(TransmitEnd { lane, owner: WorkerId(owner as u16) }));
    }
    accesses
}

impl TransmitEnd {
    /// Frames that it certainly takes.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.lane.empty.len()
    }

    /// Frames that it takes while nothing is on its way.
    pub(crate) fn capacity(&self) -> usize {
        self.lane.empty.capacity()
    }

    /// Gives a copy of the packet, which lies in these frames of `umem`, to the owner; false where there is no room for it.
    #[inline]
    pub(crate) fn give(&self, umem: &Umem, packet: &Frame) -> bool {
        let lane = &*self.lane;
        // The giver alone takes empty ones.
        if packet.frames() > lane.frames_max.min(self.room()) {
            return false;
        }
        let Some(mut first) = lane.fill(umem.data(packet)) else { return false };
        first.checksum_left = packet.checksum_left();
        let mut last = &mut first.rest;
        for part in umem.rest(packet) {
            match lane.fill(part) {
                Some(parcel) => last = &mut last.insert(parcel).rest,
                None => return lane.put_back(first),
            }
        }
        // A lane has as many places in each queue as it has parcels.
        lane.full.push(first).is_ok()
    }
}

impl HandoffQueue {
    fn new(parcels: usize, mtu: usize) -> HandoffQueue {
        let bytes = (mtu.max(MTU_MIN) + HEADER_BYTES).min(FRAME_BYTES - XDP_HEADROOM_BYTES);
        let frames_max = if mtu > MTU_OF_ONE_FRAME_MAX { MULTI_BUFFER_FRAMES_MAX } else { 1 };
        let lane =
            HandoffQueue { full: ArrayQueue::new(parcels), empty: ArrayQueue::new(parcels), frames_max };
        for _ in 0..parcels {
            let parcel = Parcel { bytes: vec![0; bytes].into(), len: 0, rest: None, checksum_left: None };
            let _ = lane.empty.push(Box::new(parcel));
        }
        lane
    }

    /// An empty parcel with these bytes; `None` where there is none, or they are too many.
    #[inline]
    fn fill(&self, bytes: &[u8]) -> Option<Box<Parcel>> {
        let mut parcel = self.empty.pop()?;
        if bytes.len() > parcel.bytes.len() {
            let _ = self.empty.push(parcel);
            return None;
        }
        parcel.bytes[..bytes.len()].copy_from_slice(bytes);
        parcel.len = bytes.len();
        Some(parcel)
    }

    /// Puts the parcels of a packet back to the empty ones. False: it was not given.
    #[cold]
    fn put_back(&self, first: Box<Parcel>) -> bool {
        let mut next = Some(first);
        while let Some(mut parcel) = next {
            next = parcel.rest.take();
            let _ = self.empty.push(parcel);
        }
        false
    }

    /// Whether nothing is on its way.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.full.is_empty()
    }

    /// Moves packets into frames from the end of `free`, up to `max` frames, and these to `out`. Returns the number of frames.
    #[inline]
    pub(crate) fn take(&self, umem: &Umem, free: &mut Vec<Frame>, out: &mut Vec<Frame>, max: usize) -> usize {
        let mut taken = 0;
        // How many the next packet takes is not known before it is taken.
        while taken + self.frames_max <= max && free.len() >= self.frames_max {
            let Some(first) = self.full.pop() else { break };
            let frame = self.unpack(first, umem, free);
            taken += frame.as_ref().map_or(0, Frame::frames);
            out.extend(frame);
        }
        taken
    }

    /// Moves a packet into free frames, and its parcels to the empty ones.
    #[inline]
    fn unpack(&self, mut first: Box<Parcel>, umem: &Umem, free: &mut Vec<Frame>) -> Option<Frame> {
        let mut packet = first.to_frame(umem, free)?;
        if let Some((start, field)) = first.checksum_left {
            packet.leave_checksum(start.into(), field.into());
        }
        let mut next = first.rest.take();
        let _ = self.empty.push(first);
        while let Some(mut parcel) = next {
            let appended = umem.append(&mut packet, parcel.to_frame(umem, free)?);
            debug_assert!(appended.is_ok(), "it was a packet in the other UMEM");
            free.extend(appended.err());
            next = parcel.rest.take();
            let _ = self.empty.push(parcel);
        }
        Some(packet)
    }
}

impl Parcel {
    /// A free frame with its bytes.
    #[inline]
    fn to_frame(&self, umem: &Umem, free: &mut Vec<Frame>) -> Option<Frame> {
        let mut frame = free.pop()?;
        let written = umem.write(&mut frame, &self.bytes[..self.len]);
        debug_assert!(written.is_ok(), "a parcel fits into a frame");
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

    /// Who gives, from frames of a UMEM of its own.
    struct Giver {
        outlet: TransmitEnd,
        umem: Umem,
        packet: Frame,
    }

    impl Giver {
        fn give(&mut self, packet: &[u8]) -> bool {
            self.umem.write(&mut self.packet, packet).unwrap();
            self.outlet.give(&self.umem, &self.packet)
        }

        fn room(&self) -> usize {
            self.outlet.room()
        }
    }

    fn lane() -> (Giver, ReceiveEnds) {
        let mut both = access(2, 1, 1500).into_iter();
        let (Some(Access::Queue(_, inlets)), Some(Access::TransmitEnd(outlet))) = (both.next(), both.next())
        else {
            panic!("the first worker has the queue")
        };
        let (umem, mut frames) = Umem::in_memory(1);
        (Giver { outlet, umem, packet: frames.remove(0) }, inlets)
    }

    #[test]
    fn every_worker_without_a_queue_has_one_owner_and_each_owner_hears_from_all_of_its_own() {
        for (workers, queues) in [(1, 1), (2, 1), (5, 2), (4, 4), (64, 7)] {
            let accesses = access(workers, queues, 1500);
            assert_eq!(accesses.len(), workers);
            let mut given = vec![0; queues];
            for (worker, access) in accesses.iter().enumerate() {
                match access {
                    Access::Queue(..) => assert!(worker < queues),
                    Access::TransmitEnd(outlet) => {
                        assert_eq!(outlet.owner.index(), worker % queues);
                        given[worker % queues] += 1;
                    }
                }
            }
            for (access, given) in accesses.iter().zip(given) {
                let Access::Queue(_, inlets) = access else { panic!("owners come first") };
                assert_eq!(inlets.len(), given);
            }
        }
    }

    #[test]
    fn packets_come_out_whole_and_in_order_and_never_more_than_were_promised_places() {
        let (mut giver, inlets) = lane();
        let (umem, mut free) = Umem::in_memory(1024);
        assert_eq!(giver.room(), HANDOVER_PARCELS_MAX);
        let packet = |number: usize| vec![number as u8; 60 + number];
        for number in 0..HANDOVER_PARCELS_MAX {
            assert!(giver.give(&packet(number)));
        }
        assert!(!giver.give(b"one too many"));
        assert_eq!(giver.room(), 0);
        let mut out = Vec::new();
        assert_eq!(inlets[0].take(&umem, &mut free, &mut out, 64), 64);
        assert_eq!(giver.room(), 64);
        while inlets[0].take(&umem, &mut free, &mut out, 64) > 0 {}
        assert!(inlets[0].is_empty());
        assert_eq!((out.len(), free.len()), (HANDOVER_PARCELS_MAX, 1024 - HANDOVER_PARCELS_MAX));
        for (number, frame) in out.iter().enumerate() {
            assert_eq!(umem.data(frame), packet(number));
        }
        assert_eq!(giver.room(), giver.outlet.capacity());
    }

    /// The packet of a frame and those behind it.
    fn bytes(umem: &Umem, packet: &Frame) -> Vec<u8> {
        std::iter::once(umem.data(packet)).chain(umem.rest(packet)).collect::<Vec<_>>().concat()
    }

    #[test]
    fn a_packet_of_several_frames_comes_out_whole_or_not_yet_or_is_not_taken() {
        let mut both = access(2, 1, MTU_MAX).into_iter();
        let (Some(Access::Queue(_, inlets)), Some(Access::TransmitEnd(outlet))) = (both.next(), both.next())
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
        assert!(outlet.give(&theirs, &long) && outlet.give(&theirs, &short));
        assert_eq!(outlet.capacity() - outlet.room(), MULTI_BUFFER_FRAMES_MAX + 3);
        let (umem, mut free) = Umem::in_memory(MULTI_BUFFER_FRAMES_MAX + 2);
        let (mut out, mut early) = (Vec::new(), Vec::new());
        assert_eq!(inlets[0].take(&umem, &mut free, &mut out, MULTI_BUFFER_FRAMES_MAX - 1), 0);
        assert_eq!(inlets[0].take(&umem, &mut free, &mut out, 64), MULTI_BUFFER_FRAMES_MAX);
        assert_eq!(bytes(&umem, &out[0]), bytes(&theirs, &long));
        assert_eq!(inlets[0].take(&umem, &mut free, &mut early, 64), 0, "it might be as long");
        umem.release(out.remove(0), &mut free);
        assert_eq!(inlets[0].take(&umem, &mut free, &mut out, 64), 3);
        assert_eq!(bytes(&umem, &out[0]), bytes(&theirs, &short));
        assert_eq!((free.len(), outlet.room()), (MULTI_BUFFER_FRAMES_MAX - 1, outlet.capacity()));
        while outlet.room() >= MULTI_BUFFER_FRAMES_MAX {
            assert!(outlet.give(&theirs, &long));
        }
        let room = outlet.room();
        assert!(room > 0 && !outlet.give(&theirs, &long), "half a packet has no place");
        assert_eq!(outlet.room(), room);
        let (plain, _) = lane();
        assert!(!plain.outlet.give(&theirs, &short), "that port takes one frame a packet");
        assert_eq!(plain.room(), plain.outlet.capacity());
    }

    #[test]
    fn what_the_owner_has_no_frame_for_waits() {
        let (mut giver, inlets) = lane();
        let (umem, mut free) = Umem::in_memory(2);
        for number in 0..3 {
            assert!(giver.give(&[number; 60]));
        }
        let mut out = Vec::new();
        assert_eq!(inlets[0].take(&umem, &mut free, &mut out, 64), 2);
        assert_eq!(inlets[0].take(&umem, &mut free, &mut out, 64), 0);
        assert!(!inlets[0].is_empty());
        free.append(&mut out);
        assert_eq!(inlets[0].take(&umem, &mut free, &mut out, 64), 1);
        assert_eq!(umem.data(&out[0]), [2; 60]);
    }

    #[test]
    fn a_packet_longer_than_the_ports_frames_is_not_taken_and_keeps_no_place() {
        let (mut giver, inlets) = lane();
        assert!(!giver.give(&[0; 1519]));
        assert_eq!(giver.room(), giver.outlet.capacity());
        assert!(giver.give(&[0; 1518]));
        assert!(!inlets[0].is_empty());
    }

    #[test]
    fn one_thread_gives_and_another_takes_and_every_packet_arrives_once() {
        let (mut giver, inlets) = lane();
        let (umem, mut free) = Umem::in_memory(64);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..PACKETS {
                    while !giver.give(&number.to_ne_bytes()) {
                        std::thread::yield_now();
                    }
                }
            });
            let (mut out, mut expected) = (Vec::new(), 0);
            while expected < PACKETS {
                if inlets[0].take(&umem, &mut free, &mut out, 64) == 0 {
                    std::thread::yield_now();
                }
                for frame in out.drain(..) {
                    assert_eq!(umem.data(&frame), expected.to_ne_bytes());
                    expected += 1;
                    free.push(frame);
                }
            }
        });
        assert_eq!((giver.room(), free.len()), (giver.outlet.capacity(), 64));
    }
}
