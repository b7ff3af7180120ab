//! The fill target of each port: the number of frames that the port is given to receive into.
//!
//! A frame in a fill ring comes back only with a packet in it. So a port begins with a small target, and gets a larger one when it
//! uses half of its frames at once: with equal shares, the first ports would hold most frames, and the last ones none.

use super::ports::{LocalPort, PortList};
use crate::limits::{PORT_BURST_FRAMES_MAX, PORTS_MAX, RING_SLOTS};
use crate::xdp::PortQueue;

/// Fill target of a port before it has shown that it needs more frames.
const INITIAL: usize = 64;
/// The same while there are few ports. The scheduler takes the core of a worker for some milliseconds at a time: a pod that sends
/// 250,000 packets in a second fills this many frames in four.
const INITIAL_OF_FEW: usize = 1024;

/// Fill targets of all ports of a worker. Together they take at most half of the worker's frames: the others are for packets in
/// flight.
pub(super) struct FillBudget {
    frames_total: usize,
    /// Sum of the fill targets of all ports.
    assigned: usize,
}

impl FillBudget {
    pub(super) fn new(frames_total: usize) -> FillBudget {
        FillBudget { frames_total, assigned: 0 }
    }

    /// Largest sum of the fill targets.
    fn assigned_max(&self) -> usize {
        self.frames_total / 2
    }

    /// Fill target of the queue of a further port beside `ports` others, and its least target. Both are zero for a
    /// queue without a fill ring.
    pub(super) fn targets(&mut self, queue: &PortQueue, ports: usize) -> (usize, usize) {
        if queue.has_fill_ring() { (self.assign(ports), self.target_min()) } else { (0, 0) }
    }

    /// Takes the fill target of a further port beside `ports` others from the budget, and returns it.
    fn assign(&mut self, ports: usize) -> usize {
        let min = self.target_min();
        let left = self.assigned_max().saturating_sub(self.assigned);
        // By the number of ports, not by the frames left: earlier ports keep their initial target, whatever theirs is by then.
        let are_few = ports < self.assigned_max() / 2 / INITIAL_OF_FEW;
        let target = left.clamp(min, if are_few { INITIAL_OF_FEW } else { INITIAL.max(min) });
        self.assigned += target;
        target
    }

    /// Returns the fill target of a closed port to the budget.
    pub(super) fn release(&mut self, target: usize) {
        self.assigned -= target;
    }

    /// Fill target that every port keeps in any case: [`PORTS_MAX`] ports take a quarter of all frames.
    pub(super) fn target_min(&self) -> usize {
        (self.frames_total / (4 * PORTS_MAX)).max(1)
    }

    /// Free frames that only a port below its least target takes: they are for the least targets of ports to come, and for packets
    /// in flight. Targets alone do not keep them free: a port whose target falls holds its frames until packets come in them.
    pub(super) fn reserve(&self, ports: usize) -> usize {
        self.frames_total / 16 + (self.frames_total / 4).saturating_sub(self.target_min() * ports)
    }

    /// Largest fill target of one of so many ports: if a quarter of them are busy, and keep their target while they are idle, enough
    /// is left for the others.
    pub(super) fn target_max(&self, ports: usize) -> usize {
        (4 * self.assigned_max() / ports.max(1)).clamp(INITIAL, RING_SLOTS)
    }

    /// Doubles the fill target of a port that has used half of its `had` frames since the last batch, up to `target_max`.
    #[inline]
    pub(super) fn grow(&mut self, port: &mut LocalPort, had: usize, target_max: usize) {
        if had - port.queue.receiving() >= (had / 2).clamp(1, PORT_BURST_FRAMES_MAX) {
            port.is_busy = true;
            let headroom = target_max.saturating_sub(port.fill_target);
            let unassigned = self.assigned_max().saturating_sub(self.assigned);
            let more = port.fill_target.min(headroom).min(unassigned);
            port.fill_target += more;
            self.assigned += more;
        }
    }

    /// Halves the fill target of each port that has not been busy since the last call. All ports keep equal shares of half of the
    /// budget.
    pub(super) fn reclaim(&mut self, ports: &mut PortList) {
        let share = self.assigned_max() / 2 / ports.len().max(1);
        let least = share.clamp(INITIAL, INITIAL_OF_FEW);
        for port in ports.iter_mut() {
            if !port.is_busy && port.fill_target > least {
                let less = port.fill_target - (port.fill_target / 2).max(least);
                port.fill_target -= less;
                self.assigned -= less;
            }
            port.is_busy = false;
        }
    }
}
