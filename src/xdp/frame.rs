//! Token of one UMEM frame, or of the frames of one multi-buffer packet.

use crate::limits::{FRAME_BYTES, MULTI_BUFFER_FRAMES_MAX, PACKET_BYTES_MAX, XDP_HEADROOM_BYTES};
use crate::net::virtio_net::HEADER_BYTES as VIRTIO_HEADER_BYTES;

/// Exclusive token of one frame of a UMEM, with the position of the packet in it. Only the owner of the token
/// accesses the frame.
///
/// A token cannot be copied, and only the UMEM makes one, so a frame cannot be in two rings. A dropped token
/// loses the frame for the life of the UMEM: give it to a ring or keep it.
///
/// A packet longer than a frame is a multi-buffer packet. Its token is that of the first frame, the head, and
/// stands for all its frames. The packet's headers are in the head, and [`Umem::data`](super::Umem::data)
/// returns the head's bytes. The links of the area lead to the other frames (see `multi_buffer`).
#[must_use = "a dropped frame is lost to its UMEM: put it into a ring or onto the free list"]
#[derive(Debug)]
pub struct Frame {
    index: u32,
    umem: u32,
    offset: u16,
    /// Bytes in this frame.
    len: u16,
    /// Bytes of the packet in the other frames; [`OVERSIZED`] for a packet to be dropped.
    tail: u16,
    /// Number of other frames, those included that a truncated packet has left empty, and [`HAS_HEADER`].
    more: u8,
    /// Checksum left to the transmitting side: half the offset of the transport header, times two, plus one
    /// for TCP's field. Zero for none.
    unfinished: u8,
}

/// Tail length of a multi-buffer packet that is too long or has lost parts.
const OVERSIZED: u16 = u16::MAX;
/// Flag of a descriptor in an in-memory ring: the packet continues in the next one, as with `XDP_PKT_CONTD`.
pub(super) const CONTINUED: u64 = 1 << 47;
/// Flag beside the number of other frames: the frame begins with a virtio-net header.
const HAS_HEADER: u8 = 1 << 7;

/// A packet or a header that does not fit into its frame. The frame is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{needed} bytes do not fit where a frame has room for {room}")]
pub struct DoesNotFit {
    /// Bytes needed.
    pub needed: usize,
    /// Bytes available.
    pub room: usize,
}

/// Largest packet of one frame. It must fit behind the kernel's headroom, where a packet is for its
/// transmission.
pub(super) const PACKET_ROOM: usize = FRAME_BYTES - XDP_HEADROOM_BYTES;

const _: () = assert!(FRAME_BYTES <= u16::MAX as usize, "offset and length of a frame are 16 bits");
const _: () = assert!(FRAME_BYTES < 1 << 15, "CONTINUED is the top bit of an offset");
const _: () = assert!(VIRTIO_HEADER_BYTES <= XDP_HEADROOM_BYTES, "a header fits in front of a packet");
const _: () =
    assert!(PACKET_BYTES_MAX <= OVERSIZED as usize, "a packet with a head of one byte is not oversized");
const _: () = assert!(MULTI_BUFFER_FRAMES_MAX < HAS_HEADER as usize);

/// Offsets of the checksums of UDP (RFC 768) and TCP (RFC 9293).
const UDP_FIELD: usize = 6;
const TCP_FIELD: usize = 16;

impl Frame {
    /// Makes the token of frame `index` of UMEM `umem`, empty. The caller ensures that there is no other one.
    pub(super) fn new(umem: u32, index: u32) -> Frame {
        Frame { index, umem, offset: XDP_HEADROOM_BYTES as u16, len: 0, tail: 0, more: 0, unfinished: 0 }
    }

    /// Returns the frame and its part of the packet in one word, for an in-memory ring or a link.
    #[inline]
    pub(super) fn descriptor(&self) -> u64 {
        u64::from(self.index) | u64::from(self.offset) << 32 | u64::from(self.len) << 48
    }

    /// Makes the token of one frame from a word of [`Frame::descriptor`], of UMEM `umem`. The caller ensures
    /// that there is no other one.
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

    /// Frames that the token stands for: one, or all of a multi-buffer packet.
    #[inline]
    pub fn frames(&self) -> usize {
        1 + usize::from(self.more & !HAS_HEADER)
    }

    /// Whether the token stands for one frame, without a virtio-net header.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.more == 0
    }

    /// Whether the frame begins with a virtio-net header ([`Umem::virtio_header`](super::Umem::virtio_header)).
    #[inline]
    pub fn has_virtio_header(&self) -> bool {
        self.more & HAS_HEADER != 0
    }

    /// Notes that the frame begins with a virtio-net header.
    pub(super) fn note_virtio_header(&mut self) {
        self.more |= HAS_HEADER;
    }

    /// Forgets the virtio-net header: the packet is one of the wire.
    pub fn drop_virtio_header(&mut self) {
        self.more &= !HAS_HEADER;
    }

    /// Forgets all about the packet but its position.
    #[inline]
    pub(super) fn reset(&mut self) {
        self.unfinished = 0;
    }

    /// Whether the token stands for more than one frame.
    #[inline]
    pub fn is_multi_buffer(&self) -> bool {
        self.more & !HAS_HEADER != 0
    }

    /// Whether the packet is too long or has lost parts. It is dropped unread.
    #[inline]
    pub fn is_oversized(&self) -> bool {
        self.tail == OVERSIZED
    }

    /// Makes the token that of a multi-buffer packet with `more` other frames and `tail` bytes in them;
    /// `None` for a packet to be dropped.
    pub(super) fn lead(&mut self, more: usize, tail: Option<usize>) {
        let fits =
            |tail: &usize| usize::from(self.len) + tail <= PACKET_BYTES_MAX && more < MULTI_BUFFER_FRAMES_MAX;
        self.more = more as u8 | self.more & HAS_HEADER;
        (self.len, self.tail) = match tail.filter(fits) {
            Some(tail) => (self.len, tail as u16),
            None => (0, OVERSIZED),
        };
    }

    /// Leaves the Internet checksum of the transport header, `start` bytes into the packet, to the
    /// transmitting side ([`Umem::leaves_checksums`](super::Umem::leaves_checksums)). The field is `field`
    /// bytes into that header, and has the sum over the pseudo-header. Returns false for a header too far
    /// into the packet.
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

    /// Start of the sum and offset of the field of a checksum that is left; `None` for none.
    #[inline]
    pub(crate) fn checksum_left(&self) -> Option<(u16, u16)> {
        let field = if self.unfinished & 1 == 0 { UDP_FIELD } else { TCP_FIELD };
        (self.unfinished != 0).then_some((u16::from(self.unfinished & !1), field as u16))
    }

    /// Bytes in front of the packet, for [`grow_head`](Frame::grow_head).
    #[inline]
    pub fn headroom(&self) -> usize {
        self.offset as usize
    }

    /// Truncates the packet to `len` bytes.
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

    /// Shortens this frame's part of the packet by `bytes`.
    pub(super) fn shorten(&mut self, bytes: usize) {
        self.len -= bytes as u16;
    }

    /// Adds `bytes` to the bytes of the other frames.
    pub(super) fn lengthen_tail(&mut self, bytes: usize) {
        self.tail += bytes as u16;
    }

    /// Sets the length of a packet of one frame. Bytes added at its end have the former contents of the
    /// frame.
    pub fn set_len(&mut self, len: usize) -> Result<(), DoesNotFit> {
        let room = PACKET_ROOM.min(FRAME_BYTES - self.headroom());
        if len > room {
            return Err(DoesNotFit { needed: len, room });
        }
        (self.len, self.tail) = (len as u16, 0);
        Ok(())
    }

    /// Prepends `bytes` bytes for a header, with the former contents of the frame.
    pub fn grow_head(&mut self, bytes: usize) -> Result<(), DoesNotFit> {
        let room = self.headroom().min(PACKET_ROOM - self.head_len());
        if bytes > room {
            return Err(DoesNotFit { needed: bytes, room });
        }
        self.offset -= bytes as u16;
        self.len += bytes as u16;
        Ok(())
    }

    /// Removes a header of `bytes` bytes.
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

    /// Sets the position of the packet. Returns false, and makes the packet empty, for a position outside the
    /// frame.
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
