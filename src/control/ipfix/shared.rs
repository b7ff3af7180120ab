//! Counters of the exporter, and the denied packets that wait for it.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, OnceLock, PoisonError};

use crossbeam::queue::ArrayQueue;

use super::templates::Denial;
use crate::control::IpfixSettings;
use crate::control::protocol::{DropRecord, IpfixReport};
use crate::dataplane::DropReason;
use crate::limits::EXPORTED_DENIALS_WAITING_MAX;

/// State that the exporter shares with the rest of the control side.
#[derive(Default)]
pub(in crate::control) struct Shared {
    pub(super) messages: AtomicU64,
    pub(super) records: AtomicU64,
    pub(super) unsent_records: AtomicU64,
    send_errors: AtomicU64,
    pub(super) lost_ends: AtomicU64,
    pub(super) missed_flows: AtomicU64,
    pub(super) flows: AtomicU64,
    pub(super) untracked_flows: AtomicU64,
    /// Error of the last message, if that was not sent.
    error: Mutex<Option<String>>,
    /// Set while the exporter runs.
    is_running: AtomicBool,
    denials: OnceLock<ArrayQueue<Denial>>,
    lost_denials: AtomicU64,
}

impl Shared {
    /// Starts or ends the collection of denied packets.
    pub(super) fn run(&self, is_running: bool) {
        self.denials.get_or_init(|| ArrayQueue::new(EXPORTED_DENIALS_WAITING_MAX));
        self.is_running.store(is_running, Relaxed);
    }

    /// Notes the dropped packets that policy has denied.
    pub(in crate::control) fn note_denied(&self, drops: &[DropRecord]) {
        let Some(denials) = self.denials.get().filter(|_| self.is_running.load(Relaxed)) else { return };
        let is_denied =
            |drop: &&DropRecord| matches!(drop.reason, DropReason::PolicyEgress | DropReason::PolicyIngress);
        for drop in drops.iter().filter(is_denied) {
            let Some(key) = drop.flow else { continue };
            let denial = Denial { key, at_unix_ms: drop.at_unix_ms, port: drop.port.clone() };
            if denials.push(denial).is_err() {
                self.lost_denials.fetch_add(1, Relaxed);
            }
        }
    }

    /// Counts an error of a message, or with `None` forgets the last one.
    pub(super) fn note_error(&self, error: Option<&io::Error>) {
        self.send_errors.fetch_add(error.is_some().into(), Relaxed);
        let text = error.map(io::Error::to_string);
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    /// Takes the oldest denied packet.
    pub(super) fn take_denial(&self) -> Option<Denial> {
        self.denials.get()?.pop()
    }

    /// Reports the work of the exporter of these settings.
    pub(in crate::control) fn report(&self, settings: &IpfixSettings) -> IpfixReport {
        let count = |counter: &AtomicU64| counter.load(Relaxed);
        IpfixReport {
            collector: settings.collector,
            messages: count(&self.messages),
            records: count(&self.records),
            unsent_records: count(&self.unsent_records),
            send_errors: count(&self.send_errors),
            lost_ends: count(&self.lost_ends),
            missed_flows: count(&self.missed_flows),
            lost_denials: count(&self.lost_denials),
            flows: count(&self.flows),
            untracked_flows: count(&self.untracked_flows),
            error: self.error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}
