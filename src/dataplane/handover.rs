//! How frames get to a port that has fewer queues than the switch has workers.
//!
//! A worker without a queue of the port hands what it forwards there to one that has: worker `w` to worker `w` modulo the number
//! of queues. UMEMs are a worker's own, so the bytes are copied: into a parcel of the lane between the two, and from there into
//! a frame of the other UMEM. The parcels are made with the lane and go round in it. A lane has one giver: what it finds empty
//! stays its own to fill, so that a frame is counted as forwarded only when it has a place.

use std::sync::Arc;

use crossbeam::queue::ArrayQueue;

use crate::ids::WorkerId;
use crate::limits::{HANDOVER_PARCELS_MAX, HANDOVER_PARCELS_MIN, MTU_OF_ONE_FRAME_MAX};
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
    Queue(PortQueue, Inlets),
    /// By another worker.
    Outlet(Outlet),
}

/// The receiving ends of the lanes to one worker and port.
pub(crate) type Inlets = Vec<Arc<Lane>>;

/// The giving end of a lane.
pub(crate) struct Outlet {
    lane: Arc<Lane>,
    /// Who sends what is given.
    pub owner: WorkerId,
}

/// Frames on their way from one worker to a port of another's.
pub(crate) struct Lane {
    full: ArrayQueue<Parcel>,
    empty: ArrayQueue<Parcel>,
}

/// A copy of one frame.
struct Parcel {
    bytes: Box<[u8]>,
    len: usize,
    /// Where a checksum is left to who sends it ([`Frame::leave_checksum`]).
    checksum_left: Option<(u16, u16)>,
}

/// The MTU of a port whose interface has this one: what is handed over must lie in one frame.
pub(crate) fn mtu(mtu: usize, queues: usize, workers: usize) -> usize {
    if queues < workers { mtu.min(MTU_OF_ONE_FRAME_MAX) } else { mtu }
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
        let lane = Arc::new(Lane::new(parcels, mtu.max(MTU_MIN) + HEADER_BYTES));
        let owner = giver % owners;
        if let Access::Queue(_, inlets) = &mut accesses[owner] {
            inlets.push(lane.clone());
        }
        accesses.push(Access::Outlet(Outlet { lane, owner: WorkerId(owner as u16) }));
    }
    accesses
}

impl Outlet {
    /// Frames that it certainly takes.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.lane.empty.len()
    }

    /// Frames that it takes while nothing is on its way.
    pub(crate) fn capacity(&self) -> usize {
        self.lane.empty.capacity()
    }

    /// Gives a copy of the packet to the owner; false where there is no room for it.
    #[inline]
    pub(crate) fn give(&self, packet: &[u8], checksum_left: Option<(u16, u16)>) -> bool {
        let Some(mut parcel) = self.lane.empty.pop() else { return false };
        let fits = packet.len() <= parcel.bytes.len();
        if fits {
            parcel.bytes[..packet.len()].copy_from_slice(packet);
            (parcel.len, parcel.checksum_left) = (packet.len(), checksum_left);
        }
        // A lane has as many places in each queue as it has parcels.
        let _ = if fits { self.lane.full.push(parcel) } else { self.lane.empty.push(parcel) };
        fits
    }
}

impl Lane {
    fn new(parcels: usize, bytes: usize) -> Lane {
        let lane = Lane { full: ArrayQueue::new(parcels), empty: ArrayQueue::new(parcels) };
        for _ in 0..parcels {
            let _ = lane.empty.push(Parcel { bytes: vec![0; bytes].into(), len: 0, checksum_left: None });
        }
        lane
    }

    /// Whether nothing is on its way.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.full.is_empty()
    }

    /// Moves up to `max` packets into frames from the end of `free`, and these to `out`. Returns their number.
    #[inline]
    pub(crate) fn take(&self, umem: &Umem, free: &mut Vec<Frame>, out: &mut Vec<Frame>, max: usize) -> usize {
        let mut taken = 0;
        while taken < max && !free.is_empty() {
            let Some(parcel) = self.full.pop() else { break };
            let frame = free.pop().map(|mut frame| {
                let written = umem.write(&mut frame, &parcel.bytes[..parcel.len]);
                debug_assert!(written.is_ok(), "an MTU's worth fits into a frame");
                if let Some((start, field)) = parcel.checksum_left {
                    frame.leave_checksum(start.into(), field.into());
                }
                frame
            });
            out.extend(frame);
            let _ = self.empty.push(parcel);
            taken += 1;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PortId;

    const PACKETS: u32 = 20_000;

    fn access(workers: usize, queues: usize) -> Vec<Access> {
        let (umem, _) = Umem::in_memory(1);
        let queue = |_| PortQueue::memory(&umem.binder(), PortId(0)).unwrap().0;
        accesses(workers, (0..queues).map(queue).collect(), 1500)
    }

    fn lane() -> (Outlet, Inlets) {
        let mut both = access(2, 1).into_iter();
        let (Some(Access::Queue(_, inlets)), Some(Access::Outlet(outlet))) = (both.next(), both.next())
        else {
            panic!("the first worker has the queue")
        };
        (outlet, inlets)
    }

    #[test]
    fn every_worker_without_a_queue_has_one_owner_and_each_owner_hears_from_all_of_its_own() {
        for (workers, queues) in [(1, 1), (2, 1), (5, 2), (4, 4), (64, 7)] {
            let accesses = access(workers, queues);
            assert_eq!(accesses.len(), workers);
            let mut given = vec![0; queues];
            for (worker, access) in accesses.iter().enumerate() {
                match access {
                    Access::Queue(..) => assert!(worker < queues),
                    Access::Outlet(outlet) => {
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
        let (outlet, inlets) = lane();
        let (umem, mut free) = Umem::in_memory(1024);
        assert_eq!(outlet.room(), HANDOVER_PARCELS_MAX);
        let packet = |number: usize| vec![number as u8; 60 + number];
        for number in 0..HANDOVER_PARCELS_MAX {
            assert!(outlet.give(&packet(number), None));
        }
        assert!(!outlet.give(b"one too many", None));
        assert_eq!(outlet.room(), 0);
        let mut out = Vec::new();
        assert_eq!(inlets[0].take(&umem, &mut free, &mut out, 64), 64);
        assert_eq!(outlet.room(), 64);
        while inlets[0].take(&umem, &mut free, &mut out, 64) > 0 {}
        assert!(inlets[0].is_empty());
        assert_eq!((out.len(), free.len()), (HANDOVER_PARCELS_MAX, 1024 - HANDOVER_PARCELS_MAX));
        for (number, frame) in out.iter().enumerate() {
            assert_eq!(umem.data(frame), packet(number));
        }
        assert_eq!(outlet.room(), outlet.capacity());
    }

    #[test]
    fn what_the_owner_has_no_frame_for_waits() {
        let (outlet, inlets) = lane();
        let (umem, mut free) = Umem::in_memory(2);
        for number in 0..3 {
            assert!(outlet.give(&[number; 60], None));
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
        let (outlet, inlets) = lane();
        assert!(!outlet.give(&[0; 1519], None));
        assert_eq!(outlet.room(), outlet.capacity());
        assert!(outlet.give(&[0; 1518], None));
        assert!(!inlets[0].is_empty());
    }

    #[test]
    fn one_thread_gives_and_another_takes_and_every_packet_arrives_once() {
        let (outlet, inlets) = lane();
        let (umem, mut free) = Umem::in_memory(64);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..PACKETS {
                    while !outlet.give(&number.to_ne_bytes(), None) {
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
        assert_eq!((outlet.room(), free.len()), (outlet.capacity(), 64));
    }
}
