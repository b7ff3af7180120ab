//! Sleep of a worker without work, and the counters that it publishes before.

use std::time::Instant;

use super::Worker;

impl Worker {
    /// Publishes the numbers that other parts of the worker keep.
    pub(super) fn publish_counters(&self) {
        let stats = self.stats();
        stats.flows_entered.set(self.flows.inserted);
        stats.flows_ended.set(self.flows.ended);
        stats.flows_evicted.set(self.flows.evicted);
        stats.frames.set(self.umem.frames_total() as u64);
        stats.frames_free.set(self.free.len() as u64);
        stats.frames_in_rings.set(self.umem.frames_lent() as u64);
        stats.fragments_waiting.set(self.fragments.waiting() as u64);
    }

    /// Longest time that the worker may sleep, milliseconds; `None` where it may not.
    pub(super) fn sleep_timeout(&self, now: Instant) -> Option<i64> {
        // A SYN that waits for another worker to end its batch goes on in microseconds. One on an open connection keeps no core
        // awake.
        if self.sweeper.is_behind(self.ms_at(now)) || self.batch.early_syns.has_epoch() {
            return None;
        }
        self.poller.sleep_timeout(&self.ports, now)
    }

    /// Sleeps until a frame or a command arrives, at most `longest_ms` milliseconds.
    pub(super) fn sleep(&mut self, longest_ms: i64) {
        self.stats().sleeps.add(1);
        #[cfg(debug_assertions)]
        panic_if_requested();
        self.shared.conntrack.offline(&self.flows);
        // Another worker may receive the packet that a held one waits for, and wakes nobody.
        let is_waiting = self.fragments.waiting() + self.batch.early_syns.len() > 0;
        let longest_ms = if is_waiting { 1 } else { longest_ms };
        let mailbox = &self.shared.mailboxes[self.id.index()];
        self.poller.sleep(&mut self.ports, mailbox, longest_ms);
    }
}

/// Panics if the file exists that `PALISADE_DEBUG_PANIC` names: tests check a switch that has lost a worker.
#[cfg(debug_assertions)]
fn panic_if_requested() {
    if let Some(file) = std::env::var_os("PALISADE_DEBUG_PANIC") {
        assert!(!std::path::Path::new(&file).exists(), "PALISADE_DEBUG_PANIC says so");
    }
}
