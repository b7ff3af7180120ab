//! The ports of one worker: those with a queue of its own, of which it looks at the active ones, and those that it reaches
//! by other workers.

use rustix::event::epoll;
use rustix::fd::OwnedFd;

use super::handoff::{Access, ReceiveEnds, TransmitEnd};
use super::mailbox::Mailbox;
use crate::ids::PortId;
use crate::limits::{PORT_BURST_FRAMES_MAX, PORTS_MAX, RING_SLOTS};
use crate::xdp::{Frame, PortQueue, Umem};

/// A port's queue, and the frames that wait for its transmit ring.
pub(in crate::dataplane) struct Port {
    pub(in crate::dataplane) id: PortId,
    pub(in crate::dataplane) queue: PortQueue,
    pub(in crate::dataplane) waiting: Vec<Frame>,
    /// What other workers send by this queue.
    receive_ends: ReceiveEnds,
    /// Frames that it is given to receive into.
    pub(in crate::dataplane) fill_target: usize,
    /// As many of them it has even where frames are short.
    fill_target_min: usize,
    /// Whether it has used half of them at once, of late.
    pub(in crate::dataplane) is_busy: bool,
    /// Whether it is in the list of active ports.
    is_active: bool,
    /// Batches in a row without a frame from it, or for it from others.
    pub(in crate::dataplane) idle_polls: u32,
    /// Whether the kernel is to say when it has frames. That costs whoever brings or takes one, each time. Of a memory port it
    /// cannot: every batch looks at it.
    is_armed: bool,
    /// Frames that it has brought or taken since.
    pub(in crate::dataplane) frames_since_arm: usize,
}

/// A port that another worker has the queue of.
struct Remote {
    transmit_end: TransmitEnd,
    /// Whether it has been given frames that its owner has not been told of.
    needs_doorbell: bool,
    /// Whether it is in the list of those that have given less than all their room back.
    is_below_capacity: bool,
}

/// The ports.
pub(in crate::dataplane) struct PortList {
    /// Ports with a queue, in no order.
    ports: Vec<Port>,
    /// Place of a port in `ports`, by its number.
    places: Box<[Option<u16>]>,
    /// Ports that every batch looks at. Of the others the kernel says when there is something to look at, so that an idle
    /// port costs nothing, however many there are.
    active: Vec<PortId>,
    /// Place in `active` that the batch starts with, so that none is last for ever.
    first: usize,
    /// Ports with hand-off queues from other workers.
    with_receive_ends: usize,
    /// Ports without a queue, by their number.
    remotes: Box<[Option<Remote>]>,
    doorbells_due: Vec<PortId>,
    below_capacity: Vec<PortId>,
}

/// Batches in a row without a frame after which a port is no longer looked at in each.
const IDLE_POLLS_MAX: u32 = 64;
/// Frames after which a port that the kernel speaks of is busy enough to be looked at without. In a trial the kernel's word was an
/// eighth of what a frame cost whoever brought it.
const DISARM_FRAMES: usize = 64;

impl Port {
    /// A port at rest.
    pub(in crate::dataplane) fn new(
        queue: PortQueue,
        receive_ends: ReceiveEnds,
        fill_target: usize,
        fill_target_min: usize,
    ) -> Port {
        Port {
            id: queue.port(),
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

    /// Has the kernel say when it has frames, those that it has already counted. Whether the kernel does.
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

    /// Whether the kernel says more than is of use.
    #[inline]
    pub(in crate::dataplane) fn is_woken_too_often(&self) -> bool {
        self.is_armed && self.frames_since_arm >= DISARM_FRAMES
    }

    /// Tells the kernel that it need not say: a port that is busy is looked at anyway.
    pub(in crate::dataplane) fn disarm(&mut self, epoll: &OwnedFd) {
        if let Some(fd) = self.queue.fd() {
            // Fails only where the kernel does not say anyway.
            let _ = epoll::delete(epoll, fd);
        }
        self.is_armed = false;
    }

    /// Gives it frames to receive into, so that `reserve` free ones are left, but for its least.
    #[inline]
    pub(in crate::dataplane) fn refill(&mut self, umem: &mut Umem, free: &mut Vec<Frame>, reserve: usize) {
        let affordable = self.queue.receiving() + free.len().saturating_sub(reserve);
        let fill_target = self.fill_target.min(affordable.max(self.fill_target_min));
        self.queue.refill(umem, free, fill_target);
    }

    /// Frames of UMEM that are on their way out of it.
    #[inline]
    pub(in crate::dataplane) fn in_flight(&self) -> usize {
        self.queue.outstanding() + self.waiting.iter().map(Frame::frames).sum::<usize>()
    }

    /// Whether nothing is on its way out of it.
    pub(in crate::dataplane) fn is_drained(&self) -> bool {
        self.in_flight() == 0 && self.receive_ends.iter().all(|queue| queue.is_empty())
    }

    /// Whether the worker need not look at it until the kernel says that a frame has come, or there is one to send.
    fn may_deactivate(&self) -> bool {
        // Without frames to receive into, none would come that could wake anyone.
        let is_ready = self.queue.lent() >= self.fill_target.min(self.fill_target_min);
        self.idle_polls >= IDLE_POLLS_MAX && is_ready && self.is_drained()
    }

    /// Takes what other workers have for it, as far as it has room: of each at most so much a batch, another one first each time.
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

    /// Ends it: what waits to be sent is dropped.
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
            with_receive_ends: 0,
            remotes: (0..PORTS_MAX).map(|_| None).collect(),
            doorbells_due: Vec::with_capacity(PORTS_MAX),
            below_capacity: Vec::with_capacity(PORTS_MAX),
        }
    }

    /// Adds a port, which the next batch looks at.
    pub(in crate::dataplane) fn add(&mut self, port: Port) {
        let id = port.id;
        self.places[id.index()] = Some(self.ports.len() as u16);
        self.with_receive_ends += usize::from(!port.receive_ends.is_empty());
        self.ports.push(port);
        self.activate(id);
    }

    /// Adds a port that another worker has the queue of. Returns how many frames it takes.
    pub(in crate::dataplane) fn add_remote(&mut self, id: PortId, transmit_end: TransmitEnd) -> usize {
        let room = transmit_end.credit();
        self.remotes[id.index()] =
            Some(Remote { transmit_end, needs_doorbell: false, is_below_capacity: false });
        room
    }

    /// Takes a port with a queue out.
    pub(in crate::dataplane) fn remove(&mut self, id: PortId) -> Option<Port> {
        let place = self.places[id.index()].take()?;
        let port = self.ports.swap_remove(usize::from(place));
        if let Some(moved) = self.ports.get(usize::from(place)) {
            self.places[moved.id.index()] = Some(place);
        }
        self.with_receive_ends -= usize::from(!port.receive_ends.is_empty());
        self.active.retain(|active| *active != id);
        Some(port)
    }

    /// Takes a port out that another worker has the queue of.
    pub(in crate::dataplane) fn remove_remote(&mut self, id: PortId) -> Option<TransmitEnd> {
        let remote = self.remotes[id.index()].take()?;
        self.doorbells_due.retain(|enqueued| *enqueued != id);
        self.below_capacity.retain(|short| *short != id);
        Some(remote.transmit_end)
    }

    /// The queues, at the end.
    pub(in crate::dataplane) fn into_queues(self) -> Vec<PortQueue> {
        self.ports.into_iter().map(|port| port.queue).collect()
    }

    /// Ports with a queue.
    pub(in crate::dataplane) fn iter(&self) -> std::slice::Iter<'_, Port> {
        self.ports.iter()
    }

    /// Number of ports with a queue.
    pub(in crate::dataplane) fn len(&self) -> usize {
        self.ports.len()
    }

    pub(in crate::dataplane) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Port> {
        self.ports.iter_mut()
    }

    /// The port with a queue that has this number.
    #[inline]
    fn get_mut(&mut self, id: PortId) -> Option<&mut Port> {
        let place = self.places[id.index()]?;
        Some(&mut self.ports[usize::from(place)])
    }

    /// Lets every batch look at a port, from the next on.
    pub(in crate::dataplane) fn activate(&mut self, id: PortId) {
        if let Some(place) = self.places[id.index()] {
            activate(&mut self.ports[usize::from(place)], &mut self.active);
        }
    }

    /// Has the kernel say of every active port when it has frames.
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

    /// The active port at this place, which is below their number.
    #[inline]
    pub(in crate::dataplane) fn active_at(&mut self, at: usize) -> Option<&mut Port> {
        self.get_mut(self.active[at])
    }

    /// Active ports.
    #[inline]
    pub(in crate::dataplane) fn iter_active(&self) -> impl Iterator<Item = &Port> {
        self.active.iter().filter_map(|id| Some(&self.ports[usize::from(self.places[id.index()]?)]))
    }

    /// Starts a batch: the active port that was second is first.
    #[inline]
    pub(in crate::dataplane) fn rotate(&mut self) {
        self.first = if self.first + 1 < self.active.len() { self.first + 1 } else { 0 };
    }

    /// The active port whose turn it is after so many others, which are fewer than all.
    #[inline]
    pub(in crate::dataplane) fn active_from_first(&mut self, step: usize) -> Option<&mut Port> {
        let (turn, active) = (self.first + step, self.active.len());
        self.active_at(if turn < active { turn } else { turn - active })
    }

    /// Looks no longer at the active port at this place, if there is no reason to: then its number. The last active port
    /// takes its place.
    #[inline]
    pub(in crate::dataplane) fn deactivate_if_idle(&mut self, at: usize, epoll: &OwnedFd) -> Option<PortId> {
        let port = self.active_at(at).filter(|port| port.may_deactivate())?;
        if !port.arm(epoll) {
            return None;
        }
        port.is_active = false;
        Some(self.active.swap_remove(at))
    }

    /// Takes over what other workers have for ports of this one.
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

    /// Sends a frame by a port that has room for it, if the port is still open.
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

    /// Whether the port has room for one more frame.
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

    /// Tells other workers of what this batch has handed to them.
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

    /// Says how many frames each port takes that another worker has the queue of, where that has changed.
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
fn activate(port: &mut Port, active: &mut Vec<PortId>) {
    port.idle_polls = 0;
    if !port.is_active {
        port.is_active = true;
        active.push(port.id);
    }
}
