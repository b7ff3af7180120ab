//! Event counter (`eventfd(2)`) that wakes a thread from `epoll_wait` or `poll`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// Event counter of one thread.
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    /// Creates an event counter at zero. Fails if the kernel gives none.
    pub(crate) fn new() -> std::io::Result<EventFd> {
        eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map(EventFd).map_err(Into::into)
    }

    /// Wakes the thread, or keeps it from sleeping.
    pub(crate) fn signal(&self) {
        // The counter overflows only if the thread has enough signals already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Clears all signals. Returns whether there were any.
    pub(crate) fn drain(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }

    /// File descriptor that is readable while there are signals.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
