//! Packets of several frames.
//!
//! The kernel cuts a packet that is longer than a frame into several descriptors, and says of each but the last that the
//! packet goes on (`XDP_PKT_CONTD` of `linux/if_xdp.h`). Here they become a chain, and one token: that of the head, which
//! says how many follow, and a word for each frame says which one is next and where its part of the packet lies. Packets
//! of one frame, as nearly all are, know nothing of it.

use std::iter;
use std::sync::atomic::{AtomicU64, Ordering};

use super::frame::{CONTINUED, DoesNotFit, Frame, PACKET_ROOM};
use super::frame_ownership::{Account, Way};
use super::umem::Umem;
use super::umem_area::Region;
use crate::limits::{CHAIN_FRAMES_MAX, PACKET_BYTES_MAX};

/// Most descriptors that are looked at as one packet; of more, each so many are dropped as one. A bound for a kernel that is at fault.
const PARTS_MAX: usize = 64;
/// Longest header that is put before a packet whose head is full.
const PUSH_MAX: usize = 8;

/// By frame, the descriptor of the next one in its chain; of a frame that no other follows, anything.
///
/// Whoever has a chain's token may read and write the words of its frames. Tokens pass from thread to thread through
/// rings, which order the accesses.
pub(super) struct Links(Box<[AtomicU64]>);

impl Links {
    pub(super) fn new(frames: usize) -> Links {
        Links(iter::repeat_with(AtomicU64::default).take(frames).collect())
    }

    fn next(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::Relaxed)
    }

    fn set_next(&self, index: usize, descriptor: u64) {
        self.0[index].store(descriptor, Ordering::Relaxed);
    }
}

impl Region {
    /// The frames behind the head of a chain, in order. The tokens are views: they are not to go anywhere unless the
    /// head's token is given up for them.
    pub(super) fn followers(&self, head: &Frame) -> impl Iterator<Item = Frame> + use<'_> {
        self.check(head);
        let mut at = head.index();
        (1..head.frames()).map(move |_| {
            let next = Frame::from_descriptor(self.id(), self.links().next(at));
            at = next.index();
            next
        })
    }

    /// Makes one packet of frames, in order, the first of which is `head`. With `whole` false, one to be dropped.
    fn link(&self, head: &mut Frame, followers: &[u64], whole: bool) {
        let (mut at, mut tail) = (head.index(), 0);
        for descriptor in followers {
            self.links().set_next(at, *descriptor);
            let next = Frame::from_descriptor(self.id(), *descriptor);
            (at, tail) = (next.index(), tail + next.head_len());
        }
        head.lead(followers.len(), whole.then_some(tail));
    }

    /// Takes off a chain the frames that hold nothing of the packet since it was cut, and gives them to `free`.
    pub(super) fn trim(&self, head: &mut Frame, mut free: impl FnMut(Frame)) {
        let (mut at, mut kept, mut left) = (head.index(), 0, head.len() - head.head_len());
        let (mut used, frames) = (0, head.frames());
        let mut next = self.links().next(at);
        for _ in 1..frames {
            let mut frame = Frame::from_descriptor(self.id(), next);
            let after = self.links().next(frame.index());
            if left == 0 {
                free(Frame::new(self.id(), frame.index() as u32));
            } else {
                frame.truncate(left);
                left -= frame.head_len();
                self.links().set_next(at, frame.descriptor());
                (at, kept, used) = (frame.index(), kept + 1, used + frame.head_len());
            }
            next = after;
        }
        head.lead(kept, Some(used));
    }

    /// The packet's bytes in the frames behind the head.
    pub(super) fn rest<'a>(&'a self, head: &'a Frame) -> impl Iterator<Item = &'a [u8]> {
        let mut left = head.len() - head.head_len();
        self.followers(head).map_while(move |mut frame| {
            frame.truncate(left);
            left -= frame.head_len();
            // SAFETY: the token of the chain is borrowed as long as the bytes are, so nobody writes them.
            (!frame.is_empty()).then(|| unsafe { self.view(&frame) })
        })
    }

    /// Lets the packet of a chain begin `bytes` earlier where the head has no room for them: the end of each frame moves
    /// to the beginning of the next, up to the last one, which must have room.
    #[cold]
    fn push_back(&self, head: &mut Frame, bytes: usize) -> Result<(), DoesNotFit> {
        let room = self.room_at_end(head).min(PUSH_MAX);
        if bytes > room || head.head_len() < bytes {
            return Err(DoesNotFit { needed: bytes, room });
        }
        let mut left = head.len() - head.head_len();
        let mut carry = [0; PUSH_MAX];
        let mut carried = self.cut_end(head, &mut carry[..bytes]);
        head.lengthen_tail(carried);
        let mut at = head.index();
        while carried > 0 {
            let mut frame = Frame::from_descriptor(self.id(), self.links().next(at));
            frame.truncate(left);
            left -= frame.head_len();
            let mut cut = [0; PUSH_MAX];
            let cut_bytes = if left > 0 { self.cut_end(&mut frame, &mut cut[..bytes]) } else { 0 };
            self.settle(&mut frame);
            let len = frame.head_len();
            frame.set_len(len + carried)?;
            let packet = self.bytes_mut(&mut frame);
            packet.copy_within(..len, carried);
            packet[..carried].copy_from_slice(&carry[..carried]);
            (carry, carried) = (cut, cut_bytes);
            self.links().set_next(at, frame.descriptor());
            at = frame.index();
        }
        head.grow_head(bytes)
    }

    /// Bytes that the frame in which the packet of a chain ends has left, or the one behind the head where it ends there.
    fn room_at_end(&self, head: &Frame) -> usize {
        let (mut left, mut room) = (head.len() - head.head_len(), 0);
        for mut frame in self.followers(head) {
            frame.truncate(left);
            left -= frame.head_len();
            room = PACKET_ROOM - frame.head_len();
            if left == 0 {
                break;
            }
        }
        room
    }

    /// Cuts the last bytes of a frame's part of a packet off, as many as `out` takes, and puts them there.
    fn cut_end(&self, frame: &mut Frame, out: &mut [u8]) -> usize {
        let kept = frame.head_len().saturating_sub(out.len());
        let bytes = self.bytes_mut(frame);
        let cut = bytes.len() - kept;
        out[..cut].copy_from_slice(&bytes[kept..]);
        frame.shorten(cut);
        cut
    }
}

impl Umem {
    /// Gives the frames that a token stands for to `free`, each as a token of its own.
    #[inline]
    pub fn release(&self, frame: Frame, free: &mut Vec<Frame>) {
        if frame.is_chain() {
            return self.release_chain(&frame, free);
        }
        free.push(frame);
    }

    #[cold]
    #[inline(never)]
    fn release_chain(&self, head: &Frame, free: &mut Vec<Frame>) {
        let (region, id) = (&self.region, self.region.id());
        free.extend(region.followers(head).map(|frame| Frame::new(id, frame.index() as u32)));
        free.push(Frame::new(id, head.index() as u32));
    }

    /// Gives the frames of a chain that hold nothing of its packet since it was cut to `free`. To be done before the
    /// packet is transmitted.
    #[inline]
    pub fn trim(&self, frame: &mut Frame, free: &mut Vec<Frame>) {
        if frame.is_chain() {
            self.region.trim(frame, |surplus| free.push(surplus));
        }
    }

    /// Lets a packet go on in one more frame; gives that back where the packet would have too many frames or bytes.
    pub fn append(&self, packet: &mut Frame, last: Frame) -> Result<(), Frame> {
        let mut followers = [0; CHAIN_FRAMES_MAX - 1];
        let before = packet.frames() - 1;
        let is_too_much = packet.len() + last.len() > PACKET_BYTES_MAX;
        if is_too_much || last.is_chain() || before >= followers.len() {
            return Err(last);
        }
        for (place, frame) in followers.iter_mut().zip(self.region.followers(packet)) {
            *place = frame.descriptor();
        }
        followers[before] = last.descriptor();
        self.region.link(packet, &followers[..=before], true);
        Ok(())
    }

    /// The packet's bytes that [`data`](Umem::data) does not show, in the frames behind the head, in order.
    pub fn rest<'a>(&'a self, frame: &'a Frame) -> impl Iterator<Item = &'a [u8]> {
        self.region.rest(frame)
    }

    /// Lets the packet begin `bytes` earlier: room for a header. Where its first frame is full, the packet moves on; where all
    /// are, into one of `free`.
    #[inline]
    pub fn grow_head(
        &self,
        frame: &mut Frame,
        bytes: usize,
        free: &mut Vec<Frame>,
    ) -> Result<(), DoesNotFit> {
        match frame.grow_head(bytes) {
            Err(DoesNotFit { .. }) => self.grow_full_head(frame, bytes, free),
            result => result,
        }
    }

    #[cold]
    #[inline(never)]
    fn grow_full_head(
        &self,
        packet: &mut Frame,
        bytes: usize,
        free: &mut Vec<Frame>,
    ) -> Result<(), DoesNotFit> {
        if packet.is_chain() && self.region.push_back(packet, bytes).is_ok() {
            return Ok(());
        }
        let was_chain = packet.is_chain();
        self.move_end(packet, bytes, free)?;
        if was_chain { self.region.push_back(packet, bytes) } else { packet.grow_head(bytes) }
    }

    /// Moves the last bytes of a packet to a free frame, behind the others.
    fn move_end(&self, packet: &mut Frame, bytes: usize, free: &mut Vec<Frame>) -> Result<(), DoesNotFit> {
        self.trim(packet, free);
        let last = self.rest(packet).last().unwrap_or_else(|| self.data(packet));
        let is_movable = bytes <= PUSH_MAX.min(packet.head_len()) && bytes < last.len();
        let (true, true, Some(mut end)) = (is_movable, packet.frames() < CHAIN_FRAMES_MAX, free.pop()) else {
            return Err(DoesNotFit { needed: bytes, room: 0 });
        };
        self.write(&mut end, &last[last.len() - bytes..])?;
        packet.truncate(packet.len() - bytes);
        self.trim(packet, free);
        self.append(packet, end).map_err(|end| {
            free.push(end);
            DoesNotFit { needed: bytes, room: 0 }
        })
    }
}

/// Makes packets of the descriptors of a ring.
#[derive(Default)]
pub(super) struct Assembler {
    /// Of a packet whose end has not come. Their frames are lent still, so that nothing is lost when the queue closes.
    parts: Vec<u64>,
    /// Whether the packet is none: parts of it were dropped or refused already.
    broken: bool,
}

/// What came out of a ring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// Packets.
    pub(super) packets: usize,
    /// Frames of those.
    pub(super) frames: usize,
    /// Descriptors that name no frame lent by this way: nothing came of them.
    pub(super) refused: usize,
}

impl Assembler {
    pub(super) fn new() -> Assembler {
        Assembler { parts: Vec::with_capacity(PARTS_MAX), broken: false }
    }

    /// Whether the next descriptor is the first of a packet.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.parts.is_empty() & !self.broken
    }

    /// Takes one descriptor of a received packet of several; with the last one the packet goes to `out`.
    #[cold]
    #[inline(never)]
    pub(super) fn add(
        &mut self,
        umem: &mut Umem,
        account: Account,
        descriptor: u64,
        out: &mut Vec<Frame>,
    ) -> Taken {
        self.parts.push(descriptor & !CONTINUED);
        let is_last = descriptor & CONTINUED == 0;
        if !is_last && self.parts.len() < PARTS_MAX {
            return Taken::default();
        }
        let refused = self.strike_out(umem, account);
        self.broken |= refused > 0 || !is_last;
        let taken = self.join(umem, refused, out);
        self.broken = !is_last;
        taken
    }

    /// Strikes the frames out of the ledger, and forgets the descriptors that name none; their number.
    fn strike_out(&mut self, umem: &mut Umem, account: Account) -> usize {
        let before = self.parts.len();
        self.parts.retain(|part| umem.ledger.take_back(*part as u32 as usize, account, Way::Receive));
        before - self.parts.len()
    }

    fn join(&mut self, umem: &Umem, refused: usize, out: &mut Vec<Frame>) -> Taken {
        let frames = self.parts.len();
        for part in &mut self.parts {
            let mut frame = Frame::from_descriptor(umem.region.id(), *part);
            let fits = frame.place(frame.headroom(), frame.head_len()) && !frame.is_empty();
            self.broken |= !fits;
            *part = frame.descriptor();
        }
        let Some((first, followers)) = self.parts.split_first() else {
            return Taken { refused, ..Taken::default() };
        };
        // Struck out of the ledger, which had them because their tokens were given up: these are the only ones.
        let mut head = Frame::from_descriptor(umem.region.id(), *first);
        umem.region.link(&mut head, followers, !self.broken);
        out.push(head);
        self.parts.clear();
        Taken { packets: 1, frames, refused }
    }
}

/// How many of the packets, from the front, take `room` descriptors together at most, and how many they take.
#[inline]
pub(super) fn fitting(frames: &[Frame], room: usize) -> (usize, usize) {
    let (mut packets, mut used) = (0, 0);
    for frame in frames {
        if used + frame.frames() > room {
            break;
        }
        (packets, used) = (packets + 1, used + frame.frames());
    }
    (packets, used)
}

impl std::ops::AddAssign for Taken {
    #[inline]
    fn add_assign(&mut self, other: Taken) {
        self.packets += other.packets;
        self.frames += other.frames;
        self.refused += other.refused;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::{MemoryPeer, PortQueue};
    use super::*;
    use crate::ids::PortId;
    use crate::limits::RING_SLOTS;

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

        /// With so many frames that are not the queue's.
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
            assert!(self.free.iter().all(|frame| !frame.is_chain()));
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
        for number in 1..CHAIN_FRAMES_MAX {
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
        let account = bench.umem.binder().open_account().unwrap();
        let (mut assembler, mut out) = (Assembler::new(), Vec::new());
        for frame in bench.free.drain(..) {
            bench.umem.ledger.lend(frame.index(), account, Way::Receive);
        }
        bench.queue.receive(&mut bench.umem, &mut out, 8);
        let part = |index: u64, offset: u64, len: u64| index | offset << 32 | len << 48;
        // None of these frames is lent to this account: the queue's refill took them.
        let foreign = [part(0, 256, 3840) | CONTINUED, part(1, 256, 10)];
        let taken: Vec<_> =
            foreign.map(|word| assembler.add(&mut bench.umem, account, word, &mut out)).into_iter().collect();
        assert_eq!(taken[1], Taken { packets: 0, frames: 0, refused: 2 });
        assert!(out.is_empty() && assembler.is_idle());
        bench.check(vec![]);
    }

    #[test]
    fn a_chain_without_an_end_is_dropped_in_pieces_and_no_frame_is_lost() {
        let (mut umem, free) = Umem::in_memory(PARTS_MAX + 4);
        let account = umem.binder().open_account().unwrap();
        let descriptors: Vec<u64> = free.iter().map(Frame::descriptor).collect();
        for frame in free {
            umem.ledger.lend(frame.index(), account, Way::Receive);
        }
        let (mut assembler, mut out, mut taken) = (Assembler::new(), Vec::new(), Taken::default());
        for (number, descriptor) in descriptors.iter().enumerate() {
            let goes_on = number + 2 < descriptors.len();
            let word = (descriptor | 10 << 48) | if goes_on { CONTINUED } else { 0 };
            taken += assembler.add(&mut umem, account, word, &mut out);
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
}
