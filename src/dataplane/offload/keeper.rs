//! Thread that renews the lease of the program, ends grace periods, and takes counts over.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::{RecvTimeoutError, Sender, bounded};
use rustix::time::{ClockId, clock_gettime};

use super::Offload;
use crate::xdp::libbpf::wait::wait_for_programs;

/// Pause between two renewals.
const PERIOD: Duration = Duration::from_millis(100);

/// Time after which counts of the program are taken over, long before they begin again.
const COUNT_PERIOD: Duration = Duration::from_secs(30);

/// The thread. It ends with this, and the lease runs out.
pub(crate) struct Keeper {
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the thread. Records forward packets for `lease` after it has ended.
    pub(crate) fn start(offload: &Arc<Offload>, lease: Duration) -> io::Result<Keeper> {
        let (stop, stopped) = bounded::<()>(0);
        let offload = offload.clone();
        let run = move || {
            let start = Instant::now();
            let mut counted = start;
            loop {
                offload.renew_lease(now_ns().saturating_add(lease.as_nanos() as u64));
                if start.elapsed() > lease {
                    offload.release_held();
                }
                offload.end_grace_period(|| wait_for_programs().is_ok());
                if counted.elapsed() > COUNT_PERIOD {
                    offload.count_ports();
                    counted = Instant::now();
                }
                if stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().name("palisade-offload".to_owned()).spawn(run)?;
        Ok(Keeper { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported.
            let _ = thread.join();
        }
    }
}

/// `CLOCK_MONOTONIC_COARSE`, nanoseconds, as `bpf_ktime_get_coarse_ns` reads it.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
