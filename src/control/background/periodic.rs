//! Thread that works at intervals until it is dropped.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::threads;

/// Running thread. Dropping it ends the thread at its next wait.
pub struct Periodic {
    /// Ends the thread when it is closed.
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Waits of such a thread.
pub(super) struct Ticks(Receiver<()>);

impl Periodic {
    /// Starts a thread of this name.
    pub(super) fn start(name: &str, work: impl FnOnce(&Ticks) + Send + 'static) -> io::Result<Periodic> {
        let (stop, stopped) = sync_channel(0);
        let thread = threads::spawn(name, move || work(&Ticks(stopped)))?;
        Ok(Periodic { stop: Some(stop), thread: Some(thread) })
    }
}

impl Ticks {
    /// Waits for this time. Returns whether the thread goes on.
    pub(super) fn wait(&self, interval: Duration) -> bool {
        self.0.recv_timeout(interval) == Err(RecvTimeoutError::Timeout)
    }
}

impl Drop for Periodic {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A panic of the thread has ended the process.
        self.thread.take().map(JoinHandle::join);
    }
}
