//! Health and readiness of the switch, as probes of a supervisor ask for them.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::Switch;
use super::protocol::{PortState, SourceReport, SourceStatus};
use super::state::{State, unix_seconds};
use crate::dataplane::{Backend, StuckWorker};

/// Longest time between two batches of a healthy worker. A worker without frames sleeps for a tenth of it at most.
const WORKER_PATIENCE: Duration = Duration::from_secs(1);
/// Longest time between two reports of an agent that runs.
const AGENT_PATIENCE: Duration = Duration::from_secs(30);

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
                PortState::Unguarded => "unguarded",
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

    /// Remarks on a switch that forwards, one line each: a slower backend, conditions that let the tables in force grow old.
    pub fn remarks(&self) -> Vec<String> {
        let backend = (self.dataplane.backend() == Backend::Nftables).then(|| {
            "backend nftables: the kernel forwards the packets of pods, slower than AF_XDP".to_owned()
        });
        let Some(SourceStatus { report, age_s }) = self.source() else {
            return backend.into_iter().collect();
        };
        let silent = (age_s > AGENT_PATIENCE.as_secs())
            .then(|| format!("the agent has not reported for {age_s} s: policies stay as they were"));
        let refused = report.refused.iter().map(|reason| {
            format!("the switch does not take the tables of the agent, and keeps those before: {reason}")
        });
        let away = report.away.iter().map(|away| {
            let since = unix_seconds(SystemTime::now()).saturating_sub(away.since_unix_s);
            format!("{} has not been followed for {since} s, and stays as it was: {}", away.kind, away.reason)
        });
        let unlisted = report
            .unlisted
            .iter()
            .map(|kind| format!("{kind} has not been listed yet: no tables are loaded"));
        backend.into_iter().chain(silent).chain(refused).chain(unlisted).chain(away).collect()
    }

    /// Workers that do not run.
    pub(super) fn halted_workers(&self) -> Vec<StuckWorker> {
        self.dataplane.workers_stuck_for(WORKER_PATIENCE)
    }
}
