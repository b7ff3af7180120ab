//! The rate of the processor's time-stamp counter.

use std::time::{Duration, Instant};

/// Measures the rate of the time-stamp counter against the clock, in GHz. The counter runs at a constant
/// rate, which is not that of the core.
#[cfg(target_arch = "x86_64")]
pub(crate) fn tsc_ghz() -> f64 {
    // SAFETY: every x86-64 processor has the instruction, and it has no effect.
    let ticks = || unsafe { std::arch::x86_64::_rdtsc() };
    let (start, from) = (Instant::now(), ticks());
    std::thread::sleep(Duration::from_millis(50));
    (ticks() - from) as f64 / start.elapsed().as_nanos() as f64
}

/// Returns 1: on a processor without this counter a tick is a nanosecond.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn tsc_ghz() -> f64 {
    1.0
}
