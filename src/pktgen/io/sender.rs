//! The sending thread's loop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::pktgen::PktgenError;
use crate::pktgen::clock::{cpu_ns, now_ns};
use crate::pktgen::frames::Source;
use crate::pktgen::io::link_end::LinkEnd;
use crate::pktgen::rate_limiter::RateLimiter;

/// Most frames sent at once. More do not make it faster: a kick costs a fraction of one frame's way through the kernel.
const BURST_FRAMES: usize = 64;
/// A frame that is due in more than this is slept for, but for the last part, in which sleeping is not exact.
const SLEEP_NS: u64 = 200_000;
const SLEEP_MARGIN_NS: u64 = 100_000;

/// What was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sent {
    /// Frames.
    pub frames: u64,
    /// Their bytes in memory: without the frame check sequences.
    pub bytes: u64,
    /// Frames that the rate asked for in the time, and that were not sent.
    pub behind: u64,
    /// From the first to the last, nanoseconds.
    pub elapsed_ns: u64,
    /// CPU time of the sending threads, nanoseconds.
    pub cpu_ns: u64,
}

/// When sending ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Until {
    /// After so many nanoseconds.
    pub(crate) elapsed_ns: u64,
    /// After so many frames.
    pub(crate) frames: u64,
}

/// Sends frames of a source when they are due, until told to end.
pub(crate) fn send(
    wire: &mut LinkEnd,
    source: &mut impl Source,
    pace: &RateLimiter,
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
        let due = pace.due(sent.elapsed_ns, sent.frames).min(until.frames) - sent.frames;
        if due == 0 {
            wait(start + pace.when(sent.frames), start + until.elapsed_ns);
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
    if !matches!(pace, RateLimiter::Max) {
        let wanted = pace.due(sent.elapsed_ns.min(until.elapsed_ns), sent.frames).min(until.frames);
        // What is due at the very end is not late.
        sent.behind = wanted.saturating_sub(sent.frames + BURST_FRAMES as u64);
    }
    Ok(sent)
}

/// Waits until a frame is due, or the end.
fn wait(due_ns: u64, end_ns: u64) {
    let left = due_ns.min(end_ns).saturating_sub(now_ns());
    if left > SLEEP_NS {
        thread::sleep(Duration::from_nanos(left - SLEEP_MARGIN_NS));
    } else {
        // Not merely spin: who receives, or what is measured, may be on the same core.
        thread::yield_now();
    }
}

impl Sent {
    /// What several generators sent at the same time.
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
