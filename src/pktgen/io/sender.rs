//! Loop of a sending thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::pktgen::PktgenError;
use crate::pktgen::clock::{cpu_ns, now_ns};
use crate::pktgen::frames::Source;
use crate::pktgen::io::link_end::LinkEnd;
use crate::pktgen::rate_limiter::RateLimiter;

/// Most frames sent at once. A longer burst is no faster: a kick costs a fraction of the time that the kernel
/// takes for a frame.
const BURST_FRAMES: usize = 64;
/// Wait from which on the thread sleeps, and the last part of a wait that it does not sleep: sleeping is not
/// exact.
const SLEEP_NS: u64 = 200_000;
const SLEEP_MARGIN_NS: u64 = 100_000;

/// Counts of the senders.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sent {
    /// Frames.
    pub frames: u64,
    /// Bytes of the frames in memory, without frame check sequences.
    pub bytes: u64,
    /// Frames that were due and were not sent in time.
    pub behind: u64,
    /// Time from the first frame to the last, nanoseconds.
    pub elapsed_ns: u64,
    /// CPU time of the sending threads, nanoseconds.
    pub cpu_ns: u64,
}

/// End of a trial, by whichever limit is reached first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Until {
    /// Time, nanoseconds.
    pub(crate) elapsed_ns: u64,
    /// Number of frames.
    pub(crate) frames: u64,
}

/// Sends frames of a source when they are due, until a limit is reached or `stop` is set.
pub(crate) fn send(
    wire: &mut LinkEnd,
    source: &mut impl Source,
    limiter: &RateLimiter,
    until: Until,
    stop: &AtomicBool,
) -> Result<Sent, PktgenError> {
    let (start, cpu) = (now_ns(), cpu_ns());
    source.start(start);
    let mut sent = Sent::default();
    loop {
        let now = now_ns();
        sent.elapsed_ns = now - start;
        if sent.elapsed_ns >= until.elapsed_ns || sent.frames >= until.frames || stop.load(Ordering::Relaxed)
        {
            break;
        }
        let due = limiter.due(sent.elapsed_ns, sent.frames).min(until.frames) - sent.frames;
        if due == 0 {
            wait(start + limiter.when(sent.frames), start + until.elapsed_ns);
            continue;
        }
        let count = wire.room().min(BURST_FRAMES).min(usize::try_from(due).unwrap_or(BURST_FRAMES));
        for _ in 0..count {
            let frame = source.next(now);
            sent.bytes += frame.len() as u64;
            wire.stage(frame)?;
        }
        wire.flush()?;
        sent.frames += count as u64;
    }
    sent.cpu_ns = cpu_ns() - cpu;
    if !matches!(limiter, RateLimiter::Max) {
        let wanted = limiter.due(sent.elapsed_ns.min(until.elapsed_ns), sent.frames).min(until.frames);
        // Frames that became due in the last burst are not late.
        sent.behind = wanted.saturating_sub(sent.frames + BURST_FRAMES as u64);
    }
    Ok(sent)
}

/// Waits until a frame is due or the trial ends.
fn wait(due_ns: u64, end_ns: u64) {
    let left = due_ns.min(end_ns).saturating_sub(now_ns());
    if left > SLEEP_NS {
        thread::sleep(Duration::from_nanos(left - SLEEP_MARGIN_NS));
    } else {
        // Yields the core, since the receiver or the device may run on it.
        thread::yield_now();
    }
}

impl Sent {
    /// Adds the counts of a sender that ran at the same time.
    pub(crate) fn with(self, other: Sent) -> Sent {
        Sent {
            frames: self.frames + other.frames,
            bytes: self.bytes + other.bytes,
            behind: self.behind + other.behind,
            elapsed_ns: self.elapsed_ns.max(other.elapsed_ns),
            cpu_ns: self.cpu_ns + other.cpu_ns,
        }
    }
}
