//! Doorbell: wakes a worker when another worker hands frames to it. `dataplane/loom_tests.rs` checks that no
//! frame is missed.

use super::parts::{AtomicBool, AtomicU64, EventFd, Ordering, PORTS_MAX, fence};
use crate::ids::PortId;

/// Ports of one worker for which other workers have handed over frames, and the eventfd that wakes the
/// worker.
pub(crate) struct Doorbell {
    /// Whether any port bit is set. Set after the port bit.
    any: AtomicBool,
    ports: [AtomicU64; PORTS_MAX.div_ceil(64)],
    /// Whether the worker sleeps, or is about to sleep and checks `any` once more.
    asleep: AtomicBool,
    eventfd: EventFd,
}

impl Doorbell {
    pub(crate) fn new(eventfd: EventFd) -> Doorbell {
        let ports = std::array::from_fn(|_| AtomicU64::new(0));
        Doorbell { any: AtomicBool::new(false), ports, asleep: AtomicBool::new(false), eventfd }
    }

    /// Eventfd that wakes the worker.
    pub(crate) fn eventfd(&self) -> &EventFd {
        &self.eventfd
    }

    /// Marks `port` as having frames, and wakes the worker if it sleeps. Costs a system call only in that
    /// case.
    pub(crate) fn ring(&self, port: PortId) {
        let bit = 1 << (port.index() % 64);
        self.ports[port.index() / 64].fetch_or(bit, Ordering::Release);
        // A swap reads the last value, so that the taking worker synchronizes with every ringing worker and
        // not only with the last one.
        self.any.swap(true, Ordering::AcqRel);
        // This side stores `any` and then loads `asleep`; `prepare_sleep` stores `asleep` and then loads
        // `any`. With a fence between store and load on both sides, at least one side sees the other's store.
        fence(Ordering::SeqCst);
        let is_first_to_see =
            || self.asleep.compare_exchange(true, false, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if self.asleep.load(Ordering::Relaxed) && is_first_to_see() {
            self.eventfd.signal();
        }
    }

    /// Takes the marked ports, once each.
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

    /// Announces that the worker goes to sleep. Returns false if frames have arrived and the worker must not
    /// sleep.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.any.load(Ordering::Relaxed)
    }

    /// Announces that the worker is awake, and clears the eventfd.
    pub(crate) fn finish_sleep(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        self.eventfd.drain();
    }
}
