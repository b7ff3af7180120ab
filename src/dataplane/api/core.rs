//! Operations of the parts that every dataplane with workers has.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{CandidateTables, Flows, PacketCaptures};
use crate::dataplane::capture::Capture;
use crate::dataplane::core::Core;
use crate::dataplane::core::rehearsal::{Candidate, Disagreement};
use crate::dataplane::engine::WORKER_TIMEOUT;
use crate::dataplane::{FlowCounters, FlowEvents, FlowInfo, FlowTableReport, FlowsLeft, ServiceFlows};
use crate::net::flow::FlowKey;
use crate::tables::{RuleOrigin, RuleTables, ServicePortName};

impl Flows for Core {
    fn report(&self) -> FlowTableReport {
        self.flow_table().clone()
    }

    fn for_each(&self, see: &mut dyn FnMut(FlowInfo) -> bool) {
        self.flows(self.clock_ms(), see);
    }

    fn origins(&self, flow: &FlowKey) -> [Option<RuleOrigin>; 2] {
        self.flow_origins(flow)
    }

    fn end(&self, wanted: &mut dyn FnMut(&FlowInfo) -> bool) -> Result<u64, FlowsLeft> {
        self.end_flows(self.clock_ms(), wanted, WORKER_TIMEOUT, &mut |_| ())
    }

    fn follow(&self, is_followed: bool) {
        self.shared.flow_events.follow(is_followed);
    }

    fn take_events(&self) -> FlowEvents {
        self.take_flow_events()
    }

    fn counters(&self) -> &dyn FlowCounters {
        self
    }

    fn of_services(&self) -> BTreeMap<ServicePortName, ServiceFlows> {
        self.service_flows()
    }
}

impl CandidateTables for Core {
    fn lay_out(&self, tables: &Arc<RuleTables>) -> Option<Candidate> {
        Some(self.candidate(tables.clone()))
    }

    fn fits(&self, candidate: &Candidate) -> bool {
        Core::fits(self, candidate)
    }

    fn judge(&self, candidate: &Candidate, key: &FlowKey) -> Option<Disagreement> {
        Core::judge(self, candidate, key)
    }

    fn judge_flows(&self, candidate: &Candidate, differs: &mut dyn FnMut(Disagreement)) -> u64 {
        Core::judge_flows(self, candidate, differs)
    }

    fn flows_evicted(&self) -> u64 {
        self.shared.mailboxes.iter().map(|mailbox| mailbox.stats.flows_evicted.get()).sum()
    }
}

impl PacketCaptures for Core {
    fn run(&self, captures: Vec<Arc<Capture>>) {
        // A capture is to see every packet.
        if let Some(offload) = &self.shared.offload {
            offload.suspend(!captures.is_empty());
        }
        self.shared.captures.run(captures);
    }

    fn clock(&self) -> Duration {
        self.shared.start.elapsed()
    }
}
