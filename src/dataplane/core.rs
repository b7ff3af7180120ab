//! Control side of a dataplane, without threads and interfaces: the published snapshot, the open ports, the
//! counters.

mod flows;
mod new_files;
mod observation;
mod offload;
mod paths;
pub(super) mod published_state;
pub(super) mod rehearsal;
mod services;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::capture::Captures;
use super::conntrack::storage::{NewDirectory, Storage, StorageError, table_bytes};
use super::conntrack::{Conntrack, QuotaClass};
use super::endpoints::{Endpoints, Link, SaveProblem};
use super::fib::port::PortView;
use super::fib::publish::Publication;
use super::fib::snapshot::Snapshot;
use super::fragments::FirstFragmentTable;
use super::masquerade::ExternalPorts;
use super::neighbor::table::{Neighbors, SolicitQueue};
use super::offload::Offload;
use super::path::Trial;
use super::service::{Bindings, binding_bytes, open_bindings};
use super::stats::FlowEventQueues;
use super::worker::mailbox::Mailbox;
use super::worker::shared::Shared;
use super::{
    ConntrackSettings, Counters, DecisionCount, DesiredState, FlowMemory, PortCounters, PortError, Settings,
    StartError, WorkerCounters,
};
use crate::ids::{Generation, PortId, WorkerId};
use crate::limits::{PORTS_MAX, WORKERS_MAX};
use crate::tables::{RuleOrigin, Verdict};

pub use self::flows::{flow_state_is_final, flow_states};
pub(super) use self::new_files::NewFiles;

/// Control side of a dataplane.
pub(super) struct Core {
    /// Directory of the flow table, if this process has made it. This field drops first, while `state` has the lock.
    pub(super) new_directory: NewDirectory,
    pub(super) shared: Arc<Shared>,
    cores: Vec<usize>,
    flow_table: FlowTableReport,
    /// Start of this process's switch. The clock of the flow table may begin at the boot of the machine.
    started: Instant,
    pub(super) save_problem: SaveProblem,
    /// Reason for which no flow is offloaded though the settings have it.
    pub(super) offload_refused: Option<String>,
    state: Mutex<State>,
    /// Made for the first connection that is explained.
    trial: OnceLock<Mutex<Trial>>,
}

/// Location of the flow table, and the flows restored from the process before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowTableReport {
    /// Directory of the table's file. Absent: the table lies in memory of the process, and flows end with the
    /// process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Configured capacity in flows.
    #[serde(default)]
    pub capacity: usize,
    /// Whether the file is mapped with huge pages.
    pub huge_pages: bool,
    /// Flows of the process before that were restored at the start.
    pub restored: u64,
    /// Entries that failed the integrity check and were removed, because the process before ended while it
    /// wrote them.
    pub torn: u64,
    /// Notes for the operator, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl fmt::Display for FlowTableReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.directory {
            Some(directory) => {
                let (directory, restored, torn) = (directory.display(), self.restored, self.torn);
                write!(
                    f,
                    "{restored} flows go on if policy allows, {torn} torn ones are gone (table in {directory})"
                )
            }
            None => f.write_str("the flow table ends with this process"),
        }?;
        self.notes.iter().try_for_each(|note| write!(f, "; {note}"))
    }
}

/// State of the control side, locked during each publication.
pub(super) struct State {
    desired: Arc<DesiredState>,
    /// Open ports, without their pods.
    ports: BTreeMap<PortId, PortView>,
    /// Decision counters of generations that no worker uses any more.
    decisions: BTreeMap<(RuleOrigin, Verdict), u64>,
    endpoints: Endpoints,
}

impl Core {
    /// Creates the control side. `start` is the origin of all millisecond timestamps; if the table outlives
    /// the process, it is the boot of the machine.
    pub(super) fn new(settings: &Settings, start: Instant) -> Result<Core, StartError> {
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
        let solicit_queue = SolicitQueue::new().map_err(|error| {
            StartError::Setup(format!(
                "the kernel gives no event counter to ask for neighbours with: {error}"
            ))
        })?;
        let now_ms = start.elapsed().as_millis() as u32;
        // The last ones drop first: the new directory while `endpoints` has the lock.
        let Opened { mut conntrack, bindings, mut endpoints, first, report, new_directory } =
            open_table(&settings.conntrack, settings.huge_pages, now_ms)?;
        let external_ports = ExternalPorts::open(settings, &conntrack)?;
        let (offload, offload_refused) =
            Offload::of_settings(settings, conntrack.slots(), report.directory.as_deref());
        offload.iter().for_each(|offload| conntrack.add_offload(offload.clone()));
        let bindings = Arc::new(bindings);
        conntrack.add_forward_counts(bindings.clone());
        let desired = Arc::new(DesiredState::default());
        let snapshot = Snapshot::new(&desired, first, &BTreeMap::new(), workers);
        // Workers run their first batch before the first publication.
        let snapshot = snapshot.with_restored_pods(endpoints.match_restored(&desired, &desired, now_ms));
        let shared = Shared {
            snapshot: Publication::new(snapshot, workers),
            conntrack,
            bindings,
            external_ports,
            offload,
            neighbors: Arc::new(Neighbors::new()),
            solicit_queue: Arc::new(solicit_queue),
            first_fragments: FirstFragmentTable::new(workers),
            captures: Captures::default(),
            flow_events: FlowEventQueues::new(workers),
            start,
            stopping: false.into(),
            mailboxes,
        };
        let save_problem = endpoints.problem();
        let state = State { desired, ports: BTreeMap::new(), decisions: BTreeMap::new(), endpoints };
        let (shared, cores) = (Arc::new(shared), settings.cores.clone());
        let (started, state) = (Instant::now(), Mutex::new(state));
        let trial = OnceLock::new();
        Ok(Core {
            new_directory,
            shared,
            cores,
            flow_table: report,
            started,
            save_problem,
            offload_refused,
            state,
            trial,
        })
    }

    pub(super) fn workers(&self) -> usize {
        self.cores.len()
    }

    /// Core that the worker is pinned to.
    pub(super) fn core_of(&self, worker: usize) -> usize {
        self.cores[worker]
    }

    pub(super) fn flow_table(&self) -> &FlowTableReport {
        &self.flow_table
    }

    /// Locks the state. No holder of the lock leaves the state half changed when it panics, so a poisoned
    /// lock is safe to use.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates a free port number for this interface.
    pub(super) fn free_port(&self, link: Option<&Link>) -> Result<PortId, PortError> {
        let state = self.state();
        let free = state.endpoints.port_for(link, |id| state.ports.contains_key(&id));
        free.ok_or(PortError::TooMany { max: PORTS_MAX })
    }

    /// Adds a port to the snapshot. Its counters start at zero.
    pub(super) fn add_port(
        &self,
        port: PortId,
        view: PortView,
        link: Option<Link>,
        wait: &dyn Fn(&Core, Generation),
    ) {
        for mailbox in &self.shared.mailboxes {
            mailbox.stats.port(port).clear();
        }
        if let Some(offload) = &self.shared.offload {
            offload.clear_totals(port);
        }
        self.shared.neighbors.forget_port(port);
        let mut state = self.state();
        state.ports.insert(port, view);
        state.endpoints.add_port(port, link);
        self.publish(&mut state, None, wait);
    }

    /// Changes the properties of a port. The pod behind it, and its flows, stay.
    pub(super) fn change_port(&self, port: PortId, view: PortView, wait: &dyn Fn(&Core, Generation)) {
        let mut state = self.state();
        state.ports.insert(port, view);
        self.publish(&mut state, None, wait);
    }

    /// Removes a port from the snapshot.
    pub(super) fn remove_port(&self, port: PortId, wait: &dyn Fn(&Core, Generation)) {
        let mut state = self.state();
        state.ports.remove(&port);
        state.endpoints.remove_port(port);
        self.publish(&mut state, None, wait);
    }

    /// Publishes the next snapshot: of `desired`, or with `None` of the current desired state on other ports.
    /// Calls `wait` with its generation.
    pub(super) fn publish(
        &self,
        state: &mut State,
        desired: Option<DesiredState>,
        wait: &dyn Fn(&Core, Generation),
    ) -> Generation {
        let same_ports = desired.is_some();
        let desired = desired.map_or_else(|| state.desired.clone(), Arc::new);
        let current = self.shared.snapshot.current();
        let now_ms = self.shared.start.elapsed().as_millis() as u32;
        let State { desired: before, ports, endpoints, .. } = &mut *state;
        let recall = || Arc::new(endpoints.match_restored(before, &desired, now_ms));
        let snapshot = current.next(before, &desired, ports, same_ports, self.workers(), recall);
        drop(current);
        // The snapshot is saved before it is published: no flow may carry a generation, or a pod, that the
        // next process does not know.
        endpoints.save(&desired, &snapshot);
        let (generation, rules) = (snapshot.generation, snapshot.rules().cloned());
        let has_services = desired.has_services();
        let old = self.shared.snapshot.publish(snapshot);
        if has_services {
            self.shared.bindings.note_services();
        }
        self.publish_to_offload();
        state.desired = desired;
        wait(self, generation);
        if let Some(left) = old.rules() {
            left.for_each_retired_count(rules.as_deref(), |origin, verdict, packets| {
                *state.decisions.entry((origin.clone(), verdict)).or_default() += packets;
            });
        }
        generation
    }

    pub(super) fn desired(&self) -> Arc<DesiredState> {
        self.state().desired.clone()
    }

    /// Waits until every worker has observed `generation`. Returns false if one does not within `timeout`.
    /// Calls `on_late` for each late worker, from the second check on: by the first check, a worker that is
    /// awake and on its core has observed the generation.
    pub(super) fn wait_for(
        &self,
        generation: Generation,
        timeout: Duration,
        on_late: impl Fn(WorkerId),
    ) -> bool {
        let deadline = Instant::now() + timeout;
        for mailbox in &self.shared.mailboxes {
            mailbox.wake();
        }
        let mut looks = 0;
        self.shared.snapshot.wait(generation, || {
            looks += 1;
            if looks > 1 {
                self.workers_before(generation).for_each(&on_late);
            }
            std::thread::sleep(Duration::from_micros(50));
            Instant::now() <= deadline
        })
    }

    /// Workers that have not observed `generation` yet.
    pub(super) fn workers_before(&self, generation: Generation) -> impl Iterator<Item = WorkerId> {
        let all = (0..self.workers()).map(|worker| WorkerId(worker as u16));
        all.filter(move |worker| self.shared.snapshot.observed(*worker) < generation)
    }

    /// Counters of the ports.
    pub(super) fn port_counters(&self, state: &State) -> BTreeMap<PortId, PortCounters> {
        let of = |port: PortId| {
            let mut sum = PortCounters::default();
            self.shared.mailboxes.iter().for_each(|mailbox| mailbox.stats.port(port).add_to(&mut sum));
            let flows = |class| u64::from(self.shared.conntrack.flows_of(port, class));
            self.add_offloaded(port, &mut sum);
            sum.flows_assured = flows(QuotaClass::Assured);
            sum.flows_unassured = flows(QuotaClass::Unassured) + flows(QuotaClass::Ended);
            sum
        };
        state.ports.keys().map(|port| (*port, of(*port))).collect()
    }

    pub(super) fn counters(&self) -> Counters {
        // Before the lock: the walk over many records takes a while.
        let mut counters = Counters { offload: self.count_offloaded(), ..Counters::default() };
        let state = self.state();
        counters.ports = self.port_counters(&state);
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
                frames_in_rings: stats.frames_in_rings.get(),
                fragments_waiting: stats.fragments_waiting.get(),
            };
            counters.workers.insert(WorkerId(worker as u16), worker_counters);
        }
        let (mut decisions, snapshot) = (state.decisions.clone(), self.shared.snapshot.current());
        // A change of policy does not wait for the walk over all rules.
        drop(state);
        if let Some(rules) = snapshot.rules() {
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
}

/// Open flow table, with its report.
struct Opened {
    conntrack: Conntrack,
    bindings: Bindings,
    endpoints: Endpoints,
    /// Generation of the first snapshot.
    first: Generation,
    /// Directory of the table, if this process has made it.
    new_directory: NewDirectory,
    report: FlowTableReport,
}

/// Memory of a flow table with these settings, bytes: its file, and that of the bindings of flows to Services.
pub fn flow_memory_bytes(settings: &ConntrackSettings) -> usize {
    table_bytes(settings).saturating_add(binding_bytes(settings.flows_max))
}

fn open_table(settings: &ConntrackSettings, huge_pages: bool, now_ms: u32) -> Result<Opened, StartError> {
    let FlowMemory::Directory { path, fallback } = &settings.memory else {
        return in_process(settings, huge_pages, Vec::new());
    };
    let open = |path| Storage::open(path, settings, huge_pages, now_ms);
    let opened = match (open(path), fallback) {
        (Err(StorageError::OnDisk { .. }), Some(fallback)) => match open(fallback) {
            // A world-writable file system lets any user create this name, or fill the file system. That must
            // not keep the switch from starting, so the table lies in process memory then. A process that
            // holds the lock does prevent the start: it is a switch with the same control socket.
            Err(error) if !matches!(error, StorageError::Taken { .. }) => {
                return in_process(settings, huge_pages, vec![error.to_string()]);
            }
            opened => opened,
        },
        (opened, _) => opened,
    };
    let stored = opened.map_err(|error| StartError::Setup(error.to_string()))?;
    let directory = Some(stored.storage.directory().to_owned());
    let mut notes = Vec::new();
    notes.extend(stored.fresh.map(|reason| format!("the table is a new one: {reason}")));
    if huge_pages && !stored.huge {
        notes.push(
            "the table lies in ordinary pages, which is slower with many flows: the kernel has no huge pages for it (Linux 6.1 \
             has the call for that, if enough memory is free in one piece)"
                .to_owned(),
        );
    }
    let (bindings, note) = open_bindings(Some(&stored.storage), settings.flows_max, huge_pages)
        .map_err(|error| no_bindings(&error))?;
    notes.extend(note);
    let (endpoints, note) = Endpoints::restore(stored.storage, stored.generation, now_ms);
    notes.extend(note);
    let report = FlowTableReport {
        directory,
        capacity: settings.flows_max,
        huge_pages: stored.huge,
        restored: stored.recovered.flows,
        torn: stored.recovered.torn,
        notes,
    };
    let (conntrack, first, new_directory) = (stored.table, stored.generation, stored.new_directory);
    Ok(Opened { conntrack, bindings, endpoints, first, new_directory, report })
}

fn in_process(
    settings: &ConntrackSettings,
    huge_pages: bool,
    notes: Vec<String>,
) -> Result<Opened, StartError> {
    let conntrack = Conntrack::new(settings, huge_pages).map_err(|error| {
        let flows = settings.flows_max;
        StartError::Setup(format!(
            "no memory for a conntrack table of {flows} flows ({error}): configure fewer"
        ))
    })?;
    let (bindings, _) =
        open_bindings(None, settings.flows_max, huge_pages).map_err(|error| no_bindings(&error))?;
    let report = FlowTableReport { capacity: settings.flows_max, notes, ..FlowTableReport::default() };
    let (endpoints, first, new_directory) = (Endpoints::default(), Generation(0), NewDirectory::default());
    Ok(Opened { conntrack, bindings, endpoints, first, new_directory, report })
}

fn no_bindings(error: &std::io::Error) -> StartError {
    StartError::Setup(format!(
        "no memory for the bindings of flows to Services ({error}): configure fewer flows"
    ))
}

#[cfg(test)]
mod tests;
