//! Doorbell: notification of a worker that other workers have handed frames to it, while it runs or sleeps.
//! `loom_tests.rs` checks that no notification is lost.

use super::parts::{AtomicBool, AtomicU64, EventFd, Ordering, PORTS_MAX, fence};
use crate::ids::PortId;

/// Ports of a worker that other workers have handed frames to, and its event counter.
pub(crate) struct Doorbell {
    /// Whether any port has a notification. It is set after the port's own bit.
    any: AtomicBool,
    ports: [AtomicU64; PORTS_MAX.div_ceil(64)],
    /// Whether the worker sleeps, or is about to sleep and checks once more.
    asleep: AtomicBool,
    eventfd: EventFd,
}

impl Doorbell {
    pub(crate) fn new(eventfd: EventFd) -> Doorbell {
        let ports = std::array::from_fn(|_| AtomicU64::new(0));
        Doorbell { any: AtomicBool::new(false), ports, asleep: AtomicBool::new(false), eventfd }
    }

    /// Event counter that wakes the worker.
    pub(crate) fn eventfd(&self) -> &EventFd {
        &self.eventfd
    }

    /// Notifies the worker of frames for one of its ports. If it sleeps, it is woken by a system call;
    /// otherwise there is none.
    pub(crate) fn ring(&self, port: PortId) {
        let bit = 1 << (port.index() % 64);
        self.ports[port.index() / 64].fetch_or(bit, Ordering::Release);
        // A swap, not a store: the worker that reads it synchronizes with all callers, not only with the last
        // one.
        self.any.swap(true, Ordering::AcqRel);
        // The caller sets the notification before it reads `asleep`, and the worker sets `asleep` before it
        // reads notifications (`prepare_sleep`): one of the two sees the other.
        fence(Ordering::SeqCst);
        let is_first_to_see =
            || self.asleep.compare_exchange(true, false, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if self.asleep.load(Ordering::Relaxed) && is_first_to_see() {
            self.eventfd.signal();
        }
    }

    /// Calls `each` once for each port that has a notification, and clears it.
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

    /// Announces that the worker goes to sleep. Returns false if there is a notification, and the worker must
    /// not sleep.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.any.load(Ordering::Relaxed)
    }

    /// Announces that the worker is awake, and clears its event counter.
    pub(crate) fn finish_sleep(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        self.eventfd.drain();
    }
}
