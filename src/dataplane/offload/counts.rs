//! Counts of what the program has forwarded, and of how much of it flows and ports have counted.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::xdp::offload::layout::Record;

/// Packets that the program has forwarded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Forwarded {
    /// Packets. One with segments counts once.
    pub packets: u64,
    /// Bytes: of a flow from the IP header on, of a port from the Ethernet header on.
    pub bytes: u64,
    /// Segments beyond the first of each packet.
    pub segments: u64,
}

/// Counts of [`Forwarded`].
#[derive(Default)]
pub(super) struct Counts {
    packets: AtomicU64,
    bytes: AtomicU64,
    segments: AtomicU64,
}

impl Counts {
    /// Counts of the program for an end of a record beyond these, without a change of them.
    pub(super) fn behind(&self, record: &Record, end: usize) -> Forwarded {
        let since = |count: &AtomicU64, of: &AtomicU64| count.load(Relaxed).saturating_sub(of.load(Relaxed));
        Forwarded {
            packets: since(&record.packets[end], &self.packets),
            bytes: since(&record.bytes[end], &self.bytes),
            segments: since(&record.segments[end], &self.segments),
        }
    }

    /// The same, and the counts catch up. Of several callers one gets it.
    pub(super) fn catch_up(&self, record: &Record, end: usize) -> Forwarded {
        let take = |count: &AtomicU64, of: &AtomicU64| {
            let now = count.load(Relaxed);
            now.saturating_sub(of.fetch_max(now, Relaxed))
        };
        Forwarded {
            packets: take(&record.packets[end], &self.packets),
            bytes: take(&record.bytes[end], &self.bytes),
            segments: take(&record.segments[end], &self.segments),
        }
    }

    pub(super) fn add(&self, count: Forwarded) {
        self.packets.fetch_add(count.packets, Relaxed);
        self.bytes.fetch_add(count.bytes, Relaxed);
        self.segments.fetch_add(count.segments, Relaxed);
    }

    pub(super) fn get(&self) -> Forwarded {
        let [packets, bytes, segments] =
            [&self.packets, &self.bytes, &self.segments].map(|count| count.load(Relaxed));
        Forwarded { packets, bytes, segments }
    }

    pub(super) fn clear(&self) {
        [&self.packets, &self.bytes, &self.segments].into_iter().for_each(|count| count.store(0, Relaxed));
    }
}
