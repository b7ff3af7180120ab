//! Packets between a tap device and UMEM frames: one is read into a chain of free frames, and written out of the
//! chain that it lies in. No frame is lent to the kernel.

use std::io::{IoSlice, IoSliceMut};
use std::iter;

use super::frame::{Frame, PACKET_ROOM};
use super::umem::Umem;
use crate::limits::{MULTI_BUFFER_FRAMES_MAX, PACKET_BYTES_MAX, RING_SLOTS, XDP_HEADROOM_BYTES};
use crate::net::virtio_net::{HEADER_BYTES, NEEDS_CSUM, VirtioNet};
use crate::tap::TapQueue;

/// Header and frames of the longest packet.
const PARTS: usize = 1 + MULTI_BUFFER_FRAMES_MAX;

/// Packets that are read into a whole chain of frames after a packet that needed one.
const LARGE_READS: u8 = 32;

/// A queue of a tap device, with the frames of the packets that it has taken.
pub(super) struct TapRings {
    queue: TapQueue,
    /// Number of next packets that are read into a whole chain of frames. The others are read into one frame and
    /// `overflow`: a read into few buffers costs less (`UIO_FASTIOV` of the kernel is 8).
    large_reads: u8,
    /// Bytes of a packet beyond its first frame, until they are copied to further frames.
    overflow: Box<[u8]>,
    /// Frames of written packets, until the worker takes them back.
    written: Vec<Frame>,
}

impl TapRings {
    pub(super) fn new(queue: TapQueue) -> TapRings {
        let overflow = vec![0; PACKET_ROOM * (MULTI_BUFFER_FRAMES_MAX - 1)].into();
        TapRings { queue, large_reads: 0, overflow, written: Vec::with_capacity(RING_SLOTS) }
    }

    pub(super) fn queue(&self) -> &TapQueue {
        &self.queue
    }

    /// Reads packets into frames from the end of `free`, until they take `max` frames together or no packet waits.
    /// Returns the number of packets.
    #[inline(never)]
    pub(super) fn receive(
        &mut self,
        umem: &Umem,
        free: &mut Vec<Frame>,
        out: &mut Vec<Frame>,
        max: usize,
    ) -> usize {
        let (mut frames, before) = (0, out.len());
        while frames < max && out.len() < out.capacity() {
            let Some(packet) = self.receive_one(umem, free) else { break };
            frames += packet.frames();
            out.push(packet);
        }
        out.len() - before
    }

    #[inline]
    fn receive_one(&mut self, umem: &Umem, free: &mut Vec<Frame>) -> Option<Frame> {
        let first = free.len().checked_sub(MULTI_BUFFER_FRAMES_MAX)?;
        let mut header = [0; HEADER_BYTES];
        let mut frames = free[first..].iter_mut().rev().map(|frame| umem.area.room(frame));
        let bytes = if self.large_reads > 0 {
            self.large_reads -= 1;
            let mut parts = iter::once(&mut header[..]).chain(frames.by_ref());
            let mut parts: [IoSliceMut<'_>; PARTS] =
                std::array::from_fn(|_| IoSliceMut::new(parts.next().unwrap_or_default()));
            self.queue.read(&mut parts)?
        } else {
            let parts = [&mut header[..], frames.next()?, &mut self.overflow];
            self.queue.read(&mut parts.map(IoSliceMut::new))?
        };
        // A tap device delivers an Ethernet header at least.
        let len = bytes.checked_sub(HEADER_BYTES).filter(|len| *len > 0)?;
        if let Some(beyond) = len.checked_sub(PACKET_ROOM).filter(|bytes| *bytes > 0) {
            // After a read into the whole chain, no frame is left to be filled.
            for (bytes, frame) in self.overflow[..beyond].chunks(PACKET_ROOM).zip(frames) {
                frame[..bytes.len()].copy_from_slice(bytes);
            }
            self.large_reads = LARGE_READS;
        }
        let mut packet = take_chain(umem, free, len)?;
        let header = VirtioNet::from_bytes(&header);
        if header.needs_checksum() || header.is_gso() {
            umem.set_virtio_header(&mut packet, header);
        }
        Some(packet)
    }

    /// Writes packets from the front of `frames` that take at most `max` frames together.
    #[inline(never)]
    pub(super) fn transmit(
        &mut self,
        umem: &Umem,
        frames: &mut Vec<Frame>,
        max: usize,
    ) -> super::multi_buffer::Taken {
        let (packets, count) = super::multi_buffer::fitting(frames, max);
        for mut frame in frames.drain(..packets) {
            self.write(umem, &mut frame);
            self.written.push(frame);
        }
        super::multi_buffer::Taken { packets, frames: count, refused: 0 }
    }

    fn write(&self, umem: &Umem, packet: &mut Frame) {
        let header = header_of(umem, packet).to_bytes();
        // A write of one buffer costs less. The frame is released afterwards, so its bytes may change.
        if !packet.is_multi_buffer() && packet.grow_head(HEADER_BYTES).is_ok() {
            let bytes = umem.data_mut(packet);
            bytes[..HEADER_BYTES].copy_from_slice(&header);
            return self.queue.write(bytes);
        }
        let mut parts = [&header[..], umem.data(packet)].into_iter().chain(umem.rest(packet));
        let mut used = 0;
        let parts: [IoSlice<'_>; PARTS] = std::array::from_fn(|_| {
            let part = parts.next();
            used += usize::from(part.is_some());
            IoSlice::new(part.unwrap_or_default())
        });
        self.queue.write_vectored(&parts[..used]);
    }

    /// Moves the frames of written packets to `free`. Returns their number.
    #[inline(never)]
    pub(super) fn complete(&mut self, umem: &Umem, free: &mut Vec<Frame>) -> usize {
        let before = free.len();
        for packet in self.written.drain(..) {
            umem.release(packet, free);
        }
        free.len() - before
    }
}

/// Header of a packet that leaves by a tap device: its segments, and the checksum that is left to the receiver.
#[inline]
pub(super) fn header_of(umem: &Umem, packet: &Frame) -> VirtioNet {
    let segments = umem.virtio_header(packet).unwrap_or_default();
    match packet.checksum_left() {
        Some((csum_start, csum_offset)) => {
            VirtioNet { flags: NEEDS_CSUM, csum_start, csum_offset, ..segments }
        }
        None => VirtioNet::default(),
    }
}

/// Takes the frames with the first `len` bytes, which were read into them, from the end of `free`, as one packet.
pub(super) fn take_chain(umem: &Umem, free: &mut Vec<Frame>, len: usize) -> Option<Frame> {
    let mut packet = free.pop()?;
    packet.place(XDP_HEADROOM_BYTES, len.min(PACKET_ROOM));
    let mut left = len.saturating_sub(PACKET_ROOM);
    if left == 0 {
        return Some(packet);
    }
    let mut followers = [0; MULTI_BUFFER_FRAMES_MAX - 1];
    let mut count = 0;
    while left > 0 && count < followers.len() {
        let Some(mut frame) = free.pop() else { break };
        frame.place(XDP_HEADROOM_BYTES, left.min(PACKET_ROOM));
        left -= frame.head_len();
        followers[count] = frame.descriptor();
        count += 1;
    }
    umem.area.link(&mut packet, &followers[..count], left == 0 && len <= PACKET_BYTES_MAX);
    Some(packet)
}
