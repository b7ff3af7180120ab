//! What a thread that sleeps in the kernel is woken with: an event counter, which it polls together with its sockets.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// The bell of one thread.
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    /// A silent one; fails where the kernel gives no event counter.
    pub(crate) fn new() -> std::io::Result<EventFd> {
        eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map(EventFd).map_err(Into::into)
    }

    /// Wakes the thread, or keeps it from falling asleep.
    pub(crate) fn signal(&self) {
        // The counter can only overflow when the thread has been told often enough already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Takes note of all rings until now. Whether there were any.
    pub(crate) fn drain(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }

    /// Readable while it rings.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
