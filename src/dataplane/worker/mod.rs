//! A worker: one thread on one core, with a queue of every port, its own packet memory, and one batch.

mod commands;
pub(super) mod doorbell;
mod fill_budget;
pub(super) mod handoff;
pub(super) mod mailbox;
mod poller;
mod ports;
mod receive;
mod recorder;
pub(super) mod reschedule;
mod send_segments;
pub(super) mod shared;
mod sleep;
mod sweeper;
mod thread;

use super::parts;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use self::fill_budget::FillBudget;
use self::handoff::Access;
use self::poller::{CoreShare, Poller};
use self::ports::{LocalPort, PortList};
use self::recorder::Recorder;
use self::send_segments::Coalescer;
use self::shared::Shared;
use self::sweeper::{Sweeper, Swept};
use super::conntrack::{LookupBatch, WorkerState};
use super::fib::snapshot::Snapshot;
use super::fragments::Fragments;
use super::neighbor::solicit::{RateLimits, Solicitation};
use super::packet::Kind;
use super::pipeline;
use super::pipeline::batch::{Batch, Disposition};
use super::pipeline::context::Context;
use super::pipeline::gateway;
use super::pipeline::policy_batch::PolicyBatch;
use super::pipeline::stage_state::StageState;
use super::pipeline::translate::Translator;
use super::stats::WorkerStats;
use super::waiting::Waiting;
use super::{Polling, PortKind, Scheduling};
use crate::ids::{PortId, WorkerId};
use crate::limits::{EARLY_SYNS_MAX, PORT_BURST_FRAMES_MAX, PORTS_MAX, RING_SLOTS};
use crate::xdp::{Frame, Kick, PortQueue, Umem};

/// A worker.
pub(crate) struct Worker {
    id: WorkerId,
    shared: Arc<Shared>,
    umem: Umem,
    free: Vec<Frame>,
    /// Open ports.
    ports: PortList,
    /// Frames that each port still takes for transmission, by its number.
    transmit_credit: Box<[u32]>,
    fill_budget: FillBudget,
    poller: Poller,
    core_share: CoreShare,
    sweeper: Sweeper,
    batch: Batch,
    coalescer: Coalescer,
    recorder: Recorder,
    translator: Translator,
    lookups: LookupBatch,
    snapshot: Arc<Snapshot>,
    flows: WorkerState,
    policy_batch: PolicyBatch,
    rate_limits: RateLimits,
    fragments: Fragments,
}

impl Worker {
    /// A worker with its frames, before its first batch. Fails where the kernel gives no epoll instance.
    pub(crate) fn new(
        id: WorkerId,
        shared: &Arc<Shared>,
        polling: Polling,
        scheduling: Scheduling,
        umem: Umem,
        frames: Vec<Frame>,
    ) -> std::io::Result<Worker> {
        let poller = Poller::new(polling, &shared.mailboxes[id.index()])?;
        let mut free = Vec::with_capacity(frames.len());
        free.extend(frames);
        let fragments = Fragments::new(umem.frames_total());
        let fill_budget = FillBudget::new(umem.frames_total());
        let early_syns = if shared.mailboxes.len() > 1 { EARLY_SYNS_MAX } else { 0 };
        Ok(Worker {
            snapshot: shared.snapshot.register(id),
            flows: WorkerState::new(id, shared.mailboxes.len()),
            id,
            shared: shared.clone(),
            umem,
            free,
            ports: PortList::new(),
            transmit_credit: vec![0; PORTS_MAX].into(),
            fill_budget,
            core_share: CoreShare::new(scheduling),
            poller,
            sweeper: Sweeper::new(),
            batch: Batch::new(Waiting::new(early_syns)),
            coalescer: Coalescer::new(),
            recorder: Recorder::new(),
            translator: Translator::new(),
            lookups: LookupBatch::new(),
            fragments,
            rate_limits: RateLimits::new(),
            policy_batch: PolicyBatch::new(),
        })
    }

    /// Runs batches until the dataplane stops. Returns the queues for closing.
    pub(crate) fn run(mut self) -> Vec<PortQueue> {
        self.stats().thread.set(rustix::thread::gettid().as_raw_nonzero().get() as u64);
        let mut last_turn = None;
        while !self.shared.stopping.load(Ordering::Relaxed) {
            self.stats().turns.add(1);
            self.handle_commands();
            let now = Instant::now();
            if let Some(last) = last_turn.replace(now) {
                self.stats().turn_times.record(now.duration_since(last), 1);
            }
            self.poller.poll(&mut self.ports, now);
            let had_work = self.run_batch(now, |_| ());
            self.poller.note_batch(now, had_work);
            if !had_work && let Some(longest_ms) = self.sleep_timeout(now) {
                self.sleep(longest_ms);
                self.core_share.slept();
                last_turn = None;
            } else {
                self.core_share.leave_to_others(now, had_work);
            }
        }
        self.shared.conntrack.offline(&self.flows);
        self.ports.into_queues()
    }

    /// Runs one batch, and calls `done` with the name of each part after it. Returns whether there were frames.
    #[inline]
    pub(crate) fn run_batch(&mut self, now: Instant, mut done: impl FnMut(&'static str)) -> bool {
        let mut clock = self.stats().stages.start(now);
        let mut done = |part| {
            clock.lap(part);
            done(part);
        };
        let now_ms = self.ms_at(now);
        self.shared.conntrack.start_batch(&mut self.flows);
        let is_followed = self.shared.flow_events.of(self.id).is_some();
        if is_followed | self.flows.events.is_some() {
            self.follow_flows(now_ms);
        }
        if self.shared.snapshot.observe(self.id, &mut self.snapshot) {
            self.solicit_silent_pods(now_ms);
        }
        let mailbox = &self.shared.mailboxes[self.id.index()];
        let handed = self.ports.receive_handoff(mailbox, &self.umem, &mut self.free);
        let received = self.receive(now_ms);
        done("receive");
        if received > 0 {
            let now_ns = now.saturating_duration_since(self.shared.start).as_nanos() as u64;
            if self.shared.captures.is_any() {
                self.recorder.copy(&mut self.batch, &self.umem, &self.shared.captures, now_ns);
            }
            self.process(now_ms, now_ns, &mut done);
        }
        self.send_solicitations();
        self.ports.ring_doorbells(&self.shared.mailboxes);
        self.transmit();
        done("transmit");
        let swept = self.sweeper.sweep(now_ms, &self.shared.conntrack, &mut self.flows, &self.snapshot);
        if swept == Swept::LastOfPeriod {
            self.fill_budget.reclaim(&mut self.ports);
        }
        done("age");
        let had_work = received + handed > 0;
        if had_work {
            let (stats, time) = (self.stats(), Instant::now().saturating_duration_since(now));
            stats.busy_nanos.add(time.as_nanos() as u64);
            if received > 0 {
                stats.stages.finish(&clock, received);
                stats.latency.record(time, received as u64);
            }
        }
        if had_work || swept != Swept::Nothing {
            self.publish_counters();
        }
        had_work
    }

    /// Number of frames that the worker holds outside of rings.
    pub(crate) fn frames_held(&self) -> usize {
        let sum = |frames: &[Frame]| frames.iter().map(Frame::frames).sum::<usize>();
        let held = self.free.len() + sum(&self.batch.frames) + self.fragments.frames();
        let held = held + self.batch.early_syns.frames();
        held + self.ports.iter().map(|port| sum(&port.waiting)).sum::<usize>()
    }

    /// Packet memory of the worker.
    pub(crate) fn umem(&self) -> &Umem {
        &self.umem
    }

    /// Number of the worker.
    pub(crate) fn id(&self) -> WorkerId {
        self.id
    }

    #[inline]
    fn stats(&self) -> &WorkerStats {
        &self.shared.mailboxes[self.id.index()].stats
    }

    #[inline]
    fn ms_at(&self, now: Instant) -> u32 {
        now.duration_since(self.shared.start).as_millis() as u32
    }

    /// Serves a port from the next batch on.
    pub(crate) fn open_port(&mut self, id: PortId, access: Access) {
        self.transmit_credit[id.index()] = match access {
            Access::Queue(queue, receive_ends) => {
                let (target, target_min) = self.fill_budget.targets(&queue, self.ports.len());
                self.ports.add(LocalPort::new(queue, receive_ends, target, target_min));
                RING_SLOTS as u32
            }
            Access::Remote(transmit_end) => self.ports.add_remote(id, transmit_end) as u32,
        };
    }

    fn close_port(&mut self, id: PortId) -> Option<Access> {
        self.transmit_credit[id.index()] = 0;
        if let Some(transmit_end) = self.ports.remove_remote(id) {
            return Some(Access::Remote(transmit_end));
        }
        let mut port = self.ports.remove(id)?;
        port.disarm(self.poller.epoll());
        let (umem, free) = (&self.umem, &mut self.free);
        self.fragments.close_port(id, |frame| umem.release(frame, free));
        self.batch.early_syns.close_port(id, |frame| umem.release(frame, free));
        self.fill_budget.release(port.fill_target);
        port.queue.complete(&mut self.umem, &mut self.free);
        Some(port.close(&self.umem, &mut self.free))
    }

    /// Starts, continues or ends the collection of events of flows.
    #[cold]
    #[inline(never)]
    fn follow_flows(&mut self, now_ms: u32) {
        self.flows.events = self.shared.flow_events.of(self.id).cloned();
        self.flows.events.iter().for_each(|events| events.set_now(now_ms));
    }

    /// Solicits the Ethernet addresses of pods that have sent no frame yet, so that the first packet to them is not dropped.
    fn solicit_silent_pods(&mut self, now_ms: u32) {
        if self.id.index() != 0 {
            return;
        }
        for port in self.ports.iter() {
            let Some(view) = self.snapshot.port(port.id) else { continue };
            if view.mac.is_none()
                && self.shared.neighbors.port_mac(port.id).is_none()
                && let Some(address) = view.addresses().first()
            {
                self.rate_limits.solicit(port.id, *address, now_ms);
            }
        }
    }

    /// Runs the stages over the batch, and dispatches its frames.
    fn process(&mut self, now_ms: u32, now_ns: u64, mut done: impl FnMut(&'static str)) {
        // A port may have as many frames in flight as are free: ports that transmit nothing leave the others, and each other, an ever
        // smaller but equal share (dynamic thresholds, Choudhury and Hahne 1998). Ports that are not active have none in flight.
        let share = (self.free.len() + self.batch.len()).clamp(PORT_BURST_FRAMES_MAX, RING_SLOTS);
        for port in self.ports.iter_active() {
            self.transmit_credit[port.id.index()] = share.saturating_sub(port.in_flight()) as u32;
        }
        self.ports.refresh_remote_credit(&mut self.transmit_credit);
        let context = Context {
            worker: self.id.index(),
            workers: self.shared.mailboxes.len(),
            counted_by: Some(self.id.index()),
            now_ms,
            now_ns,
            umem: &self.umem,
            snapshot: &self.snapshot,
            conntrack: &self.shared.conntrack,
            bindings: &self.shared.bindings,
            external_ports: self.shared.external_ports.as_ref(),
            offload: self.shared.offload.as_deref(),
            neighbors: &self.shared.neighbors,
            stats: &self.shared.mailboxes[self.id.index()].stats,
            events: self.shared.flow_events.of(self.id).map(|events| &**events),
            first_fragments: &self.shared.first_fragments,
        };
        let state = StageState {
            translator: &mut self.translator,
            lookups: &mut self.lookups,
            policy_batch: &mut self.policy_batch,
            worker_state: &mut self.flows,
            rate_limits: &mut self.rate_limits,
            fragments: &mut self.fragments,
            transmit_credit: &mut self.transmit_credit,
            free: &mut self.free,
        };
        pipeline::run(&mut self.batch, &context, state, |stage, _| done(stage));
        if self.batch.notes.is_on() {
            self.recorder.hand_over(&mut self.batch, self.snapshot.generation);
        }
        self.dispatch();
    }

    /// Moves each frame of the batch to the place that its verdict names.
    fn dispatch(&mut self) {
        if self.ports.has_taps() | self.batch.has_fragments_to_send {
            self.dispatch_with_taps();
        } else {
            self.dispatch_frames::<false>();
        }
    }

    #[inline(never)]
    fn dispatch_with_taps(&mut self) {
        self.dispatch_frames::<true>();
        (self.batch.has_virtio_headers, self.batch.has_fragments_to_send) = (false, false);
        self.ports.finish_coalesced(&mut self.coalescer, &self.umem);
    }

    #[inline(always)]
    fn dispatch_frames<const HAS_TAPS: bool>(&mut self) {
        let batch = &mut self.batch;
        for (i, mut frame) in batch.frames.drain(..).enumerate() {
            self.umem.trim(&mut frame, &mut self.free);
            let out = match batch.dispositions[i] {
                Disposition::Forward(out) if HAS_TAPS => {
                    let segments = batch.segments.drain(..usize::from(batch.segment_counts[i]));
                    batch.segment_counts[i] = 0;
                    let packet = (&batch.packets[i], frame, segments);
                    self.ports.send_by_kind(out, packet, &mut self.coalescer, &self.umem, &mut self.free);
                    continue;
                }
                // The stage `rewrite` has taken it from the credit of the port.
                Disposition::Forward(out) => out,
                Disposition::Held => {
                    if batch.packets[i].kind == Kind::LaterFragment {
                        self.fragments.hold(frame);
                    } else {
                        batch.early_syns.fill(frame);
                    }
                    continue;
                }
                _ if batch.answers[i]
                    && self.transmit_credit[batch.in_ports[i].index()] as usize >= frame.frames() =>
                {
                    self.transmit_credit[batch.in_ports[i].index()] -= frame.frames() as u32;
                    batch.in_ports[i]
                }
                // A dropped frame, or an answer for which the port has no credit: the station asks again.
                _ => {
                    self.umem.release(frame, &mut self.free);
                    continue;
                }
            };
            self.ports.send(out, frame, &self.umem, &mut self.free);
        }
    }

    /// Sends the solicitations of the batch, and leaves those on uplinks to the resolver.
    fn send_solicitations(&mut self) {
        while let Some(solicitation) = self.rate_limits.solicitations.pop() {
            let Solicitation { port, address, .. } = solicitation;
            let Some(view) = self.snapshot.port(port) else { continue };
            if view.kind == PortKind::Uplink {
                self.shared.solicit_queue.push(solicitation);
                continue;
            }
            if !self.ports.has_credit(port) {
                continue;
            }
            let Some(mut frame) = self.free.pop() else { return };
            if gateway::write_solicitation(&self.umem, &mut frame, address, view.vlan, &self.snapshot) {
                self.ports.send(port, frame, &self.umem, &mut self.free);
            } else {
                self.free.push(frame);
            }
        }
    }

    /// Moves frames to the transmit rings, kicks the kernel, and takes sent frames back. In copy mode the kernel sends nothing without a
    /// kick, and a limited number of frames for each: a port is kicked in every batch until its ring is empty.
    fn transmit(&mut self) {
        let reserve = self.fill_budget.reserve(self.ports.len());
        let stats = &self.shared.mailboxes[self.id.index()].stats;
        for at in (0..self.ports.active_len()).rev() {
            let Some(port) = self.ports.active_at(at) else { continue };
            if !port.waiting.is_empty() {
                let (bytes, segments) = port.waiting_bytes_and_segments(&self.umem);
                let sent = port.queue.transmit(&mut self.umem, &mut port.waiting);
                let (bytes_left, segments_left) = port.waiting_bytes_and_segments(&self.umem);
                let counters = stats.port(port.id);
                port.frames_since_arm += sent;
                counters.transmitted.add(sent as u64);
                counters.transmitted_bytes.add((bytes - bytes_left) as u64);
                counters.transmitted_segments.add((segments - segments_left) as u64);
            }
            if port.queue.outstanding() > 0 {
                // After a failed kick the frames are still in the ring, and the next batch kicks again.
                let _: Kick = port.queue.kick();
                port.queue.complete(&mut self.umem, &mut self.free);
            }
            port.refill(&mut self.umem, &mut self.free, reserve);
            if port.is_woken_too_often() {
                port.disarm(self.poller.epoll());
            }
            if let Some(id) = self.ports.deactivate_if_idle(at, self.poller.epoll()) {
                self.transmit_credit[id.index()] = RING_SLOTS as u32;
            }
        }
    }
}
