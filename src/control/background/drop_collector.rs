//! Thread that moves samples of dropped frames, and events of flows, from the workers to the log and to readers.

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::periodic::Periodic;
use crate::control::deny_log::DenyLog;
use crate::control::drops::describe;
use crate::control::flows::{EventStream, KeptNames, Selection, describe_events};
use crate::control::protocol::{FlowQuery, FlowSort};
use crate::control::server::avoid_worker_cores;
use crate::control::{ApiError, Switch};
use crate::dataplane::{DropSamples, Workers};

/// Interval of collection. Workers keep the samples of twice that time.
const INTERVAL: Duration = Duration::from_millis(200);

/// Collects the drops of a switch.
pub(crate) fn collect_drops(switch: &Arc<Switch>) -> io::Result<Periodic> {
    let switch = switch.clone();
    Periodic::start("palisade-drops", move |ticks| {
        avoid_worker_cores(&switch.status().cores);
        let mut deny_log = DenyLog::new(switch.settings.denied_interval);
        let mut names = KeptNames::default();
        // Nothing is to be collected where the kernel forwards.
        let Some(workers) = switch.dataplane.workers() else { return };
        while ticks.wait(INTERVAL) {
            switch.collect_drops(workers, &mut deny_log, &mut names);
            switch.captures.expire(workers.captures());
            switch.rehearsal.walk(&switch.state.load_full(), workers.candidates());
            switch.walk_audit(workers.candidates());
        }
    })
}

impl Switch {
    /// Moves the samples of the workers to the logs, with the names and policies of this moment.
    fn collect_drops(&self, workers: &dyn Workers, deny_log: &mut DenyLog, names: &mut KeptNames) {
        deny_log.report();
        let DropSamples { samples, now_ms, lost } = workers.take_drop_samples();
        let is_followed = self.followers.is_any();
        if !is_followed {
            *names = KeptNames::default();
        }
        if samples.is_empty() && !is_followed {
            return;
        }
        let state = self.state.load_full();
        let record = |sample| describe(sample, now_ms, &state, |flow| self.dataplane.decisions(flow));
        let records: Vec<_> = samples.iter().map(record).collect();
        records.iter().for_each(|record| deny_log.add(record));
        if is_followed {
            let events = workers.flows().take_events();
            names.update(&state);
            let lines = describe_events(&events, &records, names, workers.flows());
            self.followers.send(&lines, events.lost, workers.flows());
        }
        self.ipfix.note_denied(&records);
        self.rehearsal.judge_denied(&records, &state, workers.candidates());
        let mut log = self.drop_log.lock().unwrap_or_else(PoisonError::into_inner);
        records.into_iter().for_each(|record| log.add(record));
        log.lost = lost;
    }

    /// Begins a stream of events of the flows that `query` selects, for a client that `only_reads` or another.
    pub(in crate::control) fn follow_flows(
        &self,
        query: &FlowQuery,
        only_reads: bool,
    ) -> Result<EventStream, ApiError> {
        if query.limit.is_some() || query.sort != FlowSort::default() || query.by_pod || query.all {
            let reason =
                "events take filters only: from, to, pod, address, port, protocol and state".to_owned();
            return Err(ApiError::Field { field: "query", reason });
        }
        let workers = self.require_workers("events of flows", "`conntrack -E` shows those of the kernel")?;
        let selection = Selection::new(query, &self.state.load_full())?;
        self.followers.add(selection, only_reads, workers.flows())
    }

    /// Ends all streams of events, because the switch stops.
    pub(in crate::control) fn close_streams(&self) {
        if let Some(workers) = self.dataplane.workers() {
            self.followers.close(workers.flows());
        }
    }
}
