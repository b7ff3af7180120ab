//! Wait for work: polls of the kernel between batches, and sleep while there is nothing to do.

mod core_share;

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::time::Timespec;

pub(super) use self::core_share::CoreShare;
use super::mailbox::Mailbox;
use super::ports::{LocalPort, PortList};
use crate::dataplane::Polling;
use crate::ids::PortId;

/// Longest sleep: idle flows are swept without traffic, too.
const SLEEP_MAX_MS: i64 = 100;
/// Time without a frame after which frames that the kernel does not transmit no longer keep the worker awake.
const STALLED_AFTER: Duration = Duration::from_millis(10);
/// Time between two kicks of ports whose frames the kernel does not transmit.
const KICK_INTERVAL_MS: i64 = 1;
/// Longest time between two polls of ports that are not active while there are frames to process.
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// Ports that the kernel names in one call. Each call begins with another one.
const EVENTS: usize = 64;
/// Token of the mailbox. A port has its number.
const MAILBOX: u64 = u64::MAX;

/// The epoll instance of a worker, and its recent activity.
pub(super) struct Poller {
    epoll: OwnedFd,
    polling: Polling,
    polled: Instant,
    last_frame: Instant,
    batch_was_empty: bool,
}

impl Poller {
    /// Polls the event counter of `mailbox`, and ports that [`PortList::arm`] adds later.
    pub(super) fn new(polling: Polling, mailbox: &Mailbox) -> std::io::Result<Poller> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let token = epoll::EventData::new_u64(MAILBOX);
        epoll::add(&epoll, mailbox.doorbell.eventfd().fd(), token, epoll::EventFlags::IN)?;
        let now = Instant::now();
        Ok(Poller { epoll, polling, polled: now, last_frame: now, batch_was_empty: true })
    }

    /// The epoll instance.
    pub(super) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Notes the time of a batch that had work.
    pub(super) fn note_batch(&mut self, now: Instant, had_work: bool) {
        self.batch_was_empty = !had_work;
        if had_work {
            self.last_frame = now;
        }
    }

    /// Asks the kernel which ports that are not active have frames; while there is other work, only every [`POLL_INTERVAL`].
    pub(super) fn poll(&mut self, ports: &mut PortList, now: Instant) {
        if !ports.all_active() && (self.batch_was_empty || now.duration_since(self.polled) >= POLL_INTERVAL) {
            self.polled = now;
            self.wait(ports, 0);
        }
    }

    /// Waits until an armed port has frames or the mailbox is signalled, at most `longest_ms` milliseconds. Activates the ports that
    /// have frames.
    fn wait(&self, ports: &mut PortList, longest_ms: i64) {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let timeout = Timespec { tv_sec: 0, tv_nsec: longest_ms * 1_000_000 };
        // A signal handler ends the wait early, and the next batch comes early.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&timeout)) else { return };
        for event in events {
            let token = event.data.u64();
            if token != MAILBOX {
                ports.activate(PortId(token as u16));
            }
        }
    }

    /// Longest time that the worker may sleep, milliseconds; `None` where it may not.
    pub(super) fn sleep_timeout(&self, ports: &PortList, now: Instant) -> Option<i64> {
        let Polling::Adaptive { spin_us } = self.polling else { return None };
        let idle = now.duration_since(self.last_frame);
        if ports.iter_active().all(LocalPort::is_drained) {
            return (idle.as_micros() >= u128::from(spin_us)).then_some(SLEEP_MAX_MS);
        }
        // An interface that is down transmits nothing, however often it is kicked.
        (idle >= STALLED_AFTER).then_some(KICK_INTERVAL_MS)
    }

    /// Sleeps until a frame or a command comes, at most `longest_ms` milliseconds.
    pub(super) fn sleep(&self, ports: &mut PortList, mailbox: &Mailbox, longest_ms: i64) {
        // A port that cannot be armed is still polled after every sleep, SLEEP_MAX_MS at most.
        ports.arm(&self.epoll);
        if mailbox.doorbell.prepare_sleep() {
            self.wait(ports, longest_ms);
        }
        mailbox.doorbell.finish_sleep();
    }
}
