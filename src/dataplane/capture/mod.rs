//! Captures: copies of packets with their verdicts, which workers hand to the control side.
//!
//! A capture has a fixed number of buffers. A worker takes an empty one for a packet, and hands it over filled. A packet
//! without an empty buffer is counted, and the worker goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use crossbeam::queue::ArrayQueue;

use super::{CaptureFilter, CapturedPacket, PacketVerdict};
use crate::ids::{Generation, PortId};
use crate::limits::{BATCH_FRAMES_MAX, CAPTURE_BUFFERS_MAX, CAPTURE_MEMORY};

/// Running capture.
pub struct Capture {
    filter: CaptureFilter,
    /// Bytes of each packet that are captured.
    bytes_max: usize,
    empty: ArrayQueue<Box<CapturedPacket>>,
    filled: ArrayQueue<Box<CapturedPacket>>,
    /// Packets of the selected port that found no empty buffer, selected or not.
    lost: AtomicU64,
}

impl Capture {
    /// Makes a capture of `bytes_max` bytes of each selected packet, with all its buffers.
    pub fn new(filter: CaptureFilter, bytes_max: usize) -> Capture {
        let buffers = (CAPTURE_MEMORY / bytes_max.max(1)).clamp(BATCH_FRAMES_MAX, CAPTURE_BUFFERS_MAX);
        let empty = ArrayQueue::new(buffers);
        for _ in 0..buffers {
            let buffer = CapturedPacket {
                at_ns: 0,
                port: PortId(0),
                verdict: PacketVerdict::Consumed,
                stage: "",
                is_new_flow: false,
                generation: Generation(0),
                frame_bytes: 0,
                flow: None,
                bytes: Vec::with_capacity(bytes_max),
            };
            // The queue has a place for each.
            let _ = empty.push(Box::new(buffer));
        }
        let filled = ArrayQueue::new(buffers);
        Capture { filter, bytes_max, empty, filled, lost: AtomicU64::new(0) }
    }

    /// Passes captured packets to `see`, oldest first, as many as wait.
    pub fn take(&self, mut see: impl FnMut(&CapturedPacket)) {
        for _ in 0..self.filled.capacity() {
            let Some(packet) = self.filled.pop() else { return };
            see(&packet);
            self.put_back(packet);
        }
    }

    /// Takes an empty buffer for a packet from `port`; `None` where the capture does not want the packet, or all are in
    /// use.
    pub(crate) fn take_buffer(&self, port: PortId) -> Option<Box<CapturedPacket>> {
        if self.filter.port.is_some_and(|wanted| wanted != port) {
            return None;
        }
        let buffer = self.empty.pop();
        if buffer.is_none() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        buffer
    }

    /// Hands a filled buffer over, if the capture wants its packet.
    pub(crate) fn hand_over(&self, packet: Box<CapturedPacket>) {
        if self.filter.selects(packet.flow.as_ref(), packet.verdict) {
            // There are as many places as buffers.
            let _ = self.filled.push(packet);
        } else {
            self.put_back(packet);
        }
    }

    /// Bytes of each packet that are captured.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Packets that found no empty buffer since the start.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns a buffer.
    pub(crate) fn put_back(&self, mut packet: Box<CapturedPacket>) {
        packet.bytes.clear();
        // There are as many places as buffers.
        let _ = self.empty.push(packet);
    }
}

/// Running captures of a dataplane.
#[derive(Default)]
pub(crate) struct Captures {
    is_any: AtomicBool,
    running: ArcSwap<Vec<Arc<Capture>>>,
}

impl Captures {
    /// Whether a capture runs.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Relaxed)
    }

    /// Captures that run.
    pub(crate) fn running(&self) -> Arc<Vec<Arc<Capture>>> {
        self.running.load_full()
    }

    /// Runs these captures in place of all others, from the workers' next batches on.
    pub(crate) fn run(&self, captures: Vec<Arc<Capture>>) {
        self.is_any.store(!captures.is_empty(), Ordering::Relaxed);
        self.running.store(Arc::new(captures));
    }
}
