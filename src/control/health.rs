//! Health and readiness of the switch, as probes of a supervisor ask for them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Switch;
use super::protocol::{PortState, SourceReport, SourceStatus};
use super::state::State;
use crate::dataplane::{Backend, StuckWorker};

/// Longest time between two batches of a healthy worker. A worker without frames sleeps for a tenth of it at most.
const WORKER_TIMEOUT: Duration = Duration::from_secs(1);

impl Switch {
    /// Reports workers that do not run, one line each. A healthy switch has none.
    pub fn unhealthy(&self) -> Vec<String> {
        let stuck = self.halted_workers().into_iter().map(|stuck| {
            let (worker, core, seconds) = (stuck.worker, stuck.core, stuck.since.as_secs());
            format!("worker {worker} (core {core}) has not come to the end of a batch for {seconds} s")
        });
        stuck.collect()
    }

    /// Reports conditions that keep the switch from forwarding, one line each: missing tables, ports that are not up. A switch
    /// that is ready has none.
    pub fn not_ready(&self) -> Vec<String> {
        let state = self.state.load();
        let tables = state.tables.is_none().then(|| "no rule tables are loaded".to_owned());
        let ports = state.ports.iter().filter_map(|(name, port)| {
            let is = match port.state {
                PortState::Up => return None,
                PortState::Down => "down",
                PortState::Unguarded => "UNGUARDED",
            };
            let reason = port.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            Some(format!("port {name} is {is}{reason}"))
        });
        tables.into_iter().chain(ports).collect()
    }

    /// Records the state of an agent.
    pub fn set_source(&self, report: SourceReport) {
        if report.has_routes && !self.state.load().has_node_routes {
            let _writer = self.lock_writer();
            // A worker that is late is reported with the next change.
            let _ = self.publish(State { has_node_routes: true, ..self.draft() });
        }
        self.source.store(Some(Arc::new((report, Instant::now()))));
    }

    /// Last state of an agent, if one has reported.
    pub fn source(&self) -> Option<SourceStatus> {
        let source = self.source.load();
        let (report, at) = source.as_deref()?;
        Some(SourceStatus { report: report.clone(), age_s: at.elapsed().as_secs() })
    }

    /// Remarks on a switch, one line each: a slower backend, and the problems that are none of [`Switch::not_ready`].
    pub fn remarks(&self) -> Vec<String> {
        let backend = (self.dataplane.backend() == Backend::Nftables).then(|| {
            "backend nftables: the kernel forwards the packets of pods, slower than AF_XDP".to_owned()
        });
        let not_ready = self.not_ready();
        let is_told = |problem: &String| not_ready.iter().any(|told| problem.starts_with(told));
        let problems = self.problems(&self.state.load()).into_iter().filter(|problem| !is_told(problem));
        backend.into_iter().chain(problems).collect()
    }

    /// Workers that do not run.
    pub(super) fn halted_workers(&self) -> Vec<StuckWorker> {
        self.stuck_for(WORKER_TIMEOUT)
    }
}
