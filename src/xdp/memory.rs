//! A port in memory: the four rings of a queue, with the test or the generator on the other side instead of the kernel.
//!
//! The discipline is the kernel's: a packet arrives only in a frame from the fill ring, and is lost and counted when
//! there is none; a transmitted frame is the worker's again only by the completion ring.

use std::iter;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::frame::{Frame, PACKET_ROOM};
use super::ledger::{Account, Way};
use super::memory_ring::Ring;
use super::queue::Statistics;
use super::region::Region;
use super::umem::{self, Umem};
use crate::limits::RING_SLOTS;

/// The worker's side.
pub(super) struct MemoryRings {
    shared: Arc<Shared>,
}

/// The other side of a memory port: what it injects the worker receives, what the worker transmits it collects. Any
/// thread may use it. After the queue has been closed, nothing goes in and nothing comes out.
pub struct MemoryPeer {
    region: Arc<Region>,
    shared: Arc<Shared>,
}

struct Shared {
    fill: Ring,
    rx: Ring,
    tx: Ring,
    completion: Ring,
    /// Whether the queue is open. The peer uses its ends of the rings only while it holds this lock, so that it has no
    /// frame in its hands when the queue is closed. The worker takes it to close, and never else.
    open: Mutex<bool>,
    fill_ring_empty: AtomicU64,
    rx_dropped: AtomicU64,
}

/// Two sides of one set of rings.
pub(super) fn pair(region: Arc<Region>) -> (MemoryRings, MemoryPeer) {
    let shared = Arc::new(Shared {
        fill: Ring::new(),
        rx: Ring::new(),
        tx: Ring::new(),
        completion: Ring::new(),
        open: Mutex::new(true),
        fill_ring_empty: AtomicU64::new(0),
        rx_dropped: AtomicU64::new(0),
    });
    (MemoryRings { shared: shared.clone() }, MemoryPeer { region, shared })
}

impl MemoryRings {
    pub(super) fn receive(
        &mut self,
        umem: &mut Umem,
        account: Account,
        out: &mut Vec<Frame>,
        max: usize,
    ) -> usize {
        take(&self.shared.rx, umem, account, Way::Receive, out, max)
    }

    pub(super) fn complete(
        &mut self,
        umem: &mut Umem,
        account: Account,
        out: &mut Vec<Frame>,
        max: usize,
    ) -> usize {
        take(&self.shared.completion, umem, account, Way::Transmit, out, max)
    }

    /// Lends up to `max` frames, from the end of `free`, to the fill ring.
    pub(super) fn refill(
        &mut self,
        umem: &mut Umem,
        account: Account,
        free: &mut Vec<Frame>,
        max: usize,
    ) -> usize {
        let rest = free.len().saturating_sub(max);
        give(&self.shared.fill, umem, account, Way::Receive, free.drain(rest..))
    }

    /// Lends up to `max` frames, from the front of `frames`, to the tx ring.
    pub(super) fn transmit(
        &mut self,
        umem: &mut Umem,
        account: Account,
        frames: &mut Vec<Frame>,
        max: usize,
    ) -> usize {
        let count = max.min(frames.len());
        give(&self.shared.tx, umem, account, Way::Transmit, frames.drain(..count))
    }

    /// Takes the rings away from the peer, and with them every token that it could have had.
    pub(super) fn close(self) {
        *lock(&self.shared.open) = false;
        for ring in [&self.shared.fill, &self.shared.rx, &self.shared.tx, &self.shared.completion] {
            // The tokens end here: the ledger knows the frames and makes them anew. The peer keeps away by now.
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

fn take(ring: &Ring, umem: &mut Umem, account: Account, way: Way, out: &mut Vec<Frame>, max: usize) -> usize {
    let id = umem.region.id();
    ring.take(id, max, |frame| {
        let known = umem.ledger.take_back(frame.index(), account, way);
        assert!(known, "a memory port gives back a frame that was not lent to it");
        out.push(frame);
    })
}

fn give(
    ring: &Ring,
    umem: &mut Umem,
    account: Account,
    way: Way,
    frames: impl ExactSizeIterator<Item = Frame>,
) -> usize {
    let count = frames.len();
    // At most RING_SLOTS frames are lent by one way at a time (queue.rs), and each of its two rings holds as many.
    ring.put(frames.inspect(|frame| {
        umem.region.check(frame);
        umem.ledger.lend(frame.index(), account, way);
    }));
    count
}

impl MemoryPeer {
    /// Lets a packet arrive at the port: `false` when it is lost, for want of a frame in the fill ring, because it is
    /// too long for one, or because the queue is closed.
    pub fn inject(&self, packet: &[u8]) -> bool {
        self.inject_with(packet.len(), |bytes| bytes.copy_from_slice(packet))
    }

    /// Lets a packet of `len` bytes arrive that `fill` writes in place; otherwise as [`inject`](MemoryPeer::inject).
    pub fn inject_with(&self, len: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        let open = lock(&self.shared.open);
        if !*open {
            return false;
        }
        if len > PACKET_ROOM {
            self.shared.rx_dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let mut taken = None;
        self.shared.fill.take(self.region.id(), 1, |frame| taken = Some(frame));
        let Some(mut frame) = taken else {
            self.shared.fill_ring_empty.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        umem::write(&self.region, &mut frame, len, fill).expect("a packet that has been measured");
        self.shared.rx.put(iter::once(frame));
        true
    }

    /// The packets transmitted since the last call, in order; their frames go to the completion ring.
    pub fn collect(&self) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        self.drain_with(|packet| packets.push(packet.to_vec()));
        packets
    }

    /// Shows each packet transmitted since the last call to `see`, in order, and returns their number.
    pub fn drain_with(&self, mut see: impl FnMut(&[u8])) -> usize {
        let open = lock(&self.shared.open);
        if !*open {
            return 0;
        }
        self.shared.tx.take(self.region.id(), RING_SLOTS, |frame| {
            see(self.region.bytes(&frame));
            self.shared.completion.put(iter::once(frame));
        })
    }
}

/// A panic under the lock loses tokens, which the ledger replaces when the queue closes: the rings stay in order.
fn lock(open: &Mutex<bool>) -> MutexGuard<'_, bool> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}
