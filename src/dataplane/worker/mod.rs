//! A worker: one thread on one core, with its queue of every port, its frames, its batch.

pub(super) mod doorbell;
pub(super) mod eventfd;
pub(super) mod handoff;
pub(super) mod mailbox;
pub(super) mod ports;
pub(super) mod reschedule;
pub(super) mod stats;

use super::parts;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::time::Timespec;

use super::conntrack::{Conntrack, Entry, LookupBatch, WorkerState};
use super::fib::publish::Publication;
use super::fib::snapshot::Snapshot;
use super::fragments::{FirstFragmentTable, Fragments};
use super::neighbor::solicit::RateLimits;
use super::neighbor::table::{Neighbors, SolicitQueue};
use super::pipeline::batch::{Batch, Disposition};
use super::pipeline::gateway;
use super::pipeline::policy_batch::PolicyBatch;
use super::pipeline::stage_state::StageState;
use super::pipeline::{self, context::Context};
use super::worker::handoff::{Access, TransmitEnd};
use super::worker::mailbox::{Command, Mailbox};
use super::worker::ports::{Port, PortList};
use super::{Polling, PortKind};
use crate::ids::{PortId, WorkerId};
use crate::limits::{BATCH_FRAMES_MAX, PORT_BURST_FRAMES_MAX, PORTS_MAX, RING_SLOTS};
use crate::xdp::{Frame, Kick, PortQueue, Umem};

/// What all workers and the control side share.
pub(crate) struct Shared {
    /// The generation to judge by.
    pub snapshot: Publication<Snapshot>,
    /// The flows.
    pub conntrack: Conntrack,
    /// Ethernet addresses behind the ports.
    pub neighbors: Neighbors,
    /// Neighbours on uplinks that workers want resolved.
    pub solicit_queue: SolicitQueue,
    /// What became of first fragments, for workers that have the later ones.
    pub first_fragments: FirstFragmentTable,
    /// The moment that milliseconds are counted from.
    pub start: Instant,
    /// Set once, at the end.
    pub stopping: AtomicBool,
    /// One for each worker.
    pub mailboxes: Vec<Mailbox>,
}

/// The worker.
pub(crate) struct Worker {
    id: WorkerId,
    shared: Arc<Shared>,
    polling: Polling,
    umem: Umem,
    free: Vec<Frame>,
    /// Open ports.
    ports: PortList,
    /// Frames that each port takes to send, by its number.
    transmit_credit: Box<[u32]>,
    /// Frames that all ports together are enqueued to receive into.
    fill_targets: usize,
    /// When the kernel was last asked for frames of ports that are not active.
    polled: Instant,
    batch_was_empty: bool,
    batch: Batch,
    lookups: LookupBatch,
    snapshot: Arc<Snapshot>,
    flows: WorkerState,
    policy_batch: PolicyBatch,
    rate_limits: RateLimits,
    fragments: Fragments,
    epoll: OwnedFd,
    last_frame: Instant,
    swept_ms: u32,
}

/// Frames that a port is enqueued to receive into before it has shown that it needs more.
const FILL_TARGET_INITIAL: usize = 64;
/// The same while there are few ports: what a pod sends while another thread has the worker's core finds room. The scheduler takes the
/// core for some milliseconds at a time: so many frames come in four at 250,000 a second.
const FILL_TARGET_INITIAL_OF_FEW: usize = 1024;
/// Time in which a worker looks once at each of its flows for idle ones.
const SWEEP_MS: u32 = 2000;
/// Groups of flows that a worker looks at in one batch at most, but for tables that would take longer: after a sleep as well no
/// batch waits long for the ageing of others' flows.
const SWEEP_GROUPS_MAX: u64 = 64;
/// Milliseconds that the ageing of flows may be behind when a worker goes to sleep.
const SWEEP_LAG_MAX_MS: u32 = 1;
/// Longest sleep: flows age also while nothing comes.
const SLEEP_MAX_MS: i64 = 100;
/// Time without a frame after which frames that the kernel does not take are no reason to stay awake.
const STALLED_AFTER: Duration = Duration::from_millis(10);
/// Time between two kicks of ports that do not take their frames.
const KICK_INTERVAL_MS: i64 = 1;
/// Longest time that a worker which has frames to work on does not ask for those of ports that are not active.
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// Ports that the kernel names at a time. It starts with another one each time.
const EVENTS: usize = 64;
/// Epoll's name for the mailbox; ports have their numbers.
const MAILBOX: u64 = u64::MAX;

impl Worker {
    /// A worker with its frames, not yet running.
    pub(crate) fn new(
        id: WorkerId,
        shared: &Arc<Shared>,
        polling: Polling,
        umem: Umem,
        frames: Vec<Frame>,
    ) -> std::io::Result<Worker> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mailbox = &shared.mailboxes[id.index()];
        epoll::add(
            &epoll,
            mailbox.doorbell.eventfd().fd(),
            epoll::EventData::new_u64(MAILBOX),
            epoll::EventFlags::IN,
        )?;
        let mut free = Vec::with_capacity(frames.len());
        free.extend(frames);
        let fragments = Fragments::new(umem.frames_total());
        Ok(Worker {
            snapshot: shared.snapshot.register(id),
            flows: WorkerState::new(id, shared.mailboxes.len()),
            id,
            shared: shared.clone(),
            polling,
            umem,
            free,
            ports: PortList::new(),
            transmit_credit: vec![0; PORTS_MAX].into(),
            fill_targets: 0,
            polled: Instant::now(),
            batch_was_empty: true,
            batch: Batch::new(),
            lookups: LookupBatch::new(),
            fragments,
            rate_limits: RateLimits::new(),
            policy_batch: PolicyBatch::new(),
            epoll,
            last_frame: Instant::now(),
            swept_ms: 0,
        })
    }

    /// Works until the dataplane stops; gives the queues back for closing.
    pub(crate) fn run(mut self) -> Vec<PortQueue> {
        while !self.shared.stopping.load(Ordering::Relaxed) {
            self.shared.mailboxes[self.id.index()].stats.turns.add(1);
            self.handle_commands();
            let now = Instant::now();
            self.poll(now);
            self.batch_was_empty = !self.run_batch(now, |_| ());
            if !self.batch_was_empty {
                self.last_frame = now;
            } else if let Some(longest_ms) = self.sleep_timeout(now) {
                self.sleep(longest_ms);
            } else {
                // Who waits for this core has it while there is nothing to do. Where nobody does, it is a short system call.
                rustix::thread::sched_yield();
            }
        }
        self.shared.conntrack.offline(&self.flows);
        self.ports.into_queues()
    }

    /// One batch. Whether there was anything to do. Says `done` of each part, for who measures.
    #[inline]
    pub(crate) fn run_batch(&mut self, now: Instant, mut done: impl FnMut(&'static str)) -> bool {
        let now_ms = now.duration_since(self.shared.start).as_millis() as u32;
        self.shared.conntrack.start_batch(&mut self.flows);
        self.observe_snapshot(now_ms);
        let mailbox = &self.shared.mailboxes[self.id.index()];
        let handed = self.ports.receive_handoff(mailbox, &self.umem, &mut self.free);
        let received = self.receive(now_ms);
        done("receive");
        if received > 0 {
            self.process(now_ms, &mut done);
        }
        self.send_solicitations();
        self.ports.ring_doorbells(&self.shared.mailboxes);
        self.transmit();
        done("transmit");
        let aged = self.sweep(now_ms);
        done("age");
        let had_work = received + handed > 0;
        if had_work || aged {
            self.publish_counters();
        }
        had_work
    }

    /// Frames that this worker holds outside of rings, for the books.
    pub(crate) fn frames_held(&self) -> usize {
        let sum = |frames: &[Frame]| frames.iter().map(Frame::frames).sum::<usize>();
        let held = self.free.len() + sum(&self.batch.frames) + self.fragments.frames();
        held + self.ports.iter().map(|port| sum(&port.waiting)).sum::<usize>()
    }

    /// Its packet memory.
    pub(crate) fn umem(&self) -> &Umem {
        &self.umem
    }

    /// Carries out what the control side has asked.
    pub(crate) fn handle_commands(&mut self) {
        let shared = self.shared.clone();
        while let Some(command) = shared.mailboxes[self.id.index()].next_command() {
            match command {
                Command::Open(port, access) => self.open_port(port, access),
                Command::Close(port, reply) => {
                    if let Some(access) = self.close_port(port) {
                        // The control side waits for it; were it gone, a queue's frames would stay lent.
                        let _ = reply.send(access);
                    }
                }
                Command::Reclaim(closed, reply) => {
                    self.umem.reclaim(closed, &mut self.free);
                    let _ = reply.send(());
                }
            }
        }
    }

    /// Its number.
    pub(crate) fn id(&self) -> WorkerId {
        self.id
    }

    /// Serves a port from the next batch on.
    pub(crate) fn open_port(&mut self, id: PortId, access: Access) {
        let (queue, receive_ends) = match access {
            Access::Queue(queue, receive_ends) => (queue, receive_ends),
            Access::Remote(transmit_end) => return self.add_remote_port(id, transmit_end),
        };
        self.transmit_credit[id.index()] = RING_SLOTS as u32;
        let fill_target = self.initial_fill_target();
        self.fill_targets += fill_target;
        self.ports.add(Port::new(queue, receive_ends, fill_target, self.minimum_fill_target()));
    }

    /// Reaches a port by another worker from the next batch on.
    fn add_remote_port(&mut self, id: PortId, transmit_end: TransmitEnd) {
        self.transmit_credit[id.index()] = self.ports.add_remote(id, transmit_end) as u32;
    }

    /// Asks the kernel which ports that are not active have frames; not each time while there is other work.
    fn poll(&mut self, now: Instant) {
        if !self.ports.all_active()
            && (self.batch_was_empty || now.duration_since(self.polled) >= POLL_INTERVAL)
        {
            self.polled = now;
            self.wait(0);
        }
    }

    /// Waits until a port that can be waited for has frames, or the control side has something, or so long; and lets batches look
    /// at those ports.
    fn wait(&mut self, longest_ms: i64) {
        let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let timeout = Timespec { tv_sec: 0, tv_nsec: longest_ms * 1_000_000 };
        // An interrupted wait is a short one.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&timeout)) else { return };
        for event in events {
            let token = event.data.u64();
            if token != MAILBOX {
                self.ports.activate(PortId(token as u16));
            }
        }
    }

    fn close_port(&mut self, id: PortId) -> Option<Access> {
        self.transmit_credit[id.index()] = 0;
        if let Some(transmit_end) = self.ports.remove_remote(id) {
            return Some(Access::Remote(transmit_end));
        }
        let mut port = self.ports.remove(id)?;
        port.disarm(&self.epoll);
        let (umem, free) = (&self.umem, &mut self.free);
        self.fragments.close_port(id, |frame| umem.release(frame, free));
        self.fill_targets -= port.fill_target;
        Some(port.close(umem, free))
    }

    /// Frames that the ports may together be enqueued to receive into: half of all, the rest is for what is on its way out.
    fn fill_targets_max(&self) -> usize {
        self.umem.frames_total() / 2
    }

    /// What a port is enqueued at first. A frame in a fill ring comes back only with a packet in it, so a port gets more when
    /// it needs more: were they shared out evenly, the first ports would have most of them and the last ones none.
    fn initial_fill_target(&self) -> usize {
        let least = self.minimum_fill_target();
        let left = self.fill_targets_max().saturating_sub(self.fill_targets);
        // Counted, not by what is left: those before have what they were enqueued first, whatever their levels are now.
        let are_few = self.ports.len() < self.fill_targets_max() / 2 / FILL_TARGET_INITIAL_OF_FEW;
        left.clamp(least, if are_few { FILL_TARGET_INITIAL_OF_FEW } else { FILL_TARGET_INITIAL.max(least) })
    }

    /// What every port has in any case: all that there may be, together a quarter of all frames.
    fn minimum_fill_target(&self) -> usize {
        (self.umem.frames_total() / (4 * PORTS_MAX)).max(1)
    }

    /// Free frames that no port gets more of than its least: those are for the least of ports that are still to come, and for what
    /// is on its way out. The levels alone do not keep them: a port whose fill target is lowered has its frames until packets come in them.
    fn reserve(&self) -> usize {
        let total = self.umem.frames_total();
        total / 16 + (total / 4).saturating_sub(self.minimum_fill_target() * self.ports.len())
    }

    fn observe_snapshot(&mut self, now_ms: u32) {
        if self.shared.snapshot.observe(self.id, &mut self.snapshot) {
            self.solicit_silent_pods(now_ms);
        }
    }

    /// Asks for the Ethernet addresses of pods that have not spoken yet, so that the first packet to them finds its way.
    fn solicit_silent_pods(&mut self, now_ms: u32) {
        if self.id.index() != 0 {
            return;
        }
        for port in self.ports.iter() {
            let Some(snapshot) = self.snapshot.port(port.id) else { continue };
            if snapshot.mac.is_none()
                && self.shared.neighbors.port_mac(port.id).is_none()
                && let Some(address) = snapshot.addresses().first()
            {
                self.rate_limits.solicit(port.id, *address, now_ms);
            }
        }
    }

    fn receive(&mut self, now_ms: u32) -> usize {
        let (batch, shared) = (&mut self.batch, &self.shared.first_fragments);
        self.fragments.resume(BATCH_FRAMES_MAX - batch.len(), shared, now_ms, |frame, port, drop| {
            batch.resume(frame, port, drop.map_or(Disposition::Pending, Disposition::Dropped));
        });
        let (fill_targets_max, reserve) = (self.fill_targets_max(), self.reserve());
        // One port in four may be busy, go quiet and keep what it has: the others still have theirs.
        let fill_target_max =
            (4 * fill_targets_max / self.ports.len().max(1)).clamp(FILL_TARGET_INITIAL, RING_SLOTS);
        self.ports.rotate();
        for step in 0..self.ports.active_len() {
            let Some(port) = self.ports.active_from_first(step) else { continue };
            let start = self.batch.len();
            if start == BATCH_FRAMES_MAX {
                break;
            }
            let had = port.queue.receiving();
            let count = port.queue.receive(&mut self.umem, &mut self.batch.frames, PORT_BURST_FRAMES_MAX);
            port.idle_polls = if count > 0 { 0 } else { port.idle_polls.saturating_add(1) };
            if count > 0 {
                port.frames_since_arm += count;
                self.batch.note_received(start, port.id);
                if had - port.queue.receiving() >= (had / 2).clamp(1, PORT_BURST_FRAMES_MAX) {
                    port.is_busy = true;
                    let room = fill_target_max.saturating_sub(port.fill_target);
                    let more =
                        port.fill_target.min(room).min(fill_targets_max.saturating_sub(self.fill_targets));
                    port.fill_target += more;
                    self.fill_targets += more;
                }
                port.refill(&mut self.umem, &mut self.free, reserve);
            }
        }
        self.batch.len()
    }

    fn process(&mut self, now_ms: u32, done: impl FnMut(&'static str)) {
        // As many as nobody holds: ports that take nothing leave each other, and those that do, an ever smaller but equal share
        // (dynamic thresholds, Choudhury and Hahne 1998). Ports that are not active hold none.
        let share = (self.free.len() + self.batch.len()).clamp(PORT_BURST_FRAMES_MAX, RING_SLOTS);
        for port in self.ports.iter_active() {
            self.transmit_credit[port.id.index()] = share.saturating_sub(port.in_flight()) as u32;
        }
        self.ports.refresh_remote_credit(&mut self.transmit_credit);
        let stats = &self.shared.mailboxes[self.id.index()].stats;
        let context = Context {
            worker: self.id.index(),
            now_ms,
            umem: &self.umem,
            snapshot: &self.snapshot,
            conntrack: &self.shared.conntrack,
            neighbors: &self.shared.neighbors,
            stats,
            first_fragments: &self.shared.first_fragments,
        };
        let state = StageState {
            lookups: &mut self.lookups,
            policy_batch: &mut self.policy_batch,
            worker_state: &mut self.flows,
            rate_limits: &mut self.rate_limits,
            fragments: &mut self.fragments,
            transmit_credit: &mut self.transmit_credit,
            free: &mut self.free,
        };
        pipeline::run(&mut self.batch, &context, state, done);
        self.dispatch();
    }

    /// Passes each frame on by its disposition.
    fn dispatch(&mut self) {
        let batch = &mut self.batch;
        for (i, mut frame) in batch.frames.drain(..).enumerate() {
            self.umem.trim(&mut frame, &mut self.free);
            let out = match batch.dispositions[i] {
                // The stages have counted it against the room of the port.
                Disposition::Forward(out) => out,
                Disposition::Held => {
                    self.fragments.hold(frame);
                    continue;
                }
                _ if batch.answers[i]
                    && self.transmit_credit[batch.in_ports[i].index()] as usize >= frame.frames() =>
                {
                    self.transmit_credit[batch.in_ports[i].index()] -= frame.frames() as u32;
                    batch.in_ports[i]
                }
                // Dropped, or an answer for which the port has no place: who asked asks again.
                _ => {
                    self.umem.release(frame, &mut self.free);
                    continue;
                }
            };
            self.ports.send(out, frame, &self.umem, &mut self.free);
        }
    }

    /// Asks for Ethernet addresses.
    fn send_solicitations(&mut self) {
        while let Some((port, address)) = self.rate_limits.solicitations.pop() {
            let Some(snapshot) = self.snapshot.port(port) else { continue };
            if snapshot.kind == PortKind::Uplink {
                self.shared.solicit_queue.push(port, address);
                continue;
            }
            if !self.ports.has_credit(port) {
                continue;
            }
            let Some(mut frame) = self.free.pop() else { return };
            if gateway::write_solicitation(&self.umem, &mut frame, address, snapshot.vlan, &self.snapshot) {
                self.ports.send(port, frame, &self.umem, &mut self.free);
            } else {
                self.free.push(frame);
            }
        }
    }

    /// Moves frames to the transmit rings, kicks the kernel, and takes back what it has sent. In copy mode nothing is sent without a
    /// kick, and a kick sends a limited number: ports are kicked until they are empty.
    fn transmit(&mut self) {
        let reserve = self.reserve();
        let stats = &self.shared.mailboxes[self.id.index()].stats;
        for at in (0..self.ports.active_len()).rev() {
            let Some(port) = self.ports.active_at(at) else { continue };
            if !port.waiting.is_empty() {
                let bytes: usize = port.waiting.iter().map(Frame::len).sum();
                let sent = port.queue.transmit(&mut self.umem, &mut port.waiting);
                let left: usize = port.waiting.iter().map(Frame::len).sum();
                let counters = stats.port(port.id);
                port.frames_since_arm += sent;
                counters.transmitted.add(sent as u64);
                counters.transmitted_bytes.add((bytes - left) as u64);
            }
            if port.queue.outstanding() > 0 {
                // Whatever the kernel says, the frames are still in the ring, and the next round kicks again.
                let _: Kick = port.queue.kick();
                port.queue.complete(&mut self.umem, &mut self.free);
            }
            port.refill(&mut self.umem, &mut self.free, reserve);
            if port.is_woken_too_often() {
                port.disarm(&self.epoll);
            }
            if let Some(id) = self.ports.deactivate_if_idle(at, &self.epoll) {
                self.transmit_credit[id.index()] = RING_SLOTS as u32;
            }
        }
    }

    /// Takes half of their frames from ports that have not been busy of late, for others that are. Half of all frames are left to
    /// the ports in equal shares.
    fn reclaim_fill_targets(&mut self) {
        let share = self.fill_targets_max() / 2 / self.ports.len().max(1);
        let least = share.clamp(FILL_TARGET_INITIAL, FILL_TARGET_INITIAL_OF_FEW);
        for port in self.ports.iter_mut() {
            if !port.is_busy && port.fill_target > least {
                let less = port.fill_target - (port.fill_target / 2).max(least);
                port.fill_target -= less;
                self.fill_targets -= less;
            }
            port.is_busy = false;
        }
    }

    /// Ends idle flows, and those of pods that are gone, a share of the table at a time. Whether it was time to.
    fn sweep(&mut self, now_ms: u32) -> bool {
        let elapsed = now_ms.wrapping_sub(self.swept_ms);
        if elapsed == 0 {
            return false;
        }
        let groups = self.shared.conntrack.buckets_per_worker(&self.flows) as u64;
        let due = groups * u64::from(elapsed.min(SWEEP_MS)) / u64::from(SWEEP_MS) + 1;
        let share = due.min(SWEEP_GROUPS_MAX.max(groups / u64::from(SWEEP_MS) + 1));
        // What is due and not done now is due at the next batch.
        let left = ((due - share) * u64::from(SWEEP_MS) / groups) as u32;
        let swept_ms = now_ms.wrapping_sub(left.min(elapsed - 1));
        if swept_ms / SWEEP_MS != self.swept_ms / SWEEP_MS {
            self.reclaim_fill_targets();
        }
        self.swept_ms = swept_ms;
        let snapshot = &self.snapshot;
        // What a worker that is a generation ahead has judged may be of a pod that this one does not know yet.
        self.shared.conntrack.sweep(share as usize, now_ms, &mut self.flows, |entry| {
            entry.policy_epoch_is_before(snapshot.pod_removed) && is_of_removed_pod(entry, snapshot, now_ms)
        });
        true
    }

    fn publish_counters(&self) {
        let stats = &self.shared.mailboxes[self.id.index()].stats;
        stats.flows_entered.set(self.flows.inserted);
        stats.flows_ended.set(self.flows.ended);
        stats.flows_evicted.set(self.flows.evicted);
        stats.frames.set(self.umem.frames_total() as u64);
        stats.frames_free.set(self.free.len() as u64);
        stats.fragments_waiting.set(self.fragments.waiting() as u64);
    }

    /// How long the worker may sleep; `None` while it may not.
    fn sleep_timeout(&self, now: Instant) -> Option<i64> {
        let Polling::Adaptive { spin_us } = self.polling else { return None };
        let now_ms = now.duration_since(self.shared.start).as_millis() as u32;
        if now_ms.wrapping_sub(self.swept_ms) > SWEEP_LAG_MAX_MS {
            return None; // Flows age first: the sleep has put it off.
        }
        let idle = now.duration_since(self.last_frame);
        if self.ports.iter_active().all(Port::is_drained) {
            return (idle.as_micros() >= u128::from(spin_us)).then_some(SLEEP_MAX_MS);
        }
        // An interface that is down takes nothing, however often it is kicked: now and then will do.
        (idle >= STALLED_AFTER).then_some(KICK_INTERVAL_MS)
    }

    /// Sleeps until a frame or the control side comes, or at the longest this many milliseconds.
    fn sleep(&mut self, longest_ms: i64) {
        let mailbox = &self.shared.mailboxes[self.id.index()];
        mailbox.stats.sleeps.add(1);
        #[cfg(debug_assertions)]
        panic_if_requested();
        self.shared.conntrack.offline(&self.flows);
        // A port that cannot be listened to is still served by every waking, SLEEP_MAX_MS apart at the most.
        self.ports.arm(&self.epoll);
        if mailbox.doorbell.prepare_sleep() {
            // What a waiting fragment waits for may come to another worker, which wakes nobody.
            self.wait(if self.fragments.waiting() > 0 { 1 } else { longest_ms });
        }
        self.shared.mailboxes[self.id.index()].doorbell.finish_sleep();
    }
}

/// Panics as soon as the file is there that `PALISADE_DEBUG_PANIC` names: so tests see what becomes of a switch that has lost a worker.
#[cfg(debug_assertions)]
fn panic_if_requested() {
    if let Some(file) = std::env::var_os("PALISADE_DEBUG_PANIC") {
        assert!(!std::path::Path::new(&file).exists(), "PALISADE_DEBUG_PANIC says so");
    }
}

/// Whether an end of a flow was a pod of this node when it was judged, and is nobody or somebody else by now. Not while that
/// may still come back after a restart of the switch.
fn is_of_removed_pod(entry: &Entry, snapshot: &Snapshot, now_ms: u32) -> bool {
    let facts = entry.flow_word(true);
    let is_gone = |end, was_pod| was_pod && !snapshot.is_same_endpoint(end, was_pod, facts.policy_epoch());
    let [low_was_pod, high_was_pod] = facts.pods();
    (low_was_pod || high_was_pod)
        && entry.key().is_some_and(|key| {
            let ends = [(key.low(), low_was_pod), (key.high(), high_was_pod)];
            ends.into_iter().any(|(end, was_pod)| is_gone(end, was_pod))
                && !snapshot.awaits_endpoints(ends, facts.policy_epoch(), now_ms)
        })
}
