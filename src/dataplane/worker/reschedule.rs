//! A late worker's core is knocked at.
//!
//! A worker that shares its core hands it over while it has nothing to do, and whoever takes it keeps it until the timer's next tick: up to 4 ms at
//! 250 Hz, because only then the scheduler looks whether the turn is over. It also looks when a thread wakes on that core. So each core of a worker
//! has a thread that does nothing, and is woken while somebody waits for the worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle, park};

/// Knocks at one core. The thread there ends when this is dropped.
pub(in crate::dataplane) struct Rescheduler {
    thread: JoinHandle<()>,
    stopping: Arc<AtomicBool>,
}

impl Rescheduler {
    /// At the core of worker `number`; fails where the kernel gives no thread.
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

    /// Makes the scheduler look who shall have the core.
    pub(in crate::dataplane) fn nudge(&self) {
        self.thread.thread().unpark();
    }
}

impl Drop for Rescheduler {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        // Not waited for: it may get its core late, and has nothing to lose.
        self.nudge();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_thread_outlives_knocks_and_ends_with_its_knocker() {
        let knocker = Rescheduler::new(0, 0).unwrap();
        (0..3).for_each(|_| knocker.nudge());
        assert!(!knocker.thread.is_finished());
        let held_by_thread = Arc::clone(&knocker.stopping);
        drop(knocker);
        let deadline = Instant::now() + Duration::from_secs(10);
        while Arc::strong_count(&held_by_thread) > 1 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(Arc::strong_count(&held_by_thread), 1);
    }
}
