//! How a worker hears of frames that others hand to it, whether it works or sleeps; `model.rs` says that it misses none.

use super::parts::{AtomicBool, AtomicU64, EventFd, Ordering, PORTS_MAX, fence};
use crate::ids::PortId;

/// Ports for which other workers have handed frames over to one, and its bell.
pub(crate) struct Doorbell {
    /// Whether there are any. Set after the port's own bit.
    any: AtomicBool,
    ports: [AtomicU64; PORTS_MAX.div_ceil(64)],
    /// Whether the worker sleeps, or is about to and looks once more.
    asleep: AtomicBool,
    eventfd: EventFd,
}

impl Doorbell {
    pub(crate) fn new(eventfd: EventFd) -> Doorbell {
        let ports = std::array::from_fn(|_| AtomicU64::new(0));
        Doorbell { any: AtomicBool::new(false), ports, asleep: AtomicBool::new(false), eventfd }
    }

    /// What the worker is woken with.
    pub(crate) fn eventfd(&self) -> &EventFd {
        &self.eventfd
    }

    /// Tells the worker that there are frames for a port of its. It is woken if it sleeps: a system call, else none.
    pub(crate) fn ring(&self, port: PortId) {
        let bit = 1 << (port.index() % 64);
        self.ports[port.index() / 64].fetch_or(bit, Ordering::Release);
        // A swap: whoever takes the calls hears of all who have called, not just of the last one.
        self.any.swap(true, Ordering::AcqRel);
        // The call is there before the look whether the worker sleeps, and it says that it sleeps before it looks for
        // calls (`may_sleep`): one of the two sees the other.
        fence(Ordering::SeqCst);
        let is_first_to_see =
            || self.asleep.compare_exchange(true, false, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if self.asleep.load(Ordering::Relaxed) && is_first_to_see() {
            self.eventfd.signal();
        }
    }

    /// The ports that the worker was called for, once each.
    #[inline]
    pub(crate) fn take_rung(&self, mut each: impl FnMut(PortId)) {
        if !self.any.load(Ordering::Relaxed) || !self.any.swap(false, Ordering::AcqRel) {
            return;
        }
        for (word, ports) in self.ports.iter().enumerate() {
            let mut called =
                if ports.load(Ordering::Relaxed) == 0 { 0 } else { ports.swap(0, Ordering::Acquire) };
            while called != 0 {
                each(PortId((word * 64) as u16 + called.trailing_zeros() as u16));
                called &= called - 1;
            }
        }
    }

    /// Says that the worker goes to sleep; false where a call has come, and it must not.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.any.load(Ordering::Relaxed)
    }

    /// Says that the worker is awake, and takes note of who has woken it.
    pub(crate) fn finish_sleep(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        self.eventfd.drain();
    }
}
