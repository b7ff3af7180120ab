//! Threads that never sleep on the system's core, as another tenant of a shared node has them.

use std::hint::spin_loop;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use crate::rig::{SYSTEM_CORE, pin_to_core};

/// Running threads. They end when it is dropped.
pub(crate) struct BusyThreads {
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl BusyThreads {
    /// Starts the threads, on the core of the system under test.
    pub(crate) fn start(count: usize) -> io::Result<BusyThreads> {
        let mut busy = BusyThreads { ended: Arc::default(), threads: Vec::new() };
        for number in 0..count {
            let ended = busy.ended.clone();
            busy.threads.push(Builder::new().name(format!("busy-{number}")).spawn(move || {
                pin_to_core(SYSTEM_CORE);
                while !ended.load(Ordering::Relaxed) {
                    spin_loop();
                }
            })?);
        }
        Ok(busy)
    }
}

impl Drop for BusyThreads {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that has panicked is no longer busy.
            let _ = thread.join();
        }
    }
}
