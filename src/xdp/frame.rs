//! The owned token of one UMEM frame, or of the chain of frames that one packet lies in.

use crate::limits::{FRAME_BYTES, MULTI_BUFFER_FRAMES_MAX, PACKET_BYTES_MAX, XDP_HEADROOM_BYTES};

/// One frame of a UMEM, and where the packet lies in it. Whoever has it, and nobody else, may touch the frame.
///
/// It cannot be copied, and only this module's UMEM makes one: so a frame cannot be in two rings. Dropping it loses the
/// frame for the life of the UMEM; give it to a ring or keep it.
///
/// A packet longer than a frame lies in a chain of them, of which this is the head: then the token is that of all. The
/// packet's headers lie in the head, and the bytes that [`Umem::data`](super::Umem::data) shows are the head's. The
/// others are found by the region's links ([`chain`](super::multi_buffer)).
#[must_use = "a dropped frame is lost to its UMEM: put it into a ring or onto the free list"]
#[derive(Debug)]
pub struct Frame {
    index: u32,
    umem: u32,
    offset: u16,
    /// Bytes in this frame.
    len: u16,
    /// Bytes of the packet in the other frames of the chain; [`OVERSIZED`] where the packet is none.
    tail: u16,
    /// Frames that follow in the chain, those counted that hold nothing of the packet any more.
    more: u8,
    /// Where a checksum is to be computed by who sends the packet: twice what is half the distance to the transport
    /// header, and one with the field where TCP has it; zero where nothing is left to do.
    unfinished: u8,
}

/// What a chain's head says of the others where all are longer than any packet, or not those that the kernel sent.
const OVERSIZED: u16 = u16::MAX;
/// Set in a frame's descriptor in a ring in memory where the packet goes on in the next one.
pub(super) const CONTINUED: u64 = 1 << 47;

/// A packet or a header does not fit into its frame. The frame is as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{needed} bytes do not fit where a frame has room for {room}")]
pub struct DoesNotFit {
    /// Bytes wanted.
    pub needed: usize,
    /// Bytes that there are.
    pub room: usize,
}

/// Largest packet of a frame, wherever it begins: what fits behind the headroom that the kernel keeps, because there
/// a packet must lie to be transmitted.
pub(super) const PACKET_ROOM: usize = FRAME_BYTES - XDP_HEADROOM_BYTES;

const _: () = assert!(FRAME_BYTES <= u16::MAX as usize, "offset and length of a frame are 16 bits");
const _: () = assert!(FRAME_BYTES < 1 << 15, "CONTINUED is the top bit of an offset");
const _: () =
    assert!(PACKET_BYTES_MAX <= OVERSIZED as usize, "a packet with a head of one byte is not oversized");
const _: () = assert!(MULTI_BUFFER_FRAMES_MAX <= u8::MAX as usize);

/// Where UDP (RFC 768) and TCP (RFC 9293) have their checksums.
const UDP_FIELD: usize = 6;
const TCP_FIELD: usize = 16;

impl Frame {
    /// The token of frame `index` of UMEM `umem`, empty. The caller answers for there being no other one.
    pub(super) fn new(umem: u32, index: u32) -> Frame {
        Frame { index, umem, offset: XDP_HEADROOM_BYTES as u16, len: 0, tail: 0, more: 0, unfinished: 0 }
    }

    /// The frame and its part of the packet in one word, for a ring in memory or a link of a chain.
    #[inline]
    pub(super) fn descriptor(&self) -> u64 {
        u64::from(self.index) | u64::from(self.offset) << 32 | u64::from(self.len) << 48
    }

    /// A token, of one frame, of what [`Frame::descriptor`] put into a word, of UMEM `umem`. The caller answers for there
    /// being no other one.
    #[inline]
    pub(super) fn from_descriptor(umem: u32, descriptor: u64) -> Frame {
        Frame {
            index: descriptor as u32,
            umem,
            offset: ((descriptor & !CONTINUED) >> 32) as u16,
            len: (descriptor >> 48) as u16,
            tail: 0,
            more: 0,
            unfinished: 0,
        }
    }

    /// Bytes of the packet, in all its frames.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.len) + usize::from(self.tail)
    }

    /// Bytes of the packet in this frame: all of them, unless the packet goes on in others.
    #[inline]
    pub fn head_len(&self) -> usize {
        usize::from(self.len)
    }

    /// Whether it holds no packet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Frames that the token stands for: one, or those of a chain.
    #[inline]
    pub fn frames(&self) -> usize {
        1 + usize::from(self.more)
    }

    /// Whether the token stands for more than one frame.
    #[inline]
    pub fn is_multi_buffer(&self) -> bool {
        self.more != 0
    }

    /// Whether its chain is longer than any packet, or parts of it were lost: to be dropped unread.
    #[inline]
    pub fn is_oversized(&self) -> bool {
        self.tail == OVERSIZED
    }

    /// Makes the token that of a chain: `more` frames follow it, with `tail` bytes; `None` where that is no packet.
    pub(super) fn lead(&mut self, more: usize, tail: Option<usize>) {
        let fits =
            |tail: &usize| usize::from(self.len) + tail <= PACKET_BYTES_MAX && more < MULTI_BUFFER_FRAMES_MAX;
        self.more = more as u8;
        (self.len, self.tail) = match tail.filter(fits) {
            Some(tail) => (self.len, tail as u16),
            None => (0, OVERSIZED),
        };
    }

    /// Leaves the Internet checksum of the transport header, which begins `start` bytes into the packet, to who sends the
    /// packet on ([`Umem::leaves_checksums`](super::Umem::leaves_checksums)). The field is `field` bytes into that header, and
    /// holds the sum over the pseudo-header. Whether it can be left: not where the header is too far in.
    #[inline]
    pub fn leave_checksum(&mut self, start: usize, field: usize) -> bool {
        let fits = start <= usize::from(u8::MAX - 1)
            && start.is_multiple_of(2)
            && matches!(field, UDP_FIELD | TCP_FIELD);
        if fits {
            self.unfinished = start as u8 | u8::from(field == TCP_FIELD);
        }
        fits
    }

    /// Where a checksum has been left to be computed: start of the sum, and field from there.
    #[inline]
    pub(crate) fn checksum_left(&self) -> Option<(u16, u16)> {
        let field = if self.unfinished & 1 == 0 { UDP_FIELD } else { TCP_FIELD };
        (self.unfinished != 0).then_some((u16::from(self.unfinished & !1), field as u16))
    }

    /// Bytes before the packet, for [`grow_head`](Frame::grow_head).
    #[inline]
    pub fn headroom(&self) -> usize {
        self.offset as usize
    }

    /// Cuts the packet's end off, so that at most `len` bytes stay.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.cut(len);
        }
    }

    #[cold]
    fn cut(&mut self, len: usize) {
        let head = len.min(self.head_len());
        (self.len, self.tail) = (head as u16, (len - head) as u16);
    }

    /// Takes `bytes` off this frame's part of the packet, wherever the rest goes.
    pub(super) fn shorten(&mut self, bytes: usize) {
        self.len -= bytes as u16;
    }

    /// Notes that the frames behind this one hold `bytes` more.
    pub(super) fn lengthen_tail(&mut self, bytes: usize) {
        self.tail += bytes as u16;
    }

    /// Sets the length of a packet that lies in this frame alone. Bytes added at its end are what the frame held there before.
    pub fn set_len(&mut self, len: usize) -> Result<(), DoesNotFit> {
        let room = PACKET_ROOM.min(FRAME_BYTES - self.headroom());
        if len > room {
            return Err(DoesNotFit { needed: len, room });
        }
        (self.len, self.tail) = (len as u16, 0);
        Ok(())
    }

    /// Lets the packet begin `bytes` earlier: room for a header, with what the frame held there before.
    pub fn grow_head(&mut self, bytes: usize) -> Result<(), DoesNotFit> {
        let room = self.headroom().min(PACKET_ROOM - self.head_len());
        if bytes > room {
            return Err(DoesNotFit { needed: bytes, room });
        }
        self.offset -= bytes as u16;
        self.len += bytes as u16;
        Ok(())
    }

    /// Lets the packet begin `bytes` later: takes a header off.
    pub fn shrink_head(&mut self, bytes: usize) -> Result<(), DoesNotFit> {
        if bytes > self.head_len() {
            return Err(DoesNotFit { needed: bytes, room: self.head_len() });
        }
        self.offset += bytes as u16;
        self.len -= bytes as u16;
        Ok(())
    }

    #[inline]
    pub(super) fn index(&self) -> usize {
        self.index as usize
    }

    #[inline]
    pub(super) fn umem(&self) -> u32 {
        self.umem
    }

    /// Places the packet: `false`, and an empty packet, where it would leave the frame.
    pub(super) fn place(&mut self, offset: usize, len: usize) -> bool {
        let fits = offset <= FRAME_BYTES && len <= PACKET_ROOM.min(FRAME_BYTES - offset);
        (self.offset, self.len) =
            if fits { (offset as u16, len as u16) } else { (XDP_HEADROOM_BYTES as u16, 0) };
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_takes_sixteen_bytes_at_most() {
        assert!(size_of::<Frame>() <= 16);
    }

    #[test]
    fn the_head_moves_within_the_frame_and_no_further() {
        let mut frame = Frame::new(1, 0);
        frame.set_len(60).unwrap();
        frame.grow_head(4).unwrap();
        assert_eq!((frame.headroom(), frame.len()), (252, 64));
        assert_eq!(frame.grow_head(253), Err(DoesNotFit { needed: 253, room: 252 }));
        frame.shrink_head(64).unwrap();
        assert!(frame.is_empty());
        assert_eq!(frame.shrink_head(1), Err(DoesNotFit { needed: 1, room: 0 }));
        assert_eq!(frame.headroom(), 316);
    }

    #[test]
    fn the_length_stays_within_the_frame() {
        let mut frame = Frame::new(1, 0);
        let room = FRAME_BYTES - XDP_HEADROOM_BYTES;
        frame.set_len(room).unwrap();
        assert_eq!(frame.set_len(room + 1), Err(DoesNotFit { needed: room + 1, room }));
        frame.truncate(usize::MAX);
        assert_eq!(frame.len(), room);
        frame.truncate(10);
        assert_eq!(frame.len(), 10);
    }

    #[test]
    fn a_packet_that_leaves_the_frame_is_placed_as_an_empty_one() {
        let mut frame = Frame::new(1, 0);
        assert!(frame.place(FRAME_BYTES, 0));
        assert!(frame.place(0, PACKET_ROOM));
        assert!(frame.place(XDP_HEADROOM_BYTES, PACKET_ROOM));
        assert!(!frame.place(XDP_HEADROOM_BYTES + 1, PACKET_ROOM));
        assert!(!frame.place(0, PACKET_ROOM + 1));
        assert!(frame.is_empty());
        assert!(!frame.place(usize::MAX, 1));
        assert!(!frame.place(0, usize::MAX));
    }
}
