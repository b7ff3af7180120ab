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
    inlets: ReceiveEnds,
    /// Frames that it is given to receive into.
    pub(in crate::dataplane) level: usize,
    /// As many of them it has even where frames are short.
    least: usize,
    /// Whether it has used half of them at once, of late.
    pub(in crate::dataplane) is_busy: bool,
    /// Whether it is in the list of active ports.
    is_active: bool,
    /// Batches in a row without a frame from it, or for it from others.
    pub(in crate::dataplane) quiet: u32,
    /// Whether the kernel is to say when it has frames. That costs whoever brings or takes one, each time. Of a memory port it
    /// cannot: every batch looks at it.
    is_listened_to: bool,
    /// Frames that it has brought or taken since.
    pub(in crate::dataplane) moved: usize,
}

/// A port that another worker has the queue of.
struct Remote {
    outlet: TransmitEnd,
    /// Whether it has been given frames that its owner has not been told of.
    is_given: bool,
    /// Whether it is in the list of those that have given less than all their room back.
    is_short: bool,
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
    turn: usize,
    /// Ports with lanes from other workers.
    with_inlets: usize,
    /// Ports without a queue, by their number.
    remotes: Box<[Option<Remote>]>,
    given: Vec<PortId>,
    short: Vec<PortId>,
}

/// Batches in a row without a frame after which a port is no longer looked at in each.
const QUIET_BATCHES: u32 = 64;
/// Frames after which a port that the kernel speaks of is busy enough to be looked at without. In a trial the kernel's word was an
/// eighth of what a frame cost whoever brought it.
const BUSY_FRAMES: usize = 64;

impl Port {
    /// A port at rest.
    pub(in crate::dataplane) fn new(
        queue: PortQueue,
        inlets: ReceiveEnds,
        level: usize,
        least: usize,
    ) -> Port {
        Port {
            id: queue.port(),
            queue,
            waiting: Vec::with_capacity(RING_SLOTS),
            inlets,
            level,
            least,
            is_busy: false,
            is_active: false,
            quiet: 0,
            is_listened_to: false,
            moved: 0,
        }
    }

    /// Has the kernel say when it has frames, those that it has already counted. Whether the kernel does.
    fn listen(&mut self, epoll: &OwnedFd) -> bool {
        if !self.is_listened_to
            && let Some(fd) = self.queue.fd()
        {
            let name = epoll::EventData::new_u64(self.id.index() as u64);
            self.is_listened_to = epoll::add(epoll, fd, name, epoll::EventFlags::IN).is_ok();
            self.moved = 0;
        }
        self.is_listened_to
    }

    /// Whether the kernel says more than is of use.
    #[inline]
    pub(in crate::dataplane) fn is_told_too_often(&self) -> bool {
        self.is_listened_to && self.moved >= BUSY_FRAMES
    }

    /// Tells the kernel that it need not say: a port that is busy is looked at anyway.
    pub(in crate::dataplane) fn stop_listening(&mut self, epoll: &OwnedFd) {
        if let Some(fd) = self.queue.fd() {
            // Fails only where the kernel does not say anyway.
            let _ = epoll::delete(epoll, fd);
        }
        self.is_listened_to = false;
    }

    /// Gives it frames to receive into, so that `reserve` free ones are left, but for its least.
    #[inline]
    pub(in crate::dataplane) fn refill(&mut self, umem: &mut Umem, free: &mut Vec<Frame>, reserve: usize) {
        let affordable = self.queue.receiving() + free.len().saturating_sub(reserve);
        let level = self.level.min(affordable.max(self.least));
        self.queue.refill(umem, free, level);
    }

    /// Frames of UMEM that are on their way out of it.
    #[inline]
    pub(in crate::dataplane) fn leaving(&self) -> usize {
        self.queue.outstanding() + self.waiting.iter().map(Frame::frames).sum::<usize>()
    }

    /// Whether nothing is on its way out of it.
    pub(in crate::dataplane) fn has_sent_all(&self) -> bool {
        self.leaving() == 0 && self.inlets.iter().all(|lane| lane.is_empty())
    }

    /// Whether the worker need not look at it until the kernel says that a frame has come, or there is one to send.
    fn may_rest(&self) -> bool {
        // Without frames to receive into, none would come that could wake anyone.
        let is_ready = self.queue.lent() >= self.level.min(self.least);
        self.quiet >= QUIET_BATCHES && is_ready && self.has_sent_all()
    }

    /// Takes what other workers have for it, as far as it has room: of each at most so much a batch, another one first each time.
    fn take_handed_over(&mut self, turn: usize, umem: &Umem, free: &mut Vec<Frame>) -> usize {
        let mut taken = 0;
        for step in 0..self.inlets.len() {
            let lane = &self.inlets[(turn + step) % self.inlets.len()];
            let share = free.len().clamp(PORT_BURST_FRAMES_MAX, RING_SLOTS);
            let room = share.saturating_sub(self.leaving());
            taken += lane.take(umem, free, &mut self.waiting, room.min(PORT_BURST_FRAMES_MAX));
        }
        if taken > 0 {
            self.quiet = 0;
        }
        taken
    }

    /// Ends it: what waits to be sent is dropped.
    pub(in crate::dataplane) fn close(mut self, umem: &Umem, free: &mut Vec<Frame>) -> Access {
        self.waiting.drain(..).for_each(|frame| umem.release(frame, free));
        Access::Queue(self.queue, self.inlets)
    }
}

impl PortList {
    pub(in crate::dataplane) fn new() -> PortList {
        PortList {
            ports: Vec::with_capacity(PORTS_MAX),
            places: vec![None; PORTS_MAX].into(),
            active: Vec::with_capacity(PORTS_MAX),
            turn: 0,
            with_inlets: 0,
            remotes: (0..PORTS_MAX).map(|_| None).collect(),
            given: Vec::with_capacity(PORTS_MAX),
            short: Vec::with_capacity(PORTS_MAX),
        }
    }

    /// Adds a port, which the next batch looks at.
    pub(in crate::dataplane) fn add(&mut self, port: Port) {
        let id = port.id;
        self.places[id.index()] = Some(self.ports.len() as u16);
        self.with_inlets += usize::from(!port.inlets.is_empty());
        self.ports.push(port);
        self.activate(id);
    }

    /// Adds a port that another worker has the queue of. Returns how many frames it takes.
    pub(in crate::dataplane) fn add_remote(&mut self, id: PortId, outlet: TransmitEnd) -> usize {
        let room = outlet.room();
        self.remotes[id.index()] = Some(Remote { outlet, is_given: false, is_short: false });
        room
    }

    /// Takes a port with a queue out.
    pub(in crate::dataplane) fn remove(&mut self, id: PortId) -> Option<Port> {
        let place = self.places[id.index()].take()?;
        let port = self.ports.swap_remove(usize::from(place));
        if let Some(moved) = self.ports.get(usize::from(place)) {
            self.places[moved.id.index()] = Some(place);
        }
        self.with_inlets -= usize::from(!port.inlets.is_empty());
        self.active.retain(|active| *active != id);
        Some(port)
    }

    /// Takes a port out that another worker has the queue of.
    pub(in crate::dataplane) fn remove_remote(&mut self, id: PortId) -> Option<TransmitEnd> {
        let remote = self.remotes[id.index()].take()?;
        self.given.retain(|given| *given != id);
        self.short.retain(|short| *short != id);
        Some(remote.outlet)
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
    pub(in crate::dataplane) fn listen(&mut self, epoll: &OwnedFd) {
        for id in &self.active {
            if let Some(place) = self.places[id.index()] {
                self.ports[usize::from(place)].listen(epoll);
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
    pub(in crate::dataplane) fn take_turn(&mut self) {
        self.turn = if self.turn + 1 < self.active.len() { self.turn + 1 } else { 0 };
    }

    /// The active port whose turn it is after so many others, which are fewer than all.
    #[inline]
    pub(in crate::dataplane) fn active_after(&mut self, step: usize) -> Option<&mut Port> {
        let (turn, active) = (self.turn + step, self.active.len());
        self.active_at(if turn < active { turn } else { turn - active })
    }

    /// Looks no longer at the active port at this place, if there is no reason to: then its number. The last active port
    /// takes its place.
    #[inline]
    pub(in crate::dataplane) fn rest(&mut self, at: usize, epoll: &OwnedFd) -> Option<PortId> {
        let port = self.active_at(at).filter(|port| port.may_rest())?;
        if !port.listen(epoll) {
            return None;
        }
        port.is_active = false;
        Some(self.active.swap_remove(at))
    }

    /// Takes over what other workers have for ports of this one.
    #[inline]
    pub(in crate::dataplane) fn take_handed_over(
        &mut self,
        from: &Mailbox,
        umem: &Umem,
        free: &mut Vec<Frame>,
    ) -> usize {
        if self.with_inlets == 0 {
            return 0;
        }
        from.calls.take(|id| self.activate(id));
        let (mut taken, turn) = (0, self.turn);
        for at in 0..self.active.len() {
            if let Some(port) = self.active_at(at) {
                taken += port.take_handed_over(turn, umem, free);
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
            self.hand_over(out, &frame, umem);
            umem.release(frame, free);
        }
    }

    /// Whether the port has room for one more frame.
    pub(in crate::dataplane) fn takes_one(&mut self, out: PortId) -> bool {
        match (&self.remotes[out.index()], self.places[out.index()]) {
            (Some(remote), _) => remote.outlet.room() > 0,
            (None, Some(place)) => self.ports[usize::from(place)].waiting.len() < RING_SLOTS,
            (None, None) => false,
        }
    }

    #[inline(never)]
    fn hand_over(&mut self, out: PortId, packet: &Frame, umem: &Umem) {
        if let Some(remote) = &mut self.remotes[out.index()] {
            let given = remote.outlet.give(umem, packet);
            debug_assert!(given, "the room was counted before");
            if !remote.is_given {
                remote.is_given = true;
                self.given.push(out);
            }
        }
    }

    /// Tells other workers of what this batch has handed to them.
    #[inline]
    pub(in crate::dataplane) fn call_owners(&mut self, mailboxes: &[Mailbox]) {
        for id in self.given.drain(..) {
            if let Some(remote) = &mut self.remotes[id.index()] {
                mailboxes[remote.outlet.owner.index()].calls.call(id);
                remote.is_given = false;
                if !remote.is_short {
                    remote.is_short = true;
                    self.short.push(id);
                }
            }
        }
    }

    /// Says how many frames each port takes that another worker has the queue of, where that has changed.
    #[inline]
    pub(in crate::dataplane) fn note_remote_room(&mut self, room: &mut [u32]) {
        let remotes = &mut self.remotes;
        self.short.retain(|id| {
            let Some(remote) = &mut remotes[id.index()] else { return false };
            let there = remote.outlet.room();
            room[id.index()] = there as u32;
            remote.is_short = there < remote.outlet.capacity();
            remote.is_short
        });
    }
}

#[inline]
fn activate(port: &mut Port, active: &mut Vec<PortId>) {
    port.quiet = 0;
    if !port.is_active {
        port.is_active = true;
        active.push(port.id);
    }
}
