//! Candidate tables beside those in force: flows are judged by both, and only the tables in force are enforced.
//!
//! [`Rehearsal`] has the tables of `palisade apply --shadow`, [`Audit`] those in which audited policies are enforced too.
//!
//! The control side walks over the flow table and reads the samples of denied packets. Workers do not know the candidate,
//! so that it costs them nothing.

mod audit;
mod denials;
mod disagreements;
mod ends;
mod layout;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use self::disagreements::{Disagreements, Seen};
use self::layout::{Layout, WALK_TIME_MAX, next_walk};
use super::ApiError;
use super::protocol::{DropRecord, PolicyOrigin, ShadowReport};
use super::state::{State, unix_seconds};
use crate::dataplane::{Candidate, CandidateTables, DropReason};
use crate::ids::Generation;
use crate::net::flow::FlowKey;
use crate::tables::RuleTables;

pub(super) use self::audit::Audit;

/// Most sampled packets that wait for a layout.
const WAITING_MAX: usize = 1024;

/// Reasons of drops by policy.
const DENIALS: [DropReason; 3] =
    [DropReason::PolicyEgress, DropReason::PolicyIngress, DropReason::UnknownPod];

/// Candidate tables, if any are loaded.
#[derive(Default)]
pub(super) struct Rehearsal(Mutex<Option<Running>>);

struct Running {
    tables: Arc<RuleTables>,
    origin: PolicyOrigin,
    /// Generation since which the tables in force at the load are loaded.
    base: Generation,
    since: SystemTime,
    candidate: Option<Arc<Candidate>>,
    disagreements: Disagreements,
    /// Denied packets since the pods of the layout have changed. The next walk judges them.
    waiting: Vec<FlowKey>,
    /// Denied packets that found no place among them.
    unjudged: u64,
    walks: u64,
    flows: u64,
    evicted_before: u64,
    next_walk: Instant,
}

impl Running {
    fn layout(&self) -> Layout {
        Layout { tables: self.tables.clone(), candidate: self.candidate.clone() }
    }
}

impl Rehearsal {
    /// Loads candidate tables in place of earlier ones. They have passed their check.
    pub(super) fn load(
        &self,
        tables: RuleTables,
        origin: PolicyOrigin,
        state: &State,
        workers: &dyn CandidateTables,
    ) {
        let evicted_before = workers.flows_evicted();
        let (tables, began) = (Arc::new(tables), Instant::now());
        let layout = Layout { tables: tables.clone(), candidate: None };
        *self.lock() = Some(Running {
            tables,
            origin,
            base: state.tables_since,
            since: SystemTime::now(),
            candidate: None,
            disagreements: Disagreements::default(),
            waiting: Vec::new(),
            unjudged: 0,
            walks: 0,
            flows: 0,
            evicted_before,
            next_walk: began + WALK_TIME_MAX,
        });
        self.walk_with(layout, began, state, workers);
    }

    /// The candidate tables, their origin, and the generation of the tables that they were loaded beside.
    pub(super) fn tables(&self) -> Result<(Arc<RuleTables>, PolicyOrigin, Generation), ApiError> {
        let running = self.lock();
        let running = running.as_ref().ok_or(ApiError::NoShadow)?;
        Ok((running.tables.clone(), running.origin.clone(), running.base))
    }

    /// Reports on the candidate tables.
    pub(super) fn report(&self, workers: &dyn CandidateTables) -> Result<ShadowReport, ApiError> {
        let evicted = workers.flows_evicted();
        let running = self.lock();
        let running = running.as_ref().ok_or(ApiError::NoShadow)?;
        let (disagreements, left_out) = running.disagreements.report();
        Ok(ShadowReport {
            origin: running.origin.clone(),
            since_unix_s: unix_seconds(running.since),
            pods: running.tables.pods.len(),
            rules: running.tables.rules.len(),
            walks: running.walks,
            flows: running.flows,
            evicted: evicted.saturating_sub(running.evicted_before),
            disagreements,
            left_out,
            unjudged: running.unjudged,
        })
    }

    /// Forgets the candidate tables; with `only` not those that another client has loaded meanwhile.
    pub(super) fn forget(&self, only: Option<&Arc<RuleTables>>) -> Result<(), ApiError> {
        let mut running = self.lock();
        let is_meant = |running: &Running| only.is_none_or(|only| Arc::ptr_eq(&running.tables, only));
        running.take_if(|running| is_meant(running)).map(drop).ok_or(ApiError::NoShadow)
    }

    /// Judges all flows, if candidate tables are loaded and it is time.
    pub(super) fn walk(&self, state: &State, workers: &dyn CandidateTables) {
        let began = Instant::now();
        let layout = {
            let mut running = self.lock();
            let Some(running) = running.as_mut().filter(|running| running.next_walk <= began) else { return };
            // Another walk takes over where this one fails.
            running.next_walk = began + WALK_TIME_MAX;
            running.layout()
        };
        self.walk_with(layout, began, state, workers);
    }

    fn walk_with(&self, layout: Layout, began: Instant, state: &State, workers: &dyn CandidateTables) {
        let Some((layout, candidate)) = layout.current(workers) else { return };
        let mut seen = Seen::at(SystemTime::now(), state);
        let flows = workers.judge_flows(&candidate, &mut |found| seen.add(found));
        let mut waiting = Vec::new();
        self.update(&layout.tables, |running| {
            running.candidate = layout.candidate;
            running.flows = flows;
            running.disagreements.end_walk(seen);
            running.walks += 1;
            running.next_walk = next_walk(began);
            waiting = std::mem::take(&mut running.waiting);
        });
        self.note_denied(&layout.tables, &waiting, &candidate, state, workers);
    }

    /// Judges sampled packets that the tables in force have denied.
    pub(super) fn judge_denied(&self, records: &[DropRecord], state: &State, workers: &dyn CandidateTables) {
        let denied = records.iter().filter(|record| DENIALS.contains(&record.reason));
        let keys: Vec<_> = denied.filter_map(|record| record.flow).collect();
        if keys.is_empty() {
            return;
        }
        let Some(layout) = self.lock().as_ref().map(Running::layout) else { return };
        match layout.fitting(workers) {
            Some(candidate) => self.note_denied(&layout.tables, &keys, candidate, state, workers),
            // A layout takes long, and pods may come and go all the time: only walks make one.
            None => self.update(&layout.tables, |running| {
                let room = WAITING_MAX - running.waiting.len();
                running.unjudged += keys.len().saturating_sub(room) as u64;
                running.waiting.extend(keys.iter().take(room));
            }),
        }
    }

    fn note_denied(
        &self,
        tables: &Arc<RuleTables>,
        keys: &[FlowKey],
        candidate: &Candidate,
        state: &State,
        workers: &dyn CandidateTables,
    ) {
        let found: Vec<_> = keys.iter().filter_map(|key| workers.judge(candidate, key)).collect();
        self.update(tables, |running| {
            found.iter().for_each(|found| running.disagreements.note_denied(found, state));
        });
    }

    /// Keeps what `tables` have told, unless they have been forgotten or replaced meanwhile.
    fn update(&self, tables: &Arc<RuleTables>, change: impl FnOnce(&mut Running)) {
        if let Some(running) = self.lock().as_mut().filter(|running| Arc::ptr_eq(&running.tables, tables)) {
            change(running);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::dataplane::Disagreement;

    /// Takes as long for the layout of a candidate as a test likes.
    struct SlowLayout {
        begun: SyncSender<()>,
        go_on: Mutex<Receiver<()>>,
    }

    impl CandidateTables for SlowLayout {
        fn lay_out(&self, _: &Arc<RuleTables>) -> Option<Candidate> {
            self.begun.send(()).unwrap();
            self.go_on.lock().unwrap().recv().unwrap();
            None
        }

        fn fits(&self, _: &Candidate) -> bool {
            unreachable!()
        }

        fn judge(&self, _: &Candidate, _: &FlowKey) -> Option<Disagreement> {
            unreachable!()
        }

        fn judge_flows(&self, _: &Candidate, _: &mut dyn FnMut(Disagreement)) -> u64 {
            unreachable!()
        }

        fn flows_evicted(&self) -> u64 {
            0
        }
    }

    #[test]
    fn nobody_waits_for_the_layout_of_a_candidate_or_a_walk() {
        const TIMEOUT: Duration = Duration::from_secs(20);
        let (begun, layouts) = sync_channel(0);
        let (release, go_on) = sync_channel(0);
        let dataplane = SlowLayout { begun, go_on: Mutex::new(go_on) };
        let rehearsal = Rehearsal::default();
        thread::scope(|scope| {
            let load = || {
                let origin = PolicyOrigin::control_socket(None, None);
                rehearsal.load(RuleTables::default(), origin, &State::default(), &dataplane);
            };
            scope.spawn(load);
            layouts.recv_timeout(TIMEOUT).unwrap();
            let (sender, answers) = sync_channel(1);
            let (rehearsal, dataplane) = (&rehearsal, &dataplane);
            scope.spawn(move || {
                let report = rehearsal.report(dataplane).map(|report| report.walks);
                let promoted = rehearsal.tables().and_then(|(tables, ..)| rehearsal.forget(Some(&tables)));
                sender.send((report, promoted)).unwrap();
            });
            let answer = answers.recv_timeout(TIMEOUT);
            release.send(()).unwrap();
            let (report, promoted) = answer.expect("a report waits for the layout");
            assert_eq!(report.unwrap(), 0);
            promoted.unwrap();
        });
        // Tables that are forgotten meanwhile do not come back.
        assert!(rehearsal.tables().is_err());
    }

    /// Counts the layouts that it is asked for, and makes none.
    #[derive(Default)]
    struct CountedLayouts(std::sync::atomic::AtomicU32);

    impl CandidateTables for CountedLayouts {
        fn lay_out(&self, _: &Arc<RuleTables>) -> Option<Candidate> {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            None
        }

        fn fits(&self, _: &Candidate) -> bool {
            unreachable!()
        }

        fn judge(&self, _: &Candidate, _: &FlowKey) -> Option<Disagreement> {
            unreachable!()
        }

        fn judge_flows(&self, _: &Candidate, _: &mut dyn FnMut(Disagreement)) -> u64 {
            unreachable!()
        }

        fn flows_evicted(&self) -> u64 {
            0
        }
    }

    #[test]
    fn denied_packets_wait_for_the_layout_of_the_next_walk() {
        let (dataplane, rehearsal, state) =
            (CountedLayouts::default(), Rehearsal::default(), State::default());
        let origin = PolicyOrigin::control_socket(None, None);
        rehearsal.load(RuleTables::default(), origin, &state, &dataplane);
        let layouts = || dataplane.0.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(layouts(), 1);
        let denied = DropRecord {
            number: 1,
            at_unix_ms: 0,
            port: "veth".to_owned(),
            reason: DropReason::PolicyIngress,
            frame_bytes: 60,
            frame: String::new(),
            flow: Some(FlowKey {
                src: [10, 0, 0, 1].into(),
                dst: [10, 0, 0, 2].into(),
                protocol: crate::net::flow::Protocol::TCP,
                src_port: 1,
                dst_port: 2,
            }),
            source_pod: None,
            destination_pod: None,
            decided_by: None,
        };
        for _ in 0..=WAITING_MAX / 100 {
            rehearsal.judge_denied(&vec![denied.clone(); 100], &state, &dataplane);
        }
        assert_eq!(layouts(), 1, "samples come five times a second");
        let unjudged = (WAITING_MAX / 100 + 1) * 100 - WAITING_MAX;
        assert_eq!(rehearsal.report(&dataplane).unwrap().unjudged, unjudged as u64);
    }
}
