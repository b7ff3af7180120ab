//! The ports of one worker: those with a queue of the worker's own, and remote ones, whose queues other
//! workers have.

use rustix::event::epoll;
use rustix::fd::OwnedFd;

use super::handoff::{Access, ReceiveEnds, TransmitEnd};
use super::mailbox::Mailbox;
use crate::ids::PortId;
use crate::limits::{PORT_BURST_FRAMES_MAX, PORTS_MAX, RING_SLOTS};
use crate::xdp::{Frame, PortQueue, Umem};

/// Queue of a port, and the frames that wait for its transmit ring.
pub(in crate::dataplane) struct LocalPort {
    pub(in crate::dataplane) id: PortId,
    pub(in crate::dataplane) queue: PortQueue,
    /// Whether packets of the port come with virtio-net headers.
    pub(in crate::dataplane) takes_segments: bool,
    pub(in crate::dataplane) waiting: Vec<Frame>,
    /// Receive ends of the hand-off queues of other workers.
    receive_ends: ReceiveEnds,
    /// Frames that the port is given to receive into.
    pub(in crate::dataplane) fill_target: usize,
    /// Fill target that the port keeps while free frames are short.
    fill_target_min: usize,
    /// Whether the port has used half of its frames at once since the last reclaim.
    pub(in crate::dataplane) is_busy: bool,
    /// Whether the port is in the list of active ports.
    is_active: bool,
    /// Batches in a row without a frame from the port, or from other workers for it.
    pub(in crate::dataplane) idle_polls: u32,
    /// Whether the epoll instance watches the port. Each wake-up costs the thread that causes it. A memory
    /// port cannot be watched: every batch polls it.
    is_armed: bool,
    /// Frames received and transmitted since the port was armed.
    pub(in crate::dataplane) frames_since_arm: usize,
}

/// A port whose queue another worker has.
struct RemotePort {
    transmit_end: TransmitEnd,
    /// Whether it has frames in its hand-off queue that its owner has not been notified of.
    needs_doorbell: bool,
    /// Whether it is in the list of ports whose hand-off queue is not empty.
    is_below_capacity: bool,
}

/// Ports of a worker.
pub(in crate::dataplane) struct PortList {
    /// Ports with a queue, in no order.
    ports: Vec<LocalPort>,
    /// Index of a port in `ports`, by its number.
    places: Box<[Option<u16>]>,
    /// Active ports, which every batch polls. The others are armed: the kernel reports their frames, so that
    /// idle ports cost nothing, however many there are.
    active: Vec<PortId>,
    /// Index in `active` that the batch starts with. It rotates, so that no port is always last.
    first: usize,
    /// Number of ports that take packets with segments.
    taps: usize,
    /// Number of ports with hand-off queues from other workers.
    with_receive_ends: usize,
    /// Remote ports, by their number.
    remotes: Box<[Option<RemotePort>]>,
    doorbells_due: Vec<PortId>,
    below_capacity: Vec<PortId>,
}

/// Batches in a row without a frame after which a port becomes inactive.
const IDLE_POLLS_MAX: u32 = 64;
/// Frames after which an armed port is busy enough to be polled without wake-ups. A wake-up was measured at
/// an eighth of the cost of a frame for its sender.
const DISARM_FRAMES: usize = 64;

impl LocalPort {
    /// A port that is neither active nor armed.
    pub(in crate::dataplane) fn new(
        queue: PortQueue,
        receive_ends: ReceiveEnds,
        fill_target: usize,
        fill_target_min: usize,
    ) -> LocalPort {
        LocalPort {
            id: queue.port(),
            takes_segments: queue.takes_segments(),
            queue,
            waiting: Vec::with_capacity(RING_SLOTS),
            receive_ends,
            fill_target,
            fill_target_min,
            is_busy: false,
            is_active: false,
            idle_polls: 0,
            is_armed: false,
            frames_since_arm: 0,
        }
    }

    /// Arms the port: the epoll instance reports its frames, including those already in the ring. Returns
    /// whether the port is armed.
    fn arm(&mut self, epoll: &OwnedFd) -> bool {
        if !self.is_armed
            && let Some(fd) = self.queue.fd()
        {
            let name = epoll::EventData::new_u64(self.id.index() as u64);
            self.is_armed = epoll::add(epoll, fd, name, epoll::EventFlags::IN).is_ok();
            self.frames_since_arm = 0;
        }
        self.is_armed
    }

    /// Whether the wake-ups of an armed port cost more than polling it.
    #[inline]
    pub(in crate::dataplane) fn is_woken_too_often(&self) -> bool {
        self.is_armed && self.frames_since_arm >= DISARM_FRAMES
    }

    /// Disarms the port.
    pub(in crate::dataplane) fn disarm(&mut self, epoll: &OwnedFd) {
        if let Some(fd) = self.queue.fd() {
            // The call fails only if the epoll instance does not watch the port.
            let _ = epoll::delete(epoll, fd);
        }
        self.is_armed = false;
    }

    /// Fills the fill ring up to the fill target, as far as `reserve` frames stay free; up to the least
    /// target in any case.
    #[inline]
    pub(in crate::dataplane) fn refill(&mut self, umem: &mut Umem, free: &mut Vec<Frame>, reserve: usize) {
        let affordable = self.queue.receiving() + free.len().saturating_sub(reserve);
        let fill_target = self.fill_target.min(affordable.max(self.fill_target_min));
        self.queue.refill(umem, free, fill_target);
    }

    /// Frames of UMEM in flight: in the transmit ring, or waiting for it.
    #[inline]
    pub(in crate::dataplane) fn in_flight(&self) -> usize {
        self.queue.outstanding() + self.waiting.iter().map(Frame::frames).sum::<usize>()
    }

    /// Whether the port has no frame in flight.
    pub(in crate::dataplane) fn is_drained(&self) -> bool {
        self.in_flight() == 0 && self.receive_ends.iter().all(|queue| queue.is_empty())
    }

    /// Whether the port may become inactive.
    fn may_deactivate(&self) -> bool {
        // Without frames in the fill ring the port would receive none, and nothing would wake the worker.
        let is_ready = self.queue.lent() >= self.fill_target.min(self.fill_target_min);
        self.idle_polls >= IDLE_POLLS_MAX && is_ready && self.is_drained()
    }

    /// Moves frames out of the hand-off queues, as far as the port has credit: at most a burst of each queue,
    /// from another one first in each batch.
    fn receive_handoff(&mut self, turn: usize, umem: &Umem, free: &mut Vec<Frame>) -> usize {
        let mut taken = 0;
        for step in 0..self.receive_ends.len() {
            let queue = &self.receive_ends[(turn + step) % self.receive_ends.len()];
            let share = free.len().clamp(PORT_BURST_FRAMES_MAX, RING_SLOTS);
            let room = share.saturating_sub(self.in_flight());
            taken += queue.dequeue(umem, free, &mut self.waiting, room.min(PORT_BURST_FRAMES_MAX));
        }
        if taken > 0 {
            self.idle_polls = 0;
        }
        taken
    }

    /// Closes the port. Frames that wait for transmission are dropped.
    pub(in crate::dataplane) fn close(mut self, umem: &Umem, free: &mut Vec<Frame>) -> Access {
        self.waiting.drain(..).for_each(|frame| umem.release(frame, free));
        Access::Queue(self.queue, self.receive_ends)
    }
}

impl PortList {
    pub(in crate::dataplane) fn new() -> PortList {
        PortList {
            ports: Vec::with_capacity(PORTS_MAX),
            places: vec![None; PORTS_MAX].into(),
            active: Vec::with_capacity(PORTS_MAX),
            first: 0,
            taps: 0,
            with_receive_ends: 0,
            remotes: (0..PORTS_MAX).map(|_| None).collect(),
            doorbells_due: Vec::with_capacity(PORTS_MAX),
            below_capacity: Vec::with_capacity(PORTS_MAX),
        }
    }

    /// Adds a port, as an active one.
    pub(in crate::dataplane) fn add(&mut self, port: LocalPort) {
        let id = port.id;
        self.places[id.index()] = Some(self.ports.len() as u16);
        self.taps += usize::from(port.takes_segments);
        self.with_receive_ends += usize::from(!port.receive_ends.is_empty());
        self.ports.push(port);
        self.activate(id);
    }

    /// Adds a remote port. Returns its credit, frames.
    pub(in crate::dataplane) fn add_remote(&mut self, id: PortId, transmit_end: TransmitEnd) -> usize {
        let room = transmit_end.credit();
        self.remotes[id.index()] =
            Some(RemotePort { transmit_end, needs_doorbell: false, is_below_capacity: false });
        room
    }

    /// Removes a port with a queue.
    pub(in crate::dataplane) fn remove(&mut self, id: PortId) -> Option<LocalPort> {
        let place = self.places[id.index()].take()?;
        let port = self.ports.swap_remove(usize::from(place));
        if let Some(moved) = self.ports.get(usize::from(place)) {
            self.places[moved.id.index()] = Some(place);
        }
        self.taps -= usize::from(port.takes_segments);
        self.with_receive_ends -= usize::from(!port.receive_ends.is_empty());
        self.active.retain(|active| *active != id);
        Some(port)
    }

    /// Removes a remote port.
    pub(in crate::dataplane) fn remove_remote(&mut self, id: PortId) -> Option<TransmitEnd> {
        let remote = self.remotes[id.index()].take()?;
        self.doorbells_due.retain(|enqueued| *enqueued != id);
        self.below_capacity.retain(|short| *short != id);
        Some(remote.transmit_end)
    }

    /// Converts the ports to their queues.
    pub(in crate::dataplane) fn into_queues(self) -> Vec<PortQueue> {
        self.ports.into_iter().map(|port| port.queue).collect()
    }

    /// Ports with a queue.
    pub(in crate::dataplane) fn iter(&self) -> std::slice::Iter<'_, LocalPort> {
        self.ports.iter()
    }

    /// Number of ports with a queue.
    pub(in crate::dataplane) fn len(&self) -> usize {
        self.ports.len()
    }

    pub(in crate::dataplane) fn iter_mut(&mut self) -> std::slice::IterMut<'_, LocalPort> {
        self.ports.iter_mut()
    }

    /// The port with a queue that has this number.
    #[inline]
    pub(super) fn get_mut(&mut self, id: PortId) -> Option<&mut LocalPort> {
        let place = self.places[id.index()]?;
        Some(&mut self.ports[usize::from(place)])
    }

    /// Makes a port active.
    pub(in crate::dataplane) fn activate(&mut self, id: PortId) {
        if let Some(place) = self.places[id.index()] {
            activate(&mut self.ports[usize::from(place)], &mut self.active);
        }
    }

    /// Arms every active port.
    pub(in crate::dataplane) fn arm(&mut self, epoll: &OwnedFd) {
        for id in &self.active {
            if let Some(place) = self.places[id.index()] {
                self.ports[usize::from(place)].arm(epoll);
            }
        }
    }

    /// Whether every port is active.
    pub(in crate::dataplane) fn all_active(&self) -> bool {
        self.active.len() == self.ports.len()
    }

    /// Number of active ports.
    #[inline]
    pub(in crate::dataplane) fn active_len(&self) -> usize {
        self.active.len()
    }

    /// The active port at this index, which is below their number.
    #[inline]
    pub(in crate::dataplane) fn active_at(&mut self, at: usize) -> Option<&mut LocalPort> {
        self.get_mut(self.active[at])
    }

    /// Active ports.
    #[inline]
    pub(in crate::dataplane) fn iter_active(&self) -> impl Iterator<Item = &LocalPort> {
        self.active.iter().filter_map(|id| Some(&self.ports[usize::from(self.places[id.index()]?)]))
    }

    /// Starts a batch with the next active port.
    #[inline]
    pub(in crate::dataplane) fn rotate(&mut self) {
        self.first = if self.first + 1 < self.active.len() { self.first + 1 } else { 0 };
    }

    /// The active port `step` places after the one that the batch starts with. `step` is below their number.
    #[inline]
    pub(in crate::dataplane) fn active_from_first(&mut self, step: usize) -> Option<&mut LocalPort> {
        let (turn, active) = (self.first + step, self.active.len());
        self.active_at(if turn < active { turn } else { turn - active })
    }

    /// Arms the active port at this index and makes it inactive, if it may become so. Then it returns its
    /// number, and the last active port takes its index.
    #[inline]
    pub(in crate::dataplane) fn deactivate_if_idle(&mut self, at: usize, epoll: &OwnedFd) -> Option<PortId> {
        let port = self.active_at(at).filter(|port| port.may_deactivate())?;
        if !port.arm(epoll) {
            return None;
        }
        port.is_active = false;
        Some(self.active.swap_remove(at))
    }

    /// Moves the frames that other workers have handed off for ports of this one. Returns their number.
    #[inline]
    pub(in crate::dataplane) fn receive_handoff(
        &mut self,
        from: &Mailbox,
        umem: &Umem,
        free: &mut Vec<Frame>,
    ) -> usize {
        if self.with_receive_ends == 0 {
            return 0;
        }
        from.doorbell.take_rung(|id| self.activate(id));
        let (mut taken, turn) = (0, self.first);
        for at in 0..self.active.len() {
            if let Some(port) = self.active_at(at) {
                taken += port.receive_handoff(turn, umem, free);
            }
        }
        taken
    }

    /// Sends a frame by a port that has credit for it, if the port is still open.
    #[inline]
    pub(in crate::dataplane) fn send(
        &mut self,
        out: PortId,
        frame: Frame,
        umem: &Umem,
        free: &mut Vec<Frame>,
    ) {
        if let Some(place) = self.places[out.index()] {
            let port = &mut self.ports[usize::from(place)];
            port.waiting.push(frame);
            activate(port, &mut self.active);
        } else {
            self.send_remote(out, &frame, umem);
            umem.release(frame, free);
        }
    }

    /// Whether a port takes packets with segments.
    #[inline]
    pub(in crate::dataplane) fn has_taps(&self) -> bool {
        self.taps > 0
    }

    /// Whether the port has credit for one more frame.
    pub(in crate::dataplane) fn has_credit(&mut self, out: PortId) -> bool {
        match (&self.remotes[out.index()], self.places[out.index()]) {
            (Some(remote), _) => remote.transmit_end.credit() > 0,
            (None, Some(place)) => self.ports[usize::from(place)].waiting.len() < RING_SLOTS,
            (None, None) => false,
        }
    }

    #[inline(never)]
    fn send_remote(&mut self, out: PortId, packet: &Frame, umem: &Umem) {
        if let Some(remote) = &mut self.remotes[out.index()] {
            let enqueued = remote.transmit_end.enqueue(umem, packet);
            debug_assert!(enqueued, "the room was counted before");
            if !remote.needs_doorbell {
                remote.needs_doorbell = true;
                self.doorbells_due.push(out);
            }
        }
    }

    /// Rings the doorbells of the workers that this batch has handed frames to.
    #[inline]
    pub(in crate::dataplane) fn ring_doorbells(&mut self, mailboxes: &[Mailbox]) {
        for id in self.doorbells_due.drain(..) {
            if let Some(remote) = &mut self.remotes[id.index()] {
                mailboxes[remote.transmit_end.owner.index()].doorbell.ring(id);
                remote.needs_doorbell = false;
                if !remote.is_below_capacity {
                    remote.is_below_capacity = true;
                    self.below_capacity.push(id);
                }
            }
        }
    }

    /// Updates the transmit credit of the remote ports whose credit has changed.
    #[inline]
    pub(in crate::dataplane) fn refresh_remote_credit(&mut self, room: &mut [u32]) {
        let remotes = &mut self.remotes;
        self.below_capacity.retain(|id| {
            let Some(remote) = &mut remotes[id.index()] else { return false };
            let there = remote.transmit_end.credit();
            room[id.index()] = there as u32;
            remote.is_below_capacity = there < remote.transmit_end.capacity();
            remote.is_below_capacity
        });
    }
}

#[inline]
fn activate(port: &mut LocalPort, active: &mut Vec<PortId>) {
    port.idle_polls = 0;
    if !port.is_active {
        port.is_active = true;
        active.push(port.id);
    }
}
