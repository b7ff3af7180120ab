//! The receiving thread's loop.

use std::sync::atomic::{AtomicBool, Ordering};

use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::limits::{BATCH_FRAMES_MAX, RING_SLOTS};
use crate::pktgen::clock::now_ns;
use crate::pktgen::frames::payload_offset;
use crate::pktgen::io::link_end::LinkEnd;
use crate::pktgen::io::sequence_tracker::{Counts, Tracker};
use crate::pktgen::session::Progress;
use crate::pktgen::traffic::stamp::Stamp;

/// So long without a frame, and the receiver sleeps in the kernel until one comes.
const IDLE_NS: u64 = 200_000;
/// Longest sleep: so often it looks whether it is to end.
const SLEEP_NS: i64 = 5_000_000;
const MEMORY_SLEEP_NS: i64 = 50_000;
/// Longest latency that is told apart: what takes longer counts as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// What was received and read.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Stamped frames, duplicates with them.
    pub frames: u64,
    /// Their bytes in memory.
    pub bytes: u64,
    /// Frames that had come before.
    pub duplicates: u64,
    /// Frames that came after one of their flow which was sent later.
    pub reordered: u64,
    /// Frames without a stamp: not of the generator's.
    pub foreign: u64,
    /// One-way latency, nanoseconds: from when a burst was made to when the receiver saw the frame.
    pub latency: Histogram<u64>,
}

/// Receives on all wires until told to end.
pub(crate) fn receive(wires: &mut [LinkEnd], flows: u32, stop: &AtomicBool, seen: &Progress) -> Measured {
    let mut tracker = Tracker::new(flows);
    let (mut bytes, mut foreign) = (0, 0);
    let mut latency =
        Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("bounds and digits that the crate allows");
    let mut idle_since = now_ns();
    while !stop.load(Ordering::Relaxed) {
        let (mut received, before) = (0, tracker.counts().frames);
        for wire in &mut *wires {
            // Read once for a batch, when its first frame is seen.
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
            // Not merely spin: the sender may be on the same core.
            std::thread::yield_now();
        }
    }
    let Counts { frames, duplicates, reordered } = tracker.counts();
    Measured { frames, bytes, duplicates, reordered, foreign, latency }
}

/// Throws away what has come since the last trial: no more than rings hold, lest it never ends.
pub(crate) fn forget(wires: &mut [LinkEnd]) {
    for wire in wires {
        let batches = RING_SLOTS / BATCH_FRAMES_MAX + 1;
        (0..batches).take_while(|_| wire.receive(|_| ()) > 0).for_each(drop);
    }
}

/// Sleeps until a frame comes, but not for long.
pub(crate) fn sleep(wires: &[LinkEnd]) {
    let mut fds: Vec<PollFd<'_>> =
        wires.iter().filter_map(LinkEnd::fd).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    // Wires in memory have nothing to wait for but time.
    let tv_nsec = if fds.len() == wires.len() { SLEEP_NS } else { MEMORY_SLEEP_NS };
    // Interrupted by a signal, it wakes early.
    let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec }));
}
