//! Wake-up of a thread that sleeps in the kernel: `eventfd(2)`, which the thread polls together with its
//! sockets.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// Non-blocking eventfd of one thread.
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    /// Creates an eventfd with a count of zero. Fails if the kernel cannot create it.
    pub(crate) fn new() -> std::io::Result<EventFd> {
        eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map(EventFd).map_err(Into::into)
    }

    /// Wakes the thread, or keeps its next poll from blocking.
    pub(crate) fn signal(&self) {
        // A write fails only if the counter would overflow. The descriptor is readable then in any case.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Clears the counter. Returns whether it was signalled.
    pub(crate) fn drain(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }

    /// Descriptor that is readable while the counter is not zero.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
