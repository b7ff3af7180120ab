//! The owned token of one UMEM frame.

use crate::limits::{FRAME_BYTES, PACKET_BYTES_MAX, XDP_HEADROOM_BYTES};

/// One frame of a UMEM, and where the packet lies in it. Whoever has it, and nobody else, may touch the frame.
///
/// It cannot be copied, and only this module's UMEM makes one: so a frame cannot be in two rings. Dropping it loses the
/// frame for the life of the UMEM; give it to a ring or keep it.
#[must_use = "a dropped frame is lost to its UMEM: put it into a ring or onto the free list"]
#[derive(Debug)]
pub struct Frame {
    index: u32,
    umem: u32,
    offset: u16,
    len: u16,
}

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
const _: () = assert!(PACKET_BYTES_MAX <= PACKET_ROOM);

impl Frame {
    /// The token of frame `index` of UMEM `umem`, empty. The caller answers for there being no other one.
    pub(super) fn new(umem: u32, index: u32) -> Frame {
        Frame { index, umem, offset: XDP_HEADROOM_BYTES as u16, len: 0 }
    }

    /// The token in one word, for a ring in memory. The frame is the ring's now.
    #[inline]
    pub(super) fn into_descriptor(self) -> u64 {
        u64::from(self.index) | u64::from(self.offset) << 32 | u64::from(self.len) << 48
    }

    /// The token that [`Frame::into_descriptor`] put into a word, of UMEM `umem`. The caller answers for there being no
    /// other one.
    #[inline]
    pub(super) fn from_descriptor(umem: u32, descriptor: u64) -> Frame {
        Frame {
            index: descriptor as u32,
            umem,
            offset: (descriptor >> 32) as u16,
            len: (descriptor >> 48) as u16,
        }
    }

    /// Bytes of the packet.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it holds no packet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
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
            self.len = len as u16;
        }
    }

    /// Sets the packet's length. Bytes added at its end are what the frame held there before.
    pub fn set_len(&mut self, len: usize) -> Result<(), DoesNotFit> {
        let room = PACKET_ROOM.min(FRAME_BYTES - self.headroom());
        if len > room {
            return Err(DoesNotFit { needed: len, room });
        }
        self.len = len as u16;
        Ok(())
    }

    /// Lets the packet begin `bytes` earlier: room for a header, with what the frame held there before.
    pub fn grow_head(&mut self, bytes: usize) -> Result<(), DoesNotFit> {
        let room = self.headroom().min(PACKET_ROOM - self.len());
        if bytes > room {
            return Err(DoesNotFit { needed: bytes, room });
        }
        self.offset -= bytes as u16;
        self.len += bytes as u16;
        Ok(())
    }

    /// Lets the packet begin `bytes` later: takes a header off.
    pub fn shrink_head(&mut self, bytes: usize) -> Result<(), DoesNotFit> {
        if bytes > self.len() {
            return Err(DoesNotFit { needed: bytes, room: self.len() });
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
