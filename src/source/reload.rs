//! Thread that reloads the policy directory.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::directory::{PolicyDirectory, Reload};
use crate::control::Switch;

/// Requests to the thread of [`PolicyDirectory::run`].
#[derive(Debug)]
pub struct Requests {
    event: OwnedFd,
    reload: AtomicBool,
    stop: Arc<AtomicBool>,
}

impl Requests {
    /// Creates an empty set of requests.
    pub fn new() -> io::Result<Requests> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Requests { event, reload: AtomicBool::new(false), stop: Arc::default() })
    }

    /// Whether a stop is requested.
    pub fn stopping(&self) -> &Arc<AtomicBool> {
        &self.stop
    }

    /// Requests a reload, even without a change.
    pub fn reload(&self) {
        self.reload.store(true, Ordering::Release);
        self.wake();
    }

    /// Ends [`PolicyDirectory::run`] after a running reload.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        // EAGAIN: the counter is full, so the reader will wake up.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    fn take(&self) {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

impl PolicyDirectory {
    /// Loads the directory into `switch` after each change, until a stop is requested. Logs the outcomes, and calls
    /// `reloaded` after each requested reload.
    pub fn run(&mut self, switch: &Switch, requests: &Requests, reloaded: impl Fn()) {
        crate::control::avoid_worker_cores(&switch.status().cores);
        loop {
            self.wait(requests);
            requests.take();
            if requests.stop.load(Ordering::Acquire) {
                return;
            }
            let reload_requested = requests.reload.swap(false, Ordering::AcqRel);
            let reload = self.turn(reload_requested, switch);
            self.log_outcome(&reload);
            if reload_requested {
                reloaded();
            }
        }
    }

    /// Waits for an event, a request, or the time of the next turn.
    fn wait(&self, requests: &Requests) {
        let left = self.next_turn().map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        });
        let request = PollFd::new(&requests.event, PollFlags::IN);
        let events = self.descriptor().map(|events| PollFd::from_borrowed_fd(events, PollFlags::IN));
        let mut polled: Vec<PollFd<'_>> = std::iter::once(request).chain(events).collect();
        // After an error (EINTR) a superfluous turn does no harm.
        let _ = poll(&mut polled, timeout.as_ref());
    }

    fn log_outcome(&self, reload: &Reload) {
        let directory = self.path().display();
        match reload {
            Reload::NotDue => {}
            Reload::Same => tracing::info!(%directory, "policy read again: nothing has changed"),
            Reload::Loaded { generation, warnings } => {
                for warning in warnings {
                    tracing::warn!("{warning}");
                }
                tracing::info!(%directory, %generation, "policy loaded");
            }
            Reload::Rejected(errors) => {
                tracing::error!(%directory, "the running policy stays, this one is rejected: {}", errors.join("\n"));
            }
        }
    }
}
