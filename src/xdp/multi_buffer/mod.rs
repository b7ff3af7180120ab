//! Multi-buffer packets: packets of several frames (`Documentation/networking/af_xdp.rst`, "Multi-Buffer").
//!
//! The kernel splits a packet that is longer than a frame into several descriptors, and sets `XDP_PKT_CONTD`
//! of `linux/if_xdp.h` in each but the last. They become one token, that of the first frame, the head, with
//! the number of the other frames. A link of each frame has the next one and the position of its part of the
//! packet. Packets of one frame use no link.

mod assembler;

pub(super) use assembler::{Assembler, Taken, fitting};

use super::frame::{DoesNotFit, Frame, PACKET_ROOM};
use super::umem::Umem;
use super::umem_area::UmemArea;
use crate::limits::{MTU_MAX, MTU_OF_ONE_FRAME_MAX, MULTI_BUFFER_FRAMES_MAX, PACKET_BYTES_MAX};

/// Longest header that is prepended to a packet with a full head.
const PUSH_MAX: usize = crate::net::vxlan::overhead_bytes(false);

/// Returns the largest MTU that a switch carries on this kernel, bytes. AF_XDP takes packets of several buffers since
/// Linux 6.6.
pub fn mtu_of_this_kernel() -> u32 {
    let uname = rustix::system::uname();
    let release = uname.release().to_str().unwrap_or_default();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map_while(|digits| digits.parse::<u32>().ok());
    let version = (numbers.next(), numbers.next());
    if version >= (Some(6), Some(6)) { MTU_MAX as u32 } else { MTU_OF_ONE_FRAME_MAX as u32 }
}

impl UmemArea {
    /// Iterates over the frames behind the head, in order. Their tokens are views, and may be kept only by a
    /// caller that gives up the head's token.
    pub(super) fn followers(&self, head: &Frame) -> impl Iterator<Item = Frame> + use<'_> {
        self.check(head);
        let mut at = head.index();
        (1..head.frames()).map(move |_| {
            let next = Frame::from_descriptor(self.id(), self.links().next(at));
            at = next.index();
            next
        })
    }

    /// Links frames to one packet, in order, of which `head` is the first. Without `whole` the packet is one
    /// to be dropped.
    pub(super) fn link(&self, head: &mut Frame, followers: &[u64], whole: bool) {
        let (mut at, mut tail) = (head.index(), 0);
        for descriptor in followers {
            self.links().set_next(at, *descriptor);
            let next = Frame::from_descriptor(self.id(), *descriptor);
            (at, tail) = (next.index(), tail + next.head_len());
        }
        head.lead(followers.len(), whole.then_some(tail));
    }

    /// Removes the frames that a truncated packet has left empty, and passes them to `free`.
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

    /// Iterates over the packet's bytes in the frames behind the head.
    pub(super) fn rest<'a>(&'a self, head: &'a Frame) -> impl Iterator<Item = &'a [u8]> {
        let mut left = head.len() - head.head_len();
        self.followers(head).map_while(move |mut frame| {
            frame.truncate(left);
            left -= frame.head_len();
            // SAFETY: the token of the packet is borrowed for as long as the bytes, so no code writes them.
            (!frame.is_empty()).then(|| unsafe { self.view(&frame) })
        })
    }

    /// Prepends `bytes` bytes to a multi-buffer packet with a full head: the end of each frame moves to the
    /// beginning of the next, up to the last one, which must have room.
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
            self.move_behind_headroom(&mut frame);
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

    /// Bytes free in the frame with the packet's end, or in the one behind the head if the packet ends in the
    /// head.
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

    /// Moves the last bytes of a frame's part of a packet to `out`, as many as it takes.
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
    /// Releases the frames of a token to `free`, each as a token of its own.
    #[inline]
    pub fn release(&self, mut frame: Frame, free: &mut Vec<Frame>) {
        if !frame.is_plain() {
            return self.release_multi_buffer(&frame, free);
        }
        frame.reset();
        free.push(frame);
    }

    #[cold]
    #[inline(never)]
    fn release_multi_buffer(&self, head: &Frame, free: &mut Vec<Frame>) {
        let (area, id) = (&self.area, self.area.id());
        free.extend(area.followers(head).map(|frame| Frame::new(id, frame.index() as u32)));
        free.push(Frame::new(id, head.index() as u32));
    }

    /// Releases the frames that a truncated packet has left empty to `free`. A packet is trimmed before it is
    /// transmitted.
    #[inline]
    pub fn trim(&self, frame: &mut Frame, free: &mut Vec<Frame>) {
        if frame.is_multi_buffer() {
            self.area.trim(frame, |surplus| free.push(surplus));
        }
    }

    /// Appends a frame to a packet, which has been trimmed. Returns the frame if the packet would have too many
    /// frames or bytes.
    pub fn append(&self, packet: &mut Frame, last: Frame) -> Result<(), Frame> {
        let is_too_much = packet.len() + last.len() > PACKET_BYTES_MAX;
        if is_too_much || last.is_multi_buffer() || packet.frames() >= MULTI_BUFFER_FRAMES_MAX {
            return Err(last);
        }
        let tail = packet.len() - packet.head_len() + last.len();
        let end = self.area.followers(packet).last().map_or(packet.index(), |end| end.index());
        self.area.links().set_next(end, last.descriptor());
        packet.lead(packet.frames(), Some(tail));
        Ok(())
    }

    /// Iterates over the packet's bytes in the frames behind the head, in order: those that
    /// [`data`](Umem::data) leaves out.
    pub fn rest<'a>(&'a self, frame: &'a Frame) -> impl Iterator<Item = &'a [u8]> {
        self.area.rest(frame)
    }

    /// Prepends `bytes` bytes for a header. If the head is full, the packet moves towards its end; if all
    /// frames are full, into a frame of `free`.
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
        if packet.is_multi_buffer() && self.area.push_back(packet, bytes).is_ok() {
            return Ok(());
        }
        let was_chain = packet.is_multi_buffer();
        self.move_end(packet, bytes, free)?;
        if was_chain { self.area.push_back(packet, bytes) } else { packet.grow_head(bytes) }
    }

    /// Moves the last bytes of a packet to a free frame, behind the others.
    fn move_end(&self, packet: &mut Frame, bytes: usize, free: &mut Vec<Frame>) -> Result<(), DoesNotFit> {
        self.trim(packet, free);
        let last = self.rest(packet).last().unwrap_or_else(|| self.data(packet));
        let is_movable = bytes <= PUSH_MAX.min(packet.head_len()) && bytes < last.len();
        let (true, true, Some(mut end)) = (is_movable, packet.frames() < MULTI_BUFFER_FRAMES_MAX, free.pop())
        else {
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

#[cfg(test)]
mod tests;
