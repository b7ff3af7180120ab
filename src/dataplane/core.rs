//! What a dataplane is, apart from threads and interfaces: the published view, the open ports, the books.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::conntrack::{Class, Conntrack, Side};
use super::counters::{Counters, DecisionCount, PortCounters, WorkerCounters};
use super::fragments::Board;
use super::mailbox::Mailbox;
use super::neighbors::{Neighbors, Questions};
use super::publication::Publication;
use super::view::{Flow, PortFacts, View};
use super::worker::Shared;
use super::{FlowInfo, PortError, Settings, StartError, World, packet};
use crate::ids::{Generation, PortId, WorkerId};
use crate::limits::{PORTS_MAX, WORKERS_MAX};
use crate::net::flow::FlowKey;
use crate::tables::{RuleOrigin, Verdict};

/// The control side's half of a dataplane.
pub(super) struct Core {
    pub(super) shared: Arc<Shared>,
    cores: Vec<usize>,
    state: Mutex<State>,
}

struct State {
    world: Arc<World>,
    ports: BTreeMap<PortId, PortFacts>,
    /// Decisions taken under generations that nobody judges by any more.
    decisions: BTreeMap<(RuleOrigin, Verdict), u64>,
}

impl Core {
    pub(super) fn new(settings: &Settings) -> Result<Core, StartError> {
        let workers = settings.cores.len();
        if workers == 0 || workers > WORKERS_MAX {
            return Err(StartError::Setup(format!(
                "{workers} workers are configured: give 1 to {WORKERS_MAX} cores"
            )));
        }
        let mailboxes: std::io::Result<Vec<Mailbox>> = (0..workers).map(|_| Mailbox::new()).collect();
        let mailboxes = mailboxes.map_err(|error| {
            StartError::Setup(format!("the kernel gives no event counter to wake workers with: {error}"))
        })?;
        let questions = Questions::new().map_err(|error| {
            StartError::Setup(format!(
                "the kernel gives no event counter to ask for neighbours with: {error}"
            ))
        })?;
        let conntrack = Conntrack::new(&settings.conntrack, settings.huge_pages).map_err(|error| {
            let flows = settings.conntrack.flows_max;
            StartError::Setup(format!(
                "no memory for a conntrack table of {flows} flows ({error}): configure fewer"
            ))
        })?;
        let world = Arc::new(World::default());
        let view = View::new(&world, Generation(0), &BTreeMap::new(), workers);
        let shared = Shared {
            view: Publication::new(view, workers),
            conntrack,
            neighbors: Neighbors::new(),
            questions,
            firsts: Board::new(workers),
            start: Instant::now(),
            stopping: false.into(),
            mailboxes,
        };
        let state = State { world, ports: BTreeMap::new(), decisions: BTreeMap::new() };
        Ok(Core { shared: Arc::new(shared), cores: settings.cores.clone(), state: Mutex::new(state) })
    }

    pub(super) fn workers(&self) -> usize {
        self.cores.len()
    }

    /// Nothing that holds this lock leaves the state half changed when it panics, so a poisoned one is as good.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lowest free port number.
    pub(super) fn free_port(&self) -> Result<PortId, PortError> {
        let state = self.state();
        let free = (0..PORTS_MAX as u16).map(PortId).find(|id| !state.ports.contains_key(id));
        free.ok_or(PortError::TooMany { max: PORTS_MAX })
    }

    /// Makes a port known to the workers; its counters begin at zero.
    pub(super) fn add_port(&self, port: PortId, facts: PortFacts, wait: &dyn Fn(&Core, Generation)) {
        for mailbox in &self.shared.mailboxes {
            mailbox.stats.port(port).clear();
        }
        self.shared.neighbors.forget(port);
        let mut state = self.state();
        state.ports.insert(port, facts);
        self.publish_changed(&mut state, wait);
    }

    /// Makes a port unknown to the workers.
    pub(super) fn remove_port(&self, port: PortId, wait: &dyn Fn(&Core, Generation)) {
        let mut state = self.state();
        state.ports.remove(&port);
        self.publish_changed(&mut state, wait);
    }

    fn publish_changed(&self, state: &mut State, wait: &dyn Fn(&Core, Generation)) {
        let world = state.world.clone();
        self.publish_in(state, world, false, wait);
    }

    pub(super) fn publish(&self, world: World, wait: &dyn Fn(&Core, Generation)) -> Generation {
        self.publish_in(&mut self.state(), Arc::new(world), true, wait)
    }

    fn publish_in(
        &self,
        state: &mut State,
        world: Arc<World>,
        same_ports: bool,
        wait: &dyn Fn(&Core, Generation),
    ) -> Generation {
        let current = self.shared.view.current();
        let view = current.next(&state.world, &world, &state.ports, same_ports, self.workers());
        drop(current);
        let (generation, rules) = (view.generation, view.rules().cloned());
        let old = self.shared.view.publish(view);
        state.world = world;
        wait(self, generation);
        if let Some(left) = old.rules() {
            left.for_each_count_left(rules.as_deref(), |origin, verdict, packets| {
                *state.decisions.entry((origin.clone(), verdict)).or_default() += packets;
            });
        }
        generation
    }

    pub(super) fn world(&self) -> Arc<World> {
        self.state().world.clone()
    }

    /// Waits until every worker judges by `generation`; false where one does not come to it in time. Names those that are `late` from
    /// the second look on: at the first, a worker that is awake and has its core has come.
    pub(super) fn wait_for(
        &self,
        generation: Generation,
        patience: Duration,
        late: impl Fn(WorkerId),
    ) -> bool {
        let deadline = Instant::now() + patience;
        for mailbox in &self.shared.mailboxes {
            mailbox.wake();
        }
        let mut looks = 0;
        self.shared.view.wait(generation, || {
            looks += 1;
            if looks > 1 {
                self.workers_before(generation).for_each(&late);
            }
            std::thread::sleep(Duration::from_micros(50));
            Instant::now() <= deadline
        })
    }

    /// Those that judge by an earlier generation.
    fn workers_before(&self, generation: Generation) -> impl Iterator<Item = WorkerId> {
        let all = (0..self.workers()).map(|worker| WorkerId(worker as u16));
        all.filter(move |worker| self.shared.view.passed(*worker) < generation)
    }

    pub(super) fn counters(&self) -> Counters {
        let state = self.state();
        let mut counters = Counters::default();
        for port in state.ports.keys() {
            let mut sum = PortCounters::default();
            self.shared.mailboxes.iter().for_each(|mailbox| mailbox.stats.port(*port).add_to(&mut sum));
            let flows = |class| u64::from(self.shared.conntrack.flows_of(*port, class));
            sum.flows_assured = flows(Class::Assured);
            sum.flows_unassured = flows(Class::Unassured) + flows(Class::Ended);
            counters.ports.insert(*port, sum);
        }
        for (worker, (mailbox, core)) in self.shared.mailboxes.iter().zip(&self.cores).enumerate() {
            let stats = &mailbox.stats;
            let worker_counters = WorkerCounters {
                core: *core,
                received: stats.received.get(),
                batches: stats.batches.get(),
                sleeps: stats.sleeps.get(),
                flows_entered: stats.flows_entered.get(),
                flows_ended: stats.flows_ended.get(),
                flows_evicted: stats.flows_evicted.get(),
                frames: stats.frames.get(),
                frames_free: stats.frames_free.get(),
                fragments_waiting: stats.fragments_waiting.get(),
            };
            counters.workers.insert(WorkerId(worker as u16), worker_counters);
        }
        let mut decisions = state.decisions.clone();
        if let Some(rules) = self.shared.view.current().rules() {
            rules.for_each_count(|origin, verdict, packets| {
                *decisions.entry((origin.clone(), verdict)).or_default() += packets;
            });
        }
        counters.decisions = decisions
            .into_iter()
            .map(|((origin, verdict), packets)| DecisionCount { verdict, origin, packets })
            .collect();
        counters
    }

    pub(super) fn flows(
        &self,
        now_ms: u32,
        max: usize,
        wanted: &mut dyn FnMut(&FlowInfo) -> bool,
    ) -> Vec<FlowInfo> {
        let view = self.shared.view.current();
        let mut flows = Vec::new();
        self.shared.conntrack.for_each(|key, entry| {
            let opened_by_low = entry.sender(true) == Side::Initiator;
            let low = (packet::unpack(key.low()), key.low_port());
            let high = (packet::unpack(key.high()), key.high_port());
            let (src, dst) = if opened_by_low { (low, high) } else { (high, low) };
            let protocol = key.protocol();
            let flow = Flow { src: packet::pack(src.0), dst: packet::pack(dst.0), protocol, dst_port: dst.1 };
            let [(packets, bytes), (reply_packets, reply_bytes)] = entry.counts();
            let [egress, ingress] = view.origins(&flow);
            let info = FlowInfo {
                key: FlowKey { src: src.0, dst: dst.0, protocol, src_port: src.1, dst_port: dst.1 },
                state: entry.state().name().to_owned(),
                assured: entry.owner().is_some_and(|owner| owner.class == Class::Assured),
                generation: entry.judged(),
                idle_ms: u64::from(entry.idle_ms(now_ms)),
                packets,
                bytes,
                reply_packets,
                reply_bytes,
                egress,
                ingress,
            };
            if wanted(&info) {
                flows.push(info);
            }
            flows.len() < max
        });
        flows
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::dataplane::ConntrackSettings;

    #[test]
    fn who_waits_names_those_that_are_late_and_nobody_who_has_come() {
        let conntrack = ConntrackSettings { flows_max: 1024, ..Default::default() };
        let settings = Settings { cores: vec![0, 0, 0], huge_pages: false, conntrack, ..Default::default() };
        let core = Core::new(&settings).unwrap();
        let named = RefCell::new(vec![]);
        core.publish(World::default(), &|core, generation| {
            core.shared.view.enter(WorkerId(1));
            let late = |worker| {
                named.borrow_mut().push(worker);
                core.shared.view.enter(worker);
            };
            assert!(core.wait_for(generation, Duration::from_mins(1), late));
        });
        assert_eq!(named.into_inner(), [WorkerId(0), WorkerId(2)]);
    }
}
