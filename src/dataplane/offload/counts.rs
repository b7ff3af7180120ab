//! Counts of the packets that the program has forwarded, and of those that flows and ports have counted.

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

/// Packets, bytes and segments of [`Forwarded`].
pub(super) type Counts = [AtomicU64; 3];

fn counts_of(record: &Record, end: usize) -> [&AtomicU64; 3] {
    [&record.packets[end], &record.bytes[end], &record.segments[end]]
}

/// Packets of an end of a record that the program has forwarded beyond those that are counted.
pub(super) fn behind(counted: &Counts, record: &Record, end: usize) -> Forwarded {
    let now = counts_of(record, end);
    let since = |i: usize| now[i].load(Relaxed).saturating_sub(counted[i].load(Relaxed));
    Forwarded { packets: since(0), bytes: since(1), segments: since(2) }
}

/// The same, which are counted from now on. Of several callers one gets them.
pub(super) fn catch_up(counted: &Counts, record: &Record, end: usize) -> Forwarded {
    let count = counts_of(record, end);
    let take = |i: usize| {
        let now: u64 = count[i].load(Relaxed);
        now.saturating_sub(counted[i].fetch_max(now, Relaxed))
    };
    Forwarded { packets: take(0), bytes: take(1), segments: take(2) }
}

pub(super) fn add(counted: &Counts, more: Forwarded) {
    let more = [more.packets, more.bytes, more.segments];
    counted.iter().zip(more).for_each(|(count, more)| _ = count.fetch_add(more, Relaxed));
}

pub(super) fn get(counted: &Counts) -> Forwarded {
    let [packets, bytes, segments] = counted.each_ref().map(|count| count.load(Relaxed));
    Forwarded { packets, bytes, segments }
}

pub(super) fn clear(counted: &Counts) {
    counted.iter().for_each(|count| count.store(0, Relaxed));
}
