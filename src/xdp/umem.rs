//! UMEM: the packet memory of one worker.

use std::sync::{Arc, Mutex, PoisonError};

use xsk_rs::FrameDesc;

use super::error::XdpError;
use super::frame::{DoesNotFit, Frame, PACKET_ROOM};
use super::frame_ownership::{FrameOwnership, QueueId, QueueIds};
use super::umem_area::UmemArea;
use crate::limits::{BATCH_FRAMES_MAX, MTU_MAX, MTU_OF_ONE_FRAME_MAX, XDP_HEADROOM_BYTES};
use crate::net::checksum::Sum;
use crate::net::udp;
use crate::net::virtio_net::VirtioNet;

/// Packet memory of one worker, which its queues of all ports share. A frame received on one port is
/// transmitted on another without a copy.
pub struct Umem {
    pub(super) area: Arc<UmemArea>,
    pub(super) ownership: FrameOwnership,
    /// Descriptor of each frame. Only `xsk-rs` makes them, once. Empty for a UMEM in memory.
    pub(super) templates: Vec<FrameDesc>,
    /// Scratch descriptors for transfers to and from a ring.
    pub(super) scratch: Vec<FrameDesc>,
    queue_ids: Arc<Mutex<QueueIds>>,
}

/// Handle that opens queues on a UMEM from any thread while the worker uses it.
#[derive(Clone)]
pub struct Binder {
    pub(super) area: Arc<UmemArea>,
    queue_ids: Arc<Mutex<QueueIds>>,
}

/// A closed queue, of which the frames wait for [`Umem::reclaim`].
#[must_use = "give it to Umem::reclaim, or its frames are lost to the UMEM"]
#[derive(Debug)]
pub struct ClosedQueue {
    pub(super) umem: u32,
    /// Id of the queue; `None` while the kernel may still receive into its frames.
    pub(super) queue_id: Option<QueueId>,
}

impl Umem {
    /// Largest packet, or part of one, of one frame, bytes.
    pub const PACKET_ROOM: usize = PACKET_ROOM;

    /// Registers memory for at least `frames` frames with the kernel, and returns it with the token of each
    /// frame. With `huge_pages` it is in huge pages if enough are reserved, with as many frames as fill them,
    /// and otherwise in ordinary ones.
    ///
    /// Needs CAP_NET_RAW, and CAP_SYS_ADMIN for the network namespace that holds the UMEM's first socket.
    pub fn new(frames: usize, huge_pages: bool) -> Result<(Umem, Vec<Frame>), XdpError> {
        let (area, templates) = UmemArea::registered(frames, huge_pages)?;
        Ok(Umem::with(area, templates))
    }

    /// Allocates memory for in-memory ports, unknown to the kernel. Needs no privilege. Panics without
    /// memory, as a `Vec` does.
    pub fn in_memory(frames: usize) -> (Umem, Vec<Frame>) {
        let area = UmemArea::in_memory(frames).expect("memory for the frames");
        Umem::with(area, Vec::new())
    }

    fn with(area: UmemArea, templates: Vec<FrameDesc>) -> (Umem, Vec<Frame>) {
        let total = area.frames();
        // Tokens are made once here, and afterwards only for a frame taken back by the ownership table, so
        // each exists once.
        let frames = (0..total).map(|index| Frame::new(area.id(), index as u32)).collect();
        let umem = Umem {
            area: Arc::new(area),
            ownership: FrameOwnership::new(total),
            templates,
            scratch: vec![FrameDesc::default(); BATCH_FRAMES_MAX],
            queue_ids: Arc::default(),
        };
        (umem, frames)
    }

    /// Returns the packet in a frame. Panics on a frame of another UMEM.
    #[inline]
    pub fn data<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        self.area.bytes(frame)
    }

    /// Returns the packet in a frame, to be changed. Panics on a frame of another UMEM.
    #[inline]
    #[allow(clippy::mut_from_ref)] // The exclusive borrow is that of the token.
    pub fn data_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        self.area.bytes_mut(frame)
    }

    /// Returns the virtio-net header of a packet; `None` for a packet without one.
    #[inline]
    pub fn virtio_header(&self, frame: &Frame) -> Option<VirtioNet> {
        frame.has_virtio_header().then(|| VirtioNet::from_bytes(self.area.virtio_header(frame)))
    }

    /// Gives a packet a virtio-net header, or replaces its header. It lies at the beginning of the frame, in front
    /// of the packet.
    pub fn set_virtio_header(&self, frame: &mut Frame, header: VirtioNet) {
        *self.area.virtio_header_mut(frame) = header.to_bytes();
        frame.note_virtio_header();
    }

    /// Prefetches the beginning of the packet in a frame.
    #[inline]
    pub fn prefetch(&self, frame: &Frame) {
        self.area.prefetch(frame);
    }

    /// Writes `bytes` as the frame's packet, behind headroom. Panics on a frame of another UMEM.
    pub fn write(&self, frame: &mut Frame, bytes: &[u8]) -> Result<(), DoesNotFit> {
        write(&self.area, frame, bytes.len(), |packet| packet.copy_from_slice(bytes))
    }

    /// Whether the kernel computes checksums that are left to it ([`Frame::leave_checksum`]). False in
    /// memory.
    #[inline]
    pub fn leaves_checksums(&self) -> bool {
        self.area.leaves_checksums()
    }

    /// Computes the Internet checksum from `start` to the end of a packet, over the sum in its field, which is `field` bytes from
    /// there ([`Frame::leave_checksum`]).
    pub(super) fn finish_checksum(&self, frame: &mut Frame, start: usize, field: usize) {
        let head = self.data(frame);
        let (mut sum, mut at) = (Sum::default().add_bytes(&head[start..]), head.len() - start);
        for part in self.rest(frame) {
            (sum, at) = (sum.add_bytes_at(at, part), at + part.len());
        }
        let checksum = sum.finish();
        // "If the computed checksum is zero, it is transmitted as all ones" (RFC 768).
        let checksum = if checksum == 0 && field == udp::CHECKSUM_OFFSET { 0xffff } else { checksum };
        self.data_mut(frame)[start + field..][..2].copy_from_slice(&checksum.to_be_bytes());
    }

    /// Leaves a checksum to the kernel, or computes it: from `start` on, over the sum in its field, which is `field` bytes from
    /// there.
    pub fn leave_or_finish_checksum(&self, frame: &mut Frame, start: usize, field: usize) {
        if !self.leaves_checksums() || !frame.leave_checksum(start, field) {
            self.finish_checksum(frame, start, field);
        }
    }

    /// Computes a checksum that is left to the kernel: the packet gets further headers.
    #[inline]
    pub fn finish_left_checksum(&self, frame: &mut Frame) {
        if let Some((start, field)) = frame.checksum_left() {
            self.finish_checksum(frame, start.into(), field.into());
            frame.reset();
        }
    }

    /// Number of frames.
    pub fn frames_total(&self) -> usize {
        self.area.frames()
    }

    /// Frames lent to the rings of queues. Tokens exist for the others.
    pub fn frames_lent(&self) -> usize {
        self.ownership.lent()
    }

    /// Whether the memory is in huge pages.
    pub fn uses_huge_pages(&self) -> bool {
        self.area.is_huge()
    }

    /// Returns a handle that opens queues.
    pub fn binder(&self) -> Binder {
        Binder { area: self.area.clone(), queue_ids: self.queue_ids.clone() }
    }

    /// Takes back every frame lent to a closed queue ([`PortQueue::close`](super::PortQueue::close)). Panics
    /// on a queue of another UMEM.
    #[allow(clippy::needless_pass_by_value)] // A closed queue gives its frames back once.
    pub fn reclaim(&mut self, queue: ClosedQueue, out: &mut Vec<Frame>) {
        let id = self.area.id();
        assert!(queue.umem == id, "a queue of UMEM {} is given back to UMEM {id}", queue.umem);
        let Some(queue_id) = queue.queue_id else { return };
        // The ownership table had the frames, and the queue's rings are closed, so these tokens are the only
        // ones.
        self.ownership.take_back_all(queue_id, |index| out.push(Frame::new(id, index as u32)));
        lock(&self.queue_ids).close(queue_id);
    }
}

impl Binder {
    /// Largest MTU of an interface for queues on the UMEM, bytes.
    pub fn mtu_max(&self) -> usize {
        if self.area.takes_multi_buffer() { MTU_MAX } else { MTU_OF_ONE_FRAME_MAX }
    }

    /// Whether the kernel computes checksums, see [`Umem::leaves_checksums`].
    pub fn leaves_checksums(&self) -> bool {
        self.area.leaves_checksums()
    }

    pub(super) fn allocate_queue_id(&self) -> Result<QueueId, XdpError> {
        lock(&self.queue_ids).open().ok_or(XdpError::TooManyQueues)
    }
}

/// Calls `fill` to write a packet of `len` bytes to the frame, behind headroom.
pub(super) fn write(
    area: &UmemArea,
    frame: &mut Frame,
    len: usize,
    fill: impl FnOnce(&mut [u8]),
) -> Result<(), DoesNotFit> {
    frame.place(XDP_HEADROOM_BYTES, 0);
    frame.set_len(len)?;
    fill(area.bytes_mut(frame));
    Ok(())
}

/// Locks the ids. No code panics under this lock, so a poisoned one is valid.
fn lock(queue_ids: &Mutex<QueueIds>) -> std::sync::MutexGuard<'_, QueueIds> {
    queue_ids.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::FRAME_BYTES;

    #[test]
    fn a_packet_written_is_the_packet_read_and_frames_do_not_overlap() {
        let (umem, mut frames) = Umem::in_memory(3);
        for (number, frame) in frames.iter_mut().enumerate() {
            umem.write(frame, &vec![number as u8; FRAME_BYTES - XDP_HEADROOM_BYTES]).unwrap();
        }
        for (number, frame) in frames.iter().enumerate() {
            assert!(umem.data(frame).iter().all(|byte| *byte == number as u8));
        }
    }

    #[test]
    fn a_checksum_is_computed_over_the_sum_in_its_field() {
        let (umem, mut frames) = Umem::in_memory(1);
        for (field, start, len) in [(16, 34, 60), (16, 54, 99), (6, 34, 43)] {
            let mut bytes: Vec<u8> = (0..len).map(|byte| (byte * 37) as u8).collect();
            let pseudo_header = 0x1234_u16;
            bytes[start + field..][..2].copy_from_slice(&pseudo_header.to_be_bytes());
            umem.write(&mut frames[0], &bytes).unwrap();
            umem.finish_checksum(&mut frames[0], start, field);
            let found = &umem.data(&frames[0])[start..];
            let sum = Sum::default().add_bytes(&pseudo_header.to_be_bytes()).add_bytes(found).finish();
            assert_eq!(sum, 0, "the sum of header, pseudo-header and payload is zero in ones' complement");
            assert_eq!(umem.data(&frames[0])[..start], bytes[..start]);
        }
        // UDP has no checksum zero.
        umem.write(&mut frames[0], &[0, 0, 0, 0, 0, 0, 0xff, 0xff]).unwrap();
        umem.finish_checksum(&mut frames[0], 0, udp::CHECKSUM_OFFSET);
        assert_eq!(umem.data(&frames[0])[6..], [0xff, 0xff]);
    }

    #[test]
    fn a_packet_that_is_too_long_is_refused() {
        let (umem, mut frames) = Umem::in_memory(1);
        let room = FRAME_BYTES - XDP_HEADROOM_BYTES;
        let too_long = vec![0; room + 1];
        assert_eq!(umem.write(&mut frames[0], &too_long), Err(DoesNotFit { needed: room + 1, room }));
    }

    #[test]
    fn a_pushed_tag_keeps_the_packet_and_settling_keeps_its_bytes() {
        let (umem, mut frames) = Umem::in_memory(1);
        let frame = &mut frames[0];
        umem.write(frame, b"addresses, type and payload").unwrap();
        frame.grow_head(4).unwrap();
        umem.data_mut(frame)[..4].copy_from_slice(b"tag ");
        umem.area.move_behind_headroom(frame);
        assert_eq!(frame.headroom(), XDP_HEADROOM_BYTES);
        assert_eq!(umem.data(frame), b"tag addresses, type and payload");
        frame.shrink_head(4).unwrap();
        umem.area.move_behind_headroom(frame);
        assert_eq!(umem.data(frame), b"addresses, type and payload");
    }

    #[test]
    #[should_panic(expected = "is used with UMEM")]
    fn a_frame_of_another_umem_is_not_read() {
        let (_one, frames) = Umem::in_memory(1);
        let (other, _others) = Umem::in_memory(1);
        let _ = other.data(&frames[0]);
    }

    #[test]
    #[should_panic(expected = "is used with UMEM")]
    fn a_frame_of_another_umem_is_not_written() {
        let (_one, mut frames) = Umem::in_memory(1);
        let (other, _others) = Umem::in_memory(1);
        let _ = other.write(&mut frames[0], b"x");
    }

    #[test]
    fn a_umem_and_its_frames_go_from_thread_to_thread() {
        fn check<T: Send>() {}
        check::<Umem>();
        check::<Frame>();
        check::<Binder>();
        check::<super::super::PortQueue>();
    }
}
