//! Time that the stages of the packet path take, measured on a sample of the batches.

use std::time::Instant;

use super::counter::Counter;

/// Parts of a batch in their order: reception, the stages, transmission, and the sweep of the flow table.
pub(crate) const PARTS: [&str; 14] = [
    "receive",
    "parse",
    "anti-spoof",
    "local-delivery",
    "translate",
    "lookup",
    "advance",
    "classify",
    "fragments",
    "police",
    "rewrite",
    "count",
    "transmit",
    "age",
];

/// One batch of so many is measured: a reading of the clock costs as much as half a packet.
const INTERVAL: u64 = 64;

/// Times of the measured batches of one worker.
#[derive(Default)]
pub(crate) struct StageTimes {
    /// Nanoseconds of each of [`PARTS`].
    pub nanos: [Counter; PARTS.len()],
    /// Frames of the measured batches.
    pub frames: Counter,
    /// Batches, measured or not.
    batches: Counter,
}

/// Clock of one batch.
pub(crate) struct StageClock {
    /// `None` in a batch that is not measured.
    running: Option<Running>,
}

/// Times of a batch that is measured.
struct Running {
    last: Instant,
    /// Number of the next part.
    next: usize,
    nanos: [u64; PARTS.len()],
}

impl StageTimes {
    /// Starts the clock of a batch.
    #[inline]
    pub(crate) fn start(&self, now: Instant) -> StageClock {
        let is_measured = self.batches.get().is_multiple_of(INTERVAL);
        StageClock { running: is_measured.then_some(Running { last: now, next: 0, nanos: [0; PARTS.len()] }) }
    }

    /// Ends the clock of a batch with `frames` frames.
    #[inline]
    pub(crate) fn finish(&self, clock: &StageClock, frames: usize) {
        self.batches.add(1);
        if let Some(running) = &clock.running {
            self.frames.add(frames as u64);
            self.nanos.iter().zip(running.nanos).for_each(|(sum, nanos)| sum.add(nanos));
        }
    }
}

impl StageClock {
    /// Ends `part`, the next one of a batch with frames.
    #[inline]
    pub(crate) fn lap(&mut self, part: &'static str) {
        if let Some(running) = &mut self.running {
            running.lap(part);
        }
    }
}

impl Running {
    #[cold]
    #[inline(never)]
    fn lap(&mut self, part: &'static str) {
        let now = Instant::now();
        // A batch without frames has no stages.
        if let Some(number) = (self.next..PARTS.len()).find(|number| PARTS[*number] == part) {
            self.nanos[number] = now.saturating_duration_since(self.last).as_nanos() as u64;
            (self.last, self.next) = (now, number + 1);
        }
    }
}
