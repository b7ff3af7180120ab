//! Loop of the receiving thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::limits::{BATCH_FRAMES_MAX, RING_SLOTS};
use crate::pktgen::clock::now_ns;
use crate::pktgen::frames::payload_offset;
use crate::pktgen::io::link_end::LinkEnd;
use crate::pktgen::io::sequence_tracker::{Counts, Tracker};
use crate::pktgen::traffic::stamp::Stamp;

/// Time without a frame after which the receiver sleeps in the kernel.
const IDLE_NS: u64 = 200_000;
/// Longest sleep between two looks at the stop flag, with sockets and in memory.
const SLEEP_NS: i64 = 5_000_000;
const MEMORY_SLEEP_NS: i64 = 50_000;
/// Longest latency of the histogram; longer ones count as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Measurements by the stamps of received frames.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Stamped frames, duplicates included.
    pub frames: u64,
    /// Bytes of the stamped frames in memory.
    pub bytes: u64,
    /// Frames that arrived again.
    pub duplicates: u64,
    /// Frames that arrived after a later one of their flow (RFC 4737 section 3.3).
    pub reordered: u64,
    /// Frames without a stamp of the generator.
    pub foreign: u64,
    /// One-way latency, nanoseconds: from the building of a burst to the receipt of the frame.
    pub latency: Histogram<u64>,
}

/// Counter of received frames, for the thread that waits for the last one.
#[derive(Debug, Default)]
pub(crate) struct Progress(AtomicU64);

impl Progress {
    fn add(&self, frames: u64) {
        self.0.fetch_add(frames, Ordering::Relaxed);
    }

    /// Frames received so far.
    pub(crate) fn frames(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Receives on all link ends until `stop` is set.
pub(crate) fn receive(wires: &mut [LinkEnd], flows: u32, stop: &AtomicBool, seen: &Progress) -> Measured {
    let mut tracker = Tracker::new(flows);
    let (mut bytes, mut foreign) = (0, 0);
    let mut latency =
        Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("bounds and digits that the crate allows");
    let mut idle_since = now_ns();
    while !stop.load(Ordering::Relaxed) {
        let (mut received, before) = (0, tracker.counts().frames);
        for wire in &mut *wires {
            // The clock is read once per batch, for its first frame.
            let mut now = None;
            received += wire.receive(|frame| match payload_offset::payload(frame).and_then(Stamp::read) {
                Some(stamp) => {
                    let now = *now.get_or_insert_with(now_ns);
                    tracker.take(stamp);
                    bytes += frame.len() as u64;
                    latency.saturating_record(now.saturating_sub(stamp.sent_ns).max(1));
                }
                None => foreign += 1,
            });
        }
        if received > 0 {
            seen.add(tracker.counts().frames - before);
            idle_since = now_ns();
        } else if now_ns() - idle_since > IDLE_NS {
            sleep(wires);
        } else {
            // Yields the core, since the sender may run on it.
            std::thread::yield_now();
        }
    }
    let Counts { frames, duplicates, reordered } = tracker.counts();
    Measured { frames, bytes, duplicates, reordered, foreign, latency }
}

/// Drops frames that arrived since the last trial: no more than rings hold, so that the loop ends under load.
pub(crate) fn forget(wires: &mut [LinkEnd]) {
    for wire in wires {
        let batches = RING_SLOTS / BATCH_FRAMES_MAX + 1;
        (0..batches).take_while(|_| wire.receive(|_| ()) > 0).for_each(drop);
    }
}

/// Sleeps until a frame arrives, or a short time has passed.
pub(crate) fn sleep(wires: &[LinkEnd]) {
    let mut fds: Vec<PollFd<'_>> =
        wires.iter().filter_map(LinkEnd::fd).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    // Link ends in memory have no file descriptor to poll.
    let tv_nsec = if fds.len() == wires.len() { SLEEP_NS } else { MEMORY_SLEEP_NS };
    // A signal ends the sleep early.
    let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec }));
}
