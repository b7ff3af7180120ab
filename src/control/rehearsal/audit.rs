//! Audit of policies with the annotation `palisade.dev/mode: audit`: tables in which they are enforced too, beside those in
//! force.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use super::denials::{Denials, DeniedFlows};
use super::layout::{Layout, WALK_TIME_MAX, next_walk};
use crate::control::protocol::{AuditReport, AuditedPolicy};
use crate::control::state::State;
use crate::dataplane::{Candidate, CandidateTables};
use crate::ids::Generation;
use crate::net::flow::FlowKey;
use crate::tables::{PolicyRef, RuleOrigin, RuleTables, Verdict};

/// Audit, if a policy is audited.
#[derive(Default)]
pub(in crate::control) struct Audit(Mutex<Slot>);

#[derive(Default)]
struct Slot {
    /// Number of the last load.
    revision: u64,
    running: Option<Running>,
}

struct Running {
    revision: u64,
    /// Generation since which the tables in force are loaded that these stand beside.
    base: Generation,
    /// Tables, or the reason for which there are none.
    tables: Result<Arc<RuleTables>, String>,
    candidate: Option<Arc<Candidate>>,
    denials: Denials,
    walks: u64,
    /// Walks during which a change began.
    discarded: u64,
    flows: u64,
    evicted_before: u64,
    next_walk: Instant,
}

impl Running {
    /// Layout of the tables, if they stand beside those in force.
    fn layout(&self, state: &State) -> Option<Layout> {
        let tables = self.tables.as_ref().ok().filter(|_| self.base == state.tables_since)?;
        Some(Layout { tables: tables.clone(), candidate: self.candidate.clone() })
    }

    /// Reason for which no flow is judged.
    fn problem(&self, state: &State) -> Option<String> {
        match &self.tables {
            Err(reason) => Some(reason.clone()),
            Ok(_) if self.base != state.tables_since => Some(
                "other tables have come into force since: an agent loads the audit again within seconds; otherwise load the \
                 manifests again (`palisade apply`)"
                    .to_owned(),
            ),
            Ok(_) => None,
        }
    }
}

impl Audit {
    /// Loads an audit in place of an earlier one. Policies that were audited before keep their counts. The tables have passed
    /// their check, and stand beside those that are in force since `base`. `evicted_before` is the number of flows evicted by now.
    pub(in crate::control) fn load(
        &self,
        base: Generation,
        policies: Vec<PolicyRef>,
        tables: Result<RuleTables, String>,
        evicted_before: u64,
    ) {
        let tables = tables.map(Arc::new);
        let mut slot = self.lock();
        slot.revision += 1;
        let revision = slot.revision;
        let running = slot.running.get_or_insert_with(|| Running {
            revision,
            base,
            tables: Err(String::new()),
            candidate: None,
            denials: Denials::default(),
            walks: 0,
            discarded: 0,
            flows: 0,
            evicted_before,
            next_walk: Instant::now(),
        });
        (running.revision, running.base) = (revision, base);
        (running.tables, running.candidate) = (tables, None);
        running.denials.set_policies(policies, SystemTime::now());
    }

    /// Forgets the audit: no policy is audited.
    pub(in crate::control) fn forget(&self) {
        self.lock().running.take();
    }

    /// Generation since which the tables are loaded that the audit stands beside.
    pub(in crate::control) fn base(&self) -> Option<Generation> {
        self.lock().running.as_ref().map(|running| running.base)
    }

    /// Number of the load, and the tables, if they have compiled.
    pub(in crate::control) fn tables(&self) -> Option<(u64, Option<Arc<RuleTables>>)> {
        let slot = self.lock();
        let running = slot.running.as_ref()?;
        Some((running.revision, running.tables.as_ref().ok().cloned()))
    }

    /// The audited policies with their counts, and the reason for which no flow is judged.
    pub(in crate::control) fn policies(&self, state: &State) -> (Vec<AuditedPolicy>, Option<String>) {
        let slot = self.lock();
        slot.running
            .as_ref()
            .map_or_else(Default::default, |running| (running.denials.policies(), running.problem(state)))
    }

    /// Reports on the audit, with the number of flows `evicted` since the start.
    pub(in crate::control) fn report(&self, state: &State, evicted: u64) -> AuditReport {
        let slot = self.lock();
        let Some(running) = slot.running.as_ref() else { return AuditReport::default() };
        AuditReport {
            revision: running.revision,
            base: running.base,
            problem: running.problem(state),
            policies: running.denials.policies(),
            denials: running.denials.list(),
            left_out: running.denials.left_out(),
            walks: running.walks,
            discarded: running.discarded,
            flows: running.flows,
            uncounted: running.denials.uncounted(),
            evicted: evicted.saturating_sub(running.evicted_before),
        }
    }

    /// Decision that would deny a flow which the tables in force allow.
    pub(in crate::control) fn denial(
        &self,
        key: &FlowKey,
        state: &State,
        workers: &dyn CandidateTables,
    ) -> Option<RuleOrigin> {
        let layout = self.lock().running.as_ref()?.layout(state)?;
        let (_, candidate) = layout.current(workers)?;
        let found = workers.judge(&candidate, key)?;
        found.candidate.decided_by.filter(|_| found.candidate.verdict == Verdict::Deny)
    }

    /// Judges all flows, if there is an audit and it is time. `settled` returns the state if no change is going on.
    pub(in crate::control) fn walk(
        &self,
        state: &State,
        workers: &dyn CandidateTables,
        settled: impl FnOnce() -> Option<Arc<State>>,
    ) {
        let began = Instant::now();
        let (layout, mut found): (Layout, DeniedFlows<'_>) = {
            let mut slot = self.lock();
            let Some(running) = slot.running.as_mut().filter(|running| running.next_walk <= began) else {
                return;
            };
            let Some(layout) = running.layout(state) else { return };
            running.next_walk = began + WALK_TIME_MAX;
            (layout, running.denials.begin(SystemTime::now(), state))
        };
        let walked = layout.current(workers).map(|(layout, candidate)| {
            let flows = workers.judge_flows(&candidate, &mut |flow| found.add(flow));
            (layout, flows)
        });
        // Other tables may have come into force during the walk, without a state yet that says so.
        let base = settled().map(|state| state.tables_since);
        let mut slot = self.lock();
        let Some(running) = slot.running.as_mut() else { return };
        running.next_walk = next_walk(began);
        let Some((layout, flows)) = walked else { return };
        let is_same = running.tables.as_ref().is_ok_and(|tables| Arc::ptr_eq(tables, &layout.tables));
        if !is_same || Some(running.base) != base {
            running.discarded += 1;
            return;
        }
        running.candidate = layout.candidate;
        running.flows = flows;
        running.walks += 1;
        running.denials.end(found);
    }

    fn lock(&self) -> MutexGuard<'_, Slot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
