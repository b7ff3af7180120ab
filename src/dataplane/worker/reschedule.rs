//! Reschedule nudge: forces the scheduler to run on the core of a worker that has not picked up the published
//! snapshot.
//!
//! A worker that shares its core yields it while idle. The thread that takes the core keeps it until the next
//! timer tick (4 ms at `CONFIG_HZ=250`), because the scheduler checks for preemption only there and when a
//! thread wakes on that core. So each core of a worker has a thread that only sleeps; the control side wakes
//! it while it waits for the worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle, park};

/// Nudges one core. The thread on that core ends when this is dropped.
pub(in crate::dataplane) struct Rescheduler {
    thread: JoinHandle<()>,
    stopping: Arc<AtomicBool>,
}

impl Rescheduler {
    /// Starts the thread on the core of worker `number`. Fails if the kernel cannot create the thread.
    pub(in crate::dataplane) fn new(number: usize, core: usize) -> std::io::Result<Rescheduler> {
        let stopping = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&stopping);
        let stand_by = move || {
            core_affinity::set_for_current(core_affinity::CoreId { id: core });
            while !until.load(Ordering::Relaxed) {
                park();
            }
        };
        let thread = Builder::new().name(format!("palisade-k{number}")).spawn(stand_by)?;
        Ok(Rescheduler { thread, stopping })
    }

    /// Wakes the thread on the core, which makes the scheduler check for preemption there.
    pub(in crate::dataplane) fn nudge(&self) {
        self.thread.thread().unpark();
    }
}

impl Drop for Rescheduler {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        // Not joined: the thread may get its core late, and holds nothing that must be released.
        self.nudge();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_thread_outlives_nudges_and_ends_with_the_rescheduler() {
        let rescheduler = Rescheduler::new(0, 0).unwrap();
        (0..3).for_each(|_| rescheduler.nudge());
        assert!(!rescheduler.thread.is_finished());
        let held_by_thread = Arc::clone(&rescheduler.stopping);
        drop(rescheduler);
        let deadline = Instant::now() + Duration::from_secs(10);
        while Arc::strong_count(&held_by_thread) > 1 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(Arc::strong_count(&held_by_thread), 1);
    }
}
