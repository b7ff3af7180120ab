//! How a worker is reached: by the control side between two batches, by other workers when they hand it frames.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crossbeam::channel::Sender;
use crossbeam::queue::ArrayQueue;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

use super::handover::Access;
use super::stats::WorkerStats;
use crate::ids::PortId;
use crate::limits::{COMMANDS_MAX, PORTS_MAX};
use crate::xdp::ClosedQueue;

/// The way to one worker.
pub(crate) struct Mailbox {
    commands: ArrayQueue<Command>,
    calls: Calls,
    wake: OwnedFd,
    /// Generation that the worker judges by.
    pub generation: AtomicU32,
    /// Its counters.
    pub stats: WorkerStats,
}

/// What the control side asks of a worker, between two batches.
#[allow(clippy::large_enum_variant)] // There are few, and the large one is the common one.
pub(crate) enum Command {
    /// To serve a port.
    Open(PortId, Access),
    /// To hand its access to a port back, with what still waits to be sent there dropped.
    Close(PortId, Sender<Access>),
    /// To take back the frames of a closed queue; an answer says that it has.
    Reclaim(ClosedQueue, Sender<()>),
}

/// Ports for which other workers have handed frames over.
struct Calls {
    /// Whether there are any. Set after the port's own bit.
    any: AtomicBool,
    ports: [AtomicU64; PORTS_MAX.div_ceil(64)],
    /// Whether the worker sleeps, or is about to and looks once more.
    asleep: AtomicBool,
}

impl Mailbox {
    pub(crate) fn new() -> std::io::Result<Mailbox> {
        use rustix::event::{EventfdFlags, eventfd};
        let calls =
            Calls { any: false.into(), ports: [const { AtomicU64::new(0) }; _], asleep: false.into() };
        Ok(Mailbox {
            commands: ArrayQueue::new(COMMANDS_MAX),
            calls,
            wake: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            generation: AtomicU32::new(0),
            stats: WorkerStats::new(),
        })
    }

    /// Leaves a command and wakes the worker; the command back where too many wait.
    #[allow(clippy::result_large_err)] // The command itself comes back, and nobody copies it in a hurry.
    pub(crate) fn send(&self, command: Command) -> Result<(), Command> {
        self.commands.push(command)?;
        self.wake();
        Ok(())
    }

    /// The command that has waited longest.
    pub(crate) fn next_command(&self) -> Option<Command> {
        self.commands.pop()
    }

    /// Wakes the worker.
    pub(crate) fn wake(&self) {
        // The counter of an eventfd can only overflow when the worker has been told often enough already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// What becomes readable when the worker is woken.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Tells the worker that there are frames for a port of its. It is woken if it sleeps: a system call, else none.
    pub(crate) fn call(&self, port: PortId) {
        let bit = 1 << (port.index() % 64);
        self.calls.ports[port.index() / 64].fetch_or(bit, Ordering::Release);
        // The call is there before the look whether the worker sleeps, and it says that it sleeps before it looks for
        // calls (`may_sleep`): one of the two sees the other, which takes one order of all four.
        self.calls.any.store(true, Ordering::SeqCst);
        if self.calls.asleep.load(Ordering::SeqCst) && self.calls.asleep.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// The ports that the worker was called for, once each.
    #[inline]
    pub(crate) fn take_calls(&self, mut each: impl FnMut(PortId)) {
        if !self.calls.any.load(Ordering::Relaxed) || !self.calls.any.swap(false, Ordering::Acquire) {
            return;
        }
        for (word, ports) in self.calls.ports.iter().enumerate() {
            let mut called =
                if ports.load(Ordering::Relaxed) == 0 { 0 } else { ports.swap(0, Ordering::Acquire) };
            while called != 0 {
                each(PortId((word * 64) as u16 + called.trailing_zeros() as u16));
                called &= called - 1;
            }
        }
    }

    /// Says that the worker goes to sleep; false where a call has come, and it must not.
    pub(crate) fn may_sleep(&self) -> bool {
        self.calls.asleep.store(true, Ordering::SeqCst);
        !self.calls.any.load(Ordering::SeqCst)
    }

    /// Says that the worker is awake, and takes note of who has woken it.
    pub(crate) fn awake(&self) {
        self.calls.asleep.store(false, Ordering::Relaxed);
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_woken(mailbox: &Mailbox) -> bool {
        rustix::io::read(&mailbox.wake, &mut [0; 8]).is_ok()
    }

    fn calls(mailbox: &Mailbox) -> Vec<u16> {
        let mut ports = Vec::new();
        mailbox.take_calls(|port| ports.push(port.0));
        ports
    }

    #[test]
    fn every_port_that_was_called_for_is_named_once() {
        let mailbox = Mailbox::new().unwrap();
        assert_eq!(calls(&mailbox), [0u16; 0]);
        for port in [0, 1023, 64, 63, 64] {
            mailbox.call(PortId(port));
        }
        assert_eq!(calls(&mailbox), [0, 63, 64, 1023]);
        assert_eq!(calls(&mailbox), [0u16; 0]);
    }

    #[test]
    fn a_call_wakes_the_one_who_sleeps_once_and_nobody_else() {
        let mailbox = Mailbox::new().unwrap();
        mailbox.call(PortId(3));
        assert!(!is_woken(&mailbox), "it is awake");
        assert!(!mailbox.may_sleep(), "a call has come");
        mailbox.awake();
        assert_eq!(calls(&mailbox), [3]);
        assert!(mailbox.may_sleep());
        mailbox.call(PortId(3));
        assert!(is_woken(&mailbox));
        mailbox.call(PortId(4));
        assert!(!is_woken(&mailbox), "it was woken already");
    }
}
