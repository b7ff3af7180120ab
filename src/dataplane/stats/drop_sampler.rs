//! Samples of dropped frames: a bounded number for each reason, so that a flood of one does not hide the others.

use crossbeam::queue::ArrayQueue;

use super::counter::Counter;
use crate::dataplane::{DropReason, DropSample};

const REASONS: usize = DropReason::ALL.len();
/// Time in which each reason has [`SAMPLES_MAX`] samples, milliseconds.
const PERIOD_MS: u32 = 256;
/// Samples of one reason in a period.
const SAMPLES_MAX: u64 = 16;
/// Samples that wait for the control side: two periods of all reasons, and more.
const WAITING_MAX: usize = 1280;

const _: () = assert!(2 * REASONS * SAMPLES_MAX as usize <= WAITING_MAX);

/// Samples of one worker. The worker adds them, and the control side takes them. Neither waits.
pub(crate) struct DropSampler {
    period: Counter,
    left: [Counter; REASONS],
    samples: ArrayQueue<DropSample>,
    /// Samples that found no place.
    lost: Counter,
}

impl DropSampler {
    pub(super) fn new() -> DropSampler {
        let sampler = DropSampler {
            period: Counter::new(),
            left: [const { Counter::new() }; REASONS],
            samples: ArrayQueue::new(WAITING_MAX),
            lost: Counter::new(),
        };
        // No period has this number, so that the first drop begins one.
        sampler.period.set(u64::MAX);
        sampler
    }

    /// Whether a frame that is dropped for `reason` is to be sampled. Only the worker calls this.
    #[inline]
    pub(crate) fn takes(&self, reason: DropReason, now_ms: u32) -> bool {
        let period = u64::from(now_ms / PERIOD_MS);
        if self.period.get() != period {
            self.period.set(period);
            self.left.iter().for_each(|left| left.set(SAMPLES_MAX));
        }
        let left = &self.left[reason as usize];
        let takes = left.get() > 0;
        left.set(left.get().saturating_sub(1));
        takes
    }

    /// Adds a sample. Only the worker calls this.
    #[inline(never)]
    pub(crate) fn add(&self, sample: DropSample) {
        if self.samples.push(sample).is_err() {
            self.lost.add(1);
        }
    }

    /// Takes the oldest sample.
    pub(crate) fn take(&self) -> Option<DropSample> {
        self.samples.pop()
    }

    /// Samples that found no place since the start.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.get()
    }
}
