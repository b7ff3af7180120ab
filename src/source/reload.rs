//! The thread that keeps a switch at the policies of its directory.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::directory::{PolicyDirectory, Reload};
use crate::control::Switch;

/// Requests to the thread of [`PolicyDirectory::follow`].
#[derive(Debug)]
pub struct Requests {
    event: OwnedFd,
    reload: AtomicBool,
    stop: AtomicBool,
}

impl Requests {
    /// No request.
    pub fn new() -> io::Result<Requests> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Requests { event, reload: AtomicBool::new(false), stop: AtomicBool::new(false) })
    }

    /// Has the directory read again, changed or not.
    pub fn reload(&self) {
        self.reload.store(true, Ordering::Release);
        self.wake();
    }

    /// Ends [`PolicyDirectory::follow`], after a reload that is under way.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        // EAGAIN: the counter is full, so the reader is awake.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    fn take(&self) {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

impl PolicyDirectory {
    /// Loads the directory into `switch` whenever it changes, until `requests` says stop. What comes of it goes into the log.
    pub fn follow(&mut self, switch: &Switch, requests: &Requests) {
        crate::control::avoid_worker_cores(&switch.status().cores);
        loop {
            self.wait(requests);
            requests.take();
            if requests.stop.load(Ordering::Acquire) {
                return;
            }
            let is_asked = requests.reload.swap(false, Ordering::AcqRel);
            let reload = self.turn(is_asked, switch);
            self.tell(&reload);
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
        // An error (EINTR) is a turn too many.
        let _ = poll(&mut polled, timeout.as_ref());
    }

    fn tell(&self, reload: &Reload) {
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
