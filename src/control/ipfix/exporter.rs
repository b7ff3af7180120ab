//! Exporter of flows: records of ended flows at once, of others after their time.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use super::deltas::{FlowDelta, FlowDeltas};
use super::output::Output;
use super::ports::{Ports, number_of};
use super::shared::Shared;
use super::templates::{Clock, denial, flow};
use crate::control::IpfixSettings;
use crate::control::state::State;
use crate::dataplane::{EndedFlows, FlowCounters};

/// Walks over the flow table in the time after which a flow gets a record.
const WALKS: u32 = 6;
/// Flows of a walk between two collections of ended flows.
const FLOWS_AT_ONCE: u32 = 1024;

/// Exporter of the flows of a dataplane.
pub(in crate::control) struct Exporter<'a> {
    flows: &'a dyn FlowCounters,
    shared: &'a Shared,
    deltas: FlowDeltas,
    ports: Ports,
    output: Output,
    clock: Clock,
    walk_interval: Duration,
    last_walk: Instant,
}

impl<'a> Exporter<'a> {
    /// Starts the collection. Flows of the process before count from now on.
    pub(in crate::control) fn start(
        flows: &'a dyn FlowCounters,
        shared: &'a Shared,
        settings: &IpfixSettings,
    ) -> Exporter<'a> {
        flows.follow_ended(true);
        shared.run(true);
        let mut deltas = FlowDeltas::new(settings.active_timeout.as_millis() as u32);
        let mut clock = Clock::default();
        let ended = take_ended(flows, &mut clock);
        flows.read(&mut |flow| {
            deltas.assume_exported(flow, ended.now_ms);
            true
        });
        let mut exporter = Exporter {
            flows,
            shared,
            deltas,
            ports: Ports::default(),
            output: Output::new(settings.clone()),
            clock,
            walk_interval: settings.active_timeout / WALKS,
            last_walk: Instant::now(),
        };
        exporter.add_ended(&ended);
        exporter
    }

    /// Sends the records that are due, under the names of this state.
    pub(in crate::control) fn run(&mut self, state: &Arc<State>) {
        self.prepare(state);
        if self.last_walk.elapsed() >= self.walk_interval {
            self.walk();
            self.last_walk = Instant::now();
        }
        self.output.flush(unix_s(), self.shared);
    }

    /// Sends what is left of all flows, and ends the collection.
    pub(in crate::control) fn finish(mut self, state: &Arc<State>) {
        self.prepare(state);
        self.flows.follow_ended(false);
        self.shared.run(false);
        let flows = self.flows;
        flows.read(&mut |flow| {
            if let Some(delta) = self.deltas.finish(flow) {
                self.add(&delta);
            }
            true
        });
        self.output.flush(unix_s(), self.shared);
    }

    /// Sends templates if it is time, and adds the records of ended flows and denied packets.
    fn prepare(&mut self, state: &Arc<State>) {
        let changed = self.ports.update(state);
        self.output.refresh(self.ports.options(), &changed, unix_s(), self.shared);
        self.take_ended();
        while let Some(denied) = self.shared.take_denial() {
            let (set, record) = denial(&denied, self.ports.named(&denied.port));
            self.output.add((set, &record), unix_s(), self.shared);
        }
    }

    fn take_ended(&mut self) {
        let ended = take_ended(self.flows, &mut self.clock);
        self.add_ended(&ended);
    }

    fn add_ended(&mut self, ended: &EndedFlows) {
        self.shared.lost_ends.store(ended.lost, Relaxed);
        for flow in &ended.flows {
            let delta = self.deltas.end(flow);
            self.add(&delta);
        }
        self.shared.flows.store(self.deltas.len() as u64, Relaxed);
    }

    fn walk(&mut self) {
        self.deltas.begin_walk();
        let (flows, mut seen) = (self.flows, 0);
        flows.read(&mut |flow| {
            if let Some(delta) = self.deltas.see(flow, self.clock.now_ms) {
                self.add(&delta);
            }
            seen += 1;
            if seen % FLOWS_AT_ONCE == 0 {
                // Workers end flows meanwhile.
                self.take_ended();
            }
            true
        });
        self.take_ended();
        let missed: Vec<FlowDelta> = self.deltas.take_missed().collect();
        self.shared.missed_flows.fetch_add(missed.len() as u64, Relaxed);
        missed.iter().for_each(|delta| self.add(delta));
        self.shared.untracked_flows.store(self.deltas.untracked(), Relaxed);
        self.shared.flows.store(self.deltas.len() as u64, Relaxed);
    }

    fn add(&mut self, delta: &FlowDelta) {
        let interfaces = [number_of(delta.flow.port), self.ports.towards(delta.flow.key.dst)];
        let (set, record) = flow(delta, interfaces, self.clock);
        self.output.add((set, &record), unix_s(), self.shared);
    }
}

/// Takes the flows that have ended, and the time.
fn take_ended(flows: &dyn FlowCounters, clock: &mut Clock) -> EndedFlows {
    let before = unix_ms();
    let ended = flows.take_ended();
    clock.advance(ended.now_ms, [before, unix_ms()]);
    ended
}

fn unix_s() -> u32 {
    (unix_ms() / 1000) as u32
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
