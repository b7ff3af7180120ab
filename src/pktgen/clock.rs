//! The two clocks of a measurement, and the pinning of threads to cores.

use rustix::time::{ClockId, Timespec, clock_gettime};

use super::PktgenError;

/// Reads `CLOCK_MONOTONIC`, nanoseconds. It is the same for all processes of a host.
#[inline]
pub(super) fn now_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// Reads the CPU time of the calling thread, nanoseconds.
pub(super) fn cpu_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::ThreadCPUTime))
}

#[inline]
fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Pins the calling thread to a core.
pub(super) fn pin(core: Option<usize>) -> Result<(), PktgenError> {
    match core {
        Some(id) if !core_affinity::set_for_current(core_affinity::CoreId { id }) => {
            Err(PktgenError::Core(id))
        }
        _ => Ok(()),
    }
}
