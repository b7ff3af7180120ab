//! Counts of the packets that the program has forwarded, and of those that flows and ports have counted.
//!
//! The program counts packets and segments in 32 bits. It takes more than a minute to count 2^32 of them, and the switch looks more
//! often.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

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

/// A count of the program that goes on from one that is counted, which was read before.
type Count = fn(&Record, usize, u64) -> u64;

const COUNTS: [Count; 3] = [
    |record, end, counted| counted + since(record.packets[end].load(Relaxed), counted),
    |record, end, _| record.bytes[end].load(Relaxed),
    |record, end, counted| counted + since(record.segments[end].load(Relaxed), counted),
];

/// The number by which a count modulo 2^32 is ahead of one that is counted.
fn since(now: u32, counted: u64) -> u64 {
    now.wrapping_sub(counted as u32).into()
}

/// Packets of an end of a record that the program has forwarded beyond those that are counted.
pub(super) fn behind(counted: &Counts, record: &Record, end: usize) -> Forwarded {
    let [packets, bytes, segments] = [0, 1, 2].map(|i| {
        let counted = counted[i].load(Acquire);
        COUNTS[i](record, end, counted).saturating_sub(counted)
    });
    Forwarded { packets, bytes, segments }
}

/// The same, which are counted from now on. Of several callers one gets them.
pub(super) fn catch_up(counted: &Counts, record: &Record, end: usize) -> Forwarded {
    let [packets, bytes, segments] = [0, 1, 2].map(|i| {
        let mut before = counted[i].load(Acquire);
        loop {
            let now = COUNTS[i](record, end, before);
            match counted[i].compare_exchange(before, now, AcqRel, Acquire) {
                Ok(_) => return now.saturating_sub(before),
                Err(other) => before = other,
            }
        }
    });
    Forwarded { packets, bytes, segments }
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
