//! The mailbox of a worker: commands of the control side, the doorbell of other workers, and counters.

use crossbeam::channel::Sender;
use crossbeam::queue::ArrayQueue;

use super::doorbell::Doorbell;
use super::handoff::Access;
use crate::dataplane::conntrack::{Key, Slot};
use crate::dataplane::eventfd::EventFd;
use crate::dataplane::stats::WorkerStats;
use crate::ids::PortId;
use crate::limits::COMMANDS_MAX;
use crate::xdp::ClosedQueue;

/// Mailbox of one worker.
pub(crate) struct Mailbox {
    commands: ArrayQueue<Command>,
    /// Notification of hand-offs. Its event counter wakes the worker.
    pub doorbell: Doorbell,
    /// Counters of the worker.
    pub stats: WorkerStats,
}

/// A flow by its slot. The key tells whether the slot has another flow by now.
pub(crate) type SlotAndKey = (Slot, Key);

/// Command of the control side. The worker handles it between two batches.
#[allow(clippy::large_enum_variant)] // There are few, and the large one is the common one.
pub(crate) enum Command {
    /// Open a port.
    Open(PortId, Access),
    /// Close a port and return the access to it. Frames that wait for transmission are dropped.
    Close(PortId, Sender<Access>),
    /// End these flows, and reply with the number of those that have ended and the list of those that wait.
    End(Vec<SlotAndKey>, Sender<(usize, Vec<SlotAndKey>)>),
    /// Take back the frames of a closed queue, and reply.
    Reclaim(ClosedQueue, Sender<()>),
}

impl Mailbox {
    pub(crate) fn new() -> std::io::Result<Mailbox> {
        Ok(Mailbox {
            commands: ArrayQueue::new(COMMANDS_MAX),
            doorbell: Doorbell::new(EventFd::new()?),
            stats: WorkerStats::new(),
        })
    }

    /// Sends a command and wakes the worker. Returns the command if too many are waiting.
    #[allow(clippy::result_large_err)] // The command itself comes back, and nobody copies it in a hurry.
    pub(crate) fn send(&self, command: Command) -> Result<(), Command> {
        self.commands.push(command)?;
        self.wake();
        Ok(())
    }

    /// The oldest command.
    pub(crate) fn next_command(&self) -> Option<Command> {
        self.commands.pop()
    }

    pub(crate) fn wake(&self) {
        self.doorbell.eventfd().signal();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_woken(mailbox: &Mailbox) -> bool {
        mailbox.doorbell.eventfd().drain()
    }

    fn take_rung(mailbox: &Mailbox) -> Vec<u16> {
        let mut ports = Vec::new();
        mailbox.doorbell.take_rung(|port| ports.push(port.0));
        ports
    }

    #[test]
    fn every_port_that_was_rung_for_is_taken_once() {
        let mailbox = Mailbox::new().unwrap();
        assert_eq!(take_rung(&mailbox), [0u16; 0]);
        for port in [0, 1023, 64, 63, 64] {
            mailbox.doorbell.ring(PortId(port));
        }
        assert_eq!(take_rung(&mailbox), [0, 63, 64, 1023]);
        assert_eq!(take_rung(&mailbox), [0u16; 0]);
    }

    #[test]
    fn a_ring_wakes_a_sleeping_worker_once_and_a_working_one_never() {
        let mailbox = Mailbox::new().unwrap();
        mailbox.doorbell.ring(PortId(3));
        assert!(!is_woken(&mailbox), "the worker is awake");
        assert!(!mailbox.doorbell.prepare_sleep(), "a ring has arrived");
        mailbox.doorbell.finish_sleep();
        assert_eq!(take_rung(&mailbox), [3]);
        assert!(mailbox.doorbell.prepare_sleep());
        mailbox.doorbell.ring(PortId(3));
        assert!(is_woken(&mailbox));
        mailbox.doorbell.ring(PortId(4));
        assert!(!is_woken(&mailbox), "the worker was woken already");
    }
}
