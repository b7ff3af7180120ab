//! In-memory port: the four rings of a queue, with a test or the packet generator as the peer instead of the
//! kernel.
//!
//! Its rules are the kernel's. A packet arrives only in a frame from the fill ring, and is lost and counted
//! without one. A transmitted frame returns to the worker only by the completion ring.

mod parts;
mod ring;

#[cfg(test)]
mod loom_tests;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::iter;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::frame::{CONTINUED, Frame, PACKET_ROOM};
use super::frame_ownership::{Direction, FrameOwnership, QueueId};
use super::memory_port::ring::Ring;
use super::multi_buffer::{Assembler, Taken, fitting};
use super::statistics::Statistics;
use super::tap_rings::header_of;
use super::umem::{self, Umem};
use super::umem_area::UmemArea;
use crate::limits::RING_SLOTS;
use crate::net::virtio_net::VirtioNet;

/// Most frames of one injected packet: more than any packet has, so that a test can inject one that is too
/// long.
const INJECTED_FRAMES_MAX: usize = 32;

/// The worker's side of the rings.
pub(super) struct MemoryRings {
    shared: Arc<Shared>,
    assembler: Assembler,
    /// Scratch descriptors for transfers to the tx ring.
    sending: Vec<u64>,
}

/// The peer of an in-memory port: the worker receives the packets that it injects, and it collects the
/// packets that the worker transmits. Any thread may use it. After the queue is closed, it injects and
/// collects nothing.
pub struct MemoryPeer {
    area: Arc<UmemArea>,
    shared: Arc<Shared>,
}

struct Shared {
    fill: Ring,
    rx: Ring,
    tx: Ring,
    completion: Ring,
    /// Whether the queue is open. The peer uses its ends of the rings only under this lock, so that it has no
    /// frame when the queue is closed. The worker takes the lock only to close the queue.
    open: Mutex<bool>,
    fill_ring_empty: AtomicU64,
    rx_dropped: AtomicU64,
    /// Virtio-net headers of the packets in the rx ring and in the tx ring; `None` for a port without them.
    headers: Option<[Mutex<VecDeque<VirtioNet>>; 2]>,
}

/// Index of the headers of received packets, and of transmitted ones.
const RX: usize = 0;
const TX: usize = 1;

/// Makes the two sides of one set of rings.
pub(super) fn pair(area: Arc<UmemArea>) -> (MemoryRings, MemoryPeer) {
    pair_with(area, None)
}

/// Makes the two sides of one set of rings for packets with virtio-net headers.
pub(super) fn tap_pair(area: Arc<UmemArea>) -> (MemoryRings, MemoryPeer) {
    pair_with(area, Some(Default::default()))
}

fn pair_with(
    area: Arc<UmemArea>,
    headers: Option<[Mutex<VecDeque<VirtioNet>>; 2]>,
) -> (MemoryRings, MemoryPeer) {
    let shared = Arc::new(Shared {
        fill: Ring::new(),
        rx: Ring::new(),
        tx: Ring::new(),
        completion: Ring::new(),
        open: Mutex::new(true),
        fill_ring_empty: AtomicU64::new(0),
        rx_dropped: AtomicU64::new(0),
        headers,
    });
    let sending = Vec::with_capacity(RING_SLOTS);
    let rings = MemoryRings { shared: shared.clone(), assembler: Assembler::new(), sending };
    (rings, MemoryPeer { area, shared })
}

impl MemoryRings {
    pub(super) fn receive(
        &mut self,
        umem: &mut Umem,
        queue_id: QueueId,
        out: &mut Vec<Frame>,
        max: usize,
    ) -> Taken {
        let mut taken = Taken::default();
        let assembler = &mut self.assembler;
        self.shared.rx.take(max, |descriptor| {
            if descriptor & CONTINUED == 0 && assembler.is_idle() {
                out.push(back(umem, queue_id, Direction::Receive, descriptor));
                (taken.packets, taken.frames) = (taken.packets + 1, taken.frames + 1);
            } else {
                taken += assembler.add(umem, queue_id, descriptor, out);
            }
        });
        if self.shared.headers.is_some() {
            let first = out.len() - taken.packets;
            self.take_headers(umem, &mut out[first..]);
        }
        taken
    }

    /// Whether the packets of the port have virtio-net headers.
    #[inline]
    pub(super) fn takes_segments(&self) -> bool {
        self.shared.headers.is_some()
    }

    /// Gives received packets their headers, as a tap device does.
    fn take_headers(&self, umem: &Umem, packets: &mut [Frame]) {
        for packet in packets {
            let header = self.shared.pop_header(RX);
            if header.needs_checksum() || header.is_gso() {
                umem.set_virtio_header(packet, header);
            }
        }
    }

    pub(super) fn complete(
        &mut self,
        umem: &mut Umem,
        queue_id: QueueId,
        out: &mut Vec<Frame>,
        max: usize,
    ) -> Taken {
        let frames = self
            .shared
            .completion
            .take(max, |descriptor| out.push(back(umem, queue_id, Direction::Transmit, descriptor)));
        Taken { packets: frames, frames, refused: 0 }
    }

    /// Lends up to `max` frames from the end of `free` to the fill ring.
    pub(super) fn refill(
        &mut self,
        umem: &mut Umem,
        queue_id: QueueId,
        free: &mut Vec<Frame>,
        max: usize,
    ) -> usize {
        let rest = free.len().saturating_sub(max);
        let count = free.len() - rest;
        // At most RING_SLOTS frames are lent in one direction at a time (queue.rs), and each of its two rings
        // holds as many.
        self.shared.fill.put(
            free.drain(rest..)
                .map(|frame| lend(&umem.area, &mut umem.ownership, queue_id, Direction::Receive, &frame)),
        );
        count
    }

    /// Lends packets from the front of `frames` to the tx ring, of at most `max` descriptors together.
    pub(super) fn transmit(
        &mut self,
        umem: &mut Umem,
        queue_id: QueueId,
        frames: &mut Vec<Frame>,
        max: usize,
    ) -> Taken {
        let (packets, count) = fitting(frames, max);
        if self.takes_segments() {
            frames[..packets].iter().for_each(|head| self.shared.push_header(TX, header_of(umem, head)));
        }
        for head in frames.drain(..packets) {
            let Umem { area, ownership, .. } = umem;
            let mut last = lend(area, ownership, queue_id, Direction::Transmit, &head);
            for frame in area.followers(&head) {
                self.sending.push(last | CONTINUED);
                last = lend(area, ownership, queue_id, Direction::Transmit, &frame);
            }
            self.sending.push(last);
        }
        self.shared.tx.put(self.sending.drain(..));
        Taken { packets, frames: count, refused: 0 }
    }

    /// Closes the rings for the peer, and takes every token in them.
    pub(super) fn close(self) {
        *lock(&self.shared.open) = false;
        for ring in [&self.shared.fill, &self.shared.rx, &self.shared.tx, &self.shared.completion] {
            // The peer uses the rings no more. The tokens end here, and the ownership table makes them again.
            ring.clear();
        }
    }

    pub(super) fn statistics(&self) -> Statistics {
        Statistics {
            fill_ring_empty: self.shared.fill_ring_empty.load(Ordering::Relaxed),
            rx_dropped: self.shared.rx_dropped.load(Ordering::Relaxed),
            ..Statistics::default()
        }
    }
}

/// Marks a frame as lent, of which the token ends here, and returns its descriptor.
fn lend(
    area: &UmemArea,
    ownership: &mut FrameOwnership,
    queue_id: QueueId,
    direction: Direction,
    frame: &Frame,
) -> u64 {
    area.check(frame);
    ownership.lend(frame.index(), queue_id, direction);
    frame.descriptor()
}

/// Makes the token of a frame that comes back.
fn back(umem: &mut Umem, queue_id: QueueId, direction: Direction, descriptor: u64) -> Frame {
    let frame = Frame::from_descriptor(umem.area.id(), descriptor);
    let known = umem.ownership.take_back(frame.index(), queue_id, direction);
    assert!(known, "a memory port gives back a frame that was not lent to it");
    frame
}

impl Shared {
    fn push_header(&self, direction: usize, header: VirtioNet) {
        if let Some(headers) = &self.headers {
            let mut headers = headers[direction].lock().unwrap_or_else(PoisonError::into_inner);
            headers.push_back(header);
        }
    }

    fn pop_header(&self, direction: usize) -> VirtioNet {
        let headers = self.headers.as_ref().map(|headers| &headers[direction]);
        let first =
            headers.and_then(|headers| headers.lock().unwrap_or_else(PoisonError::into_inner).pop_front());
        first.unwrap_or_default()
    }
}

impl MemoryPeer {
    /// Injects a packet behind a virtio-net header, see [`inject`](MemoryPeer::inject). The port was opened for
    /// such ([`PortQueue::memory_tap`](super::PortQueue::memory_tap)).
    pub fn inject_with_header(&self, header: VirtioNet, packet: &[u8]) -> bool {
        self.inject_behind(header, packet.len(), |bytes| bytes.copy_from_slice(packet))
    }

    /// Collects the packets transmitted since the last call with their virtio-net headers, in order.
    pub fn collect_with_headers(&self) -> Vec<(VirtioNet, Vec<u8>)> {
        let mut packets = Vec::new();
        self.drain_with(|packet| packets.push((self.shared.pop_header(TX), packet.to_vec())));
        packets
    }

    /// Injects a packet. Returns false if it is lost: without frames in the fill ring, far too long, or after
    /// the queue is closed.
    pub fn inject(&self, packet: &[u8]) -> bool {
        self.inject_with(packet.len(), |bytes| bytes.copy_from_slice(packet))
    }

    /// Injects a packet of `len` bytes that `fill` writes, see [`inject`](MemoryPeer::inject). A packet
    /// longer than a frame takes several frames, as from the kernel.
    pub fn inject_with(&self, len: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        self.inject_behind(VirtioNet::default(), len, fill)
    }

    fn inject_behind(&self, header: VirtioNet, len: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        let open = lock(&self.shared.open);
        if !*open {
            return false;
        }
        let frames = len.div_ceil(PACKET_ROOM).max(1);
        if frames > INJECTED_FRAMES_MAX {
            self.shared.rx_dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        if self.shared.fill.len() < frames {
            self.shared.fill_ring_empty.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        // The worker reads it with the packet, and so after this.
        self.shared.push_header(RX, header);
        if frames == 1 {
            let descriptor = self.receive_into(len, fill);
            self.shared.rx.put(iter::once(descriptor));
        } else {
            let mut packet = vec![0; len];
            fill(&mut packet);
            self.receive_parts(packet.chunks(PACKET_ROOM));
        }
        true
    }

    /// Collects the packets transmitted since the last call, in order. Their frames go to the completion
    /// ring.
    pub fn collect(&self) -> Vec<Vec<u8>> {
        self.collect_with_headers().into_iter().map(|(_, packet)| packet).collect()
    }

    /// Passes each packet transmitted since the last call to `see`, in order, and returns their number. Virtio-net
    /// headers stay with the port, for [`collect_with_headers`](MemoryPeer::collect_with_headers).
    pub fn drain_with(&self, mut see: impl FnMut(&[u8])) -> usize {
        let open = lock(&self.shared.open);
        if !*open {
            return 0;
        }
        let (mut packets, mut parts) = (0, Vec::new());
        self.shared.tx.take(RING_SLOTS, |descriptor| {
            let frame = Frame::from_descriptor(self.area.id(), descriptor);
            let (bytes, goes_on) = (self.area.bytes(&frame), descriptor & CONTINUED != 0);
            if goes_on || !parts.is_empty() {
                parts.extend_from_slice(bytes);
            } else {
                see(bytes);
            }
            if !goes_on && !parts.is_empty() {
                see(&parts);
                parts.clear();
            }
            packets += usize::from(!goes_on);
            self.shared.completion.put(iter::once(descriptor));
        });
        packets
    }

    /// Writes `len` bytes by `fill` to a frame from the fill ring, which has one, and returns its descriptor.
    fn receive_into(&self, len: usize, fill: impl FnOnce(&mut [u8])) -> u64 {
        let mut taken = 0;
        self.shared.fill.take(1, |descriptor| taken = descriptor);
        let mut frame = Frame::from_descriptor(self.area.id(), taken);
        umem::write(&self.area, &mut frame, len, fill).expect("a packet that has been measured");
        frame.descriptor()
    }

    /// Injects the parts of a packet, each in a frame of its own.
    fn receive_parts<'a>(&self, parts: impl ExactSizeIterator<Item = &'a [u8]>) {
        let last = parts.len() - 1;
        let descriptors: Vec<u64> = parts
            .enumerate()
            .map(|(number, part)| {
                let descriptor = self.receive_into(part.len(), |bytes| bytes.copy_from_slice(part));
                if number < last { descriptor | CONTINUED } else { descriptor }
            })
            .collect();
        self.shared.rx.put(descriptors.into_iter());
    }
}

/// Locks the rings. A panic under the lock loses tokens, which the ownership table replaces when the queue
/// closes.
fn lock(open: &Mutex<bool>) -> MutexGuard<'_, bool> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}
