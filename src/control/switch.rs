//! Control side of the switch. It validates each change, builds a desired state and publishes it.

mod forgotten;
mod problems;
mod reports;
mod status;
mod workers;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Instant;

use arc_swap::{ArcSwap, ArcSwapOption};

use super::captures::CaptureTable;
use super::drops::{DropLog, DropQuery};
use super::flows::Followers;
use super::ipfix;
use super::protocol::{
    ConfigurationReport, CountersReport, DropsReport, Loaded, PodInfo, PodRequest, PolicyOrigin, PortInfo,
    PortRequest, PortState, RejectedReload, SourceReport, TablesPatch, TablesSummary,
};
use super::rehearsal::{Audit, Rehearsal};
use super::state::{PodRecord, PortRecord, State};
use super::{ApiError, Configured, CoverageCheck, SwitchSettings, validation};
use crate::dataplane::{DataplaneApi, PortKind, PublishError};
use crate::ids::{AttachmentId, Generation};
use crate::limits::REJECTED_ERROR_BYTES_MAX;
use crate::tables::{PodName, ReferenceCounts, RuleTables, TablesDiff, TablesError};

/// Control side of a switch. Readers never wait for a change. Changes happen one after the other.
pub struct Switch {
    pub(super) dataplane: Arc<dyn DataplaneApi>,
    pub(super) settings: SwitchSettings,
    started: Instant,
    pub(super) state: ArcSwap<State>,
    rejected_reload: ArcSwapOption<RejectedReload>,
    configuration: ArcSwapOption<ConfigurationReport>,
    /// Parts of the configuration file that is in force.
    configured: ArcSwapOption<Configured>,
    /// Asks the process to reload its configuration.
    reload: OnceLock<Box<dyn Fn() + Send + Sync>>,
    pub(super) source: ArcSwapOption<(SourceReport, Instant)>,
    pub(super) drop_log: Mutex<DropLog>,
    pub(super) captures: CaptureTable,
    pub(super) followers: Followers,
    pub(super) rehearsal: Rehearsal,
    pub(super) audit: Audit,
    pub(super) ipfix: ipfix::Shared,
    /// Reasons for which the node's own kernel does not have all that it is to get, by [`NodePart`].
    node_problems: [ArcSwapOption<String>; 3],
    writer: Mutex<Writer>,
}

/// Part of the node's own kernel that the switch keeps.
#[derive(Debug, Clone, Copy)]
pub(super) enum NodePart {
    /// Routes to pods of other nodes.
    Routes,
    /// Services for sockets.
    Sockets,
    /// Ports for the health checks of load balancers.
    HealthChecks,
}

/// Data that only changes need, locked during each of them.
#[derive(Default)]
pub(super) struct Writer {
    /// Last attachment number in use.
    attachment: AttachmentId,
    /// Reference counts of the entries of the loaded tables.
    references: ReferenceCounts,
}

impl Switch {
    /// Creates a switch without ports, pods and tables, and publishes that state.
    pub fn new(dataplane: Arc<dyn DataplaneApi>, settings: SwitchSettings) -> Switch {
        let routes = settings.routes.as_slice().into();
        let switch = Switch {
            dataplane,
            settings,
            started: Instant::now(),
            state: ArcSwap::default(),
            rejected_reload: ArcSwapOption::default(),
            configuration: ArcSwapOption::default(),
            configured: ArcSwapOption::default(),
            reload: OnceLock::new(),
            source: ArcSwapOption::default(),
            drop_log: Mutex::default(),
            captures: CaptureTable::default(),
            followers: Followers::default(),
            rehearsal: Rehearsal::default(),
            audit: Audit::default(),
            ipfix: ipfix::Shared::default(),
            node_problems: Default::default(),
            writer: Mutex::default(),
        };
        // A worker that is stuck from the start is reported with the first change.
        let _ = switch.publish(State { routes, ..State::default() });
        switch
    }

    /// Reports the sizes of the loaded tables.
    pub fn tables_summary(&self) -> TablesSummary {
        self.state.load().tables_summary()
    }

    /// Returns the loaded tables.
    pub fn tables(&self) -> Option<Arc<RuleTables>> {
        self.state.load().tables.clone()
    }

    /// Loads full tables on behalf of an unknown client of the control socket.
    pub fn put_tables(&self, tables: RuleTables) -> Result<Loaded, ApiError> {
        self.replace_tables(tables, PolicyOrigin::control_socket(None, None), CoverageCheck::Require)
    }

    /// Loads full tables.
    pub fn replace_tables(
        &self,
        tables: RuleTables,
        origin: PolicyOrigin,
        coverage: CoverageCheck,
    ) -> Result<Loaded, ApiError> {
        self.replace_tables_of(None, tables, origin, coverage)
    }

    /// Loads full tables in place of those that are in force since `base`, or in place of any.
    pub(super) fn replace_tables_of(
        &self,
        base: Option<Generation>,
        tables: RuleTables,
        origin: PolicyOrigin,
        coverage: CoverageCheck,
    ) -> Result<Loaded, ApiError> {
        self.check_tables(&tables, coverage)?;
        let references = ReferenceCounts::of(&tables);
        let mut writer = self.lock_writer();
        let state = self.state.load_full();
        if base.is_some_and(|base| base != state.tables_since) {
            return Err(ApiError::ShadowOutdated);
        }
        // Pods may have come meanwhile.
        state.check_coverage(&tables, coverage, self.settings.fail_open)?;
        writer.references = references;
        Ok(Loaded { generation: self.publish(self.draft().with_tables(Some((tables, origin))))? })
    }

    /// Changes the loaded tables on behalf of an unknown client of the control socket.
    pub fn patch_tables(&self, patch: &TablesPatch) -> Result<Loaded, ApiError> {
        let origin = PolicyOrigin::control_socket(None, None);
        self.change_tables(patch.base, &patch.diff, origin, CoverageCheck::RequireIfCovered)
    }

    /// Changes the loaded tables, at a cost that depends on the size of the change. `base` is any generation
    /// since these tables were loaded. An empty difference changes only the recorded origin.
    pub fn change_tables(
        &self,
        base: Generation,
        difference: &TablesDiff,
        origin: PolicyOrigin,
        coverage: CoverageCheck,
    ) -> Result<Loaded, ApiError> {
        let mut writer = self.lock_writer();
        let state = self.state.load_full();
        let loaded = state.tables.as_ref().ok_or(ApiError::NoBase)?;
        if !(state.tables_since..=state.generation).contains(&base) {
            return Err(TablesError::Base { base, current: state.generation }.into());
        }
        if difference.is_empty() {
            if let Some((before, since)) = &state.origin
                && before.source == origin.source
            {
                let next = State { origin: Some((origin, *since)), ..State::clone(&state) };
                self.state.store(Arc::new(next));
            }
            return Ok(Loaded { generation: state.generation });
        }
        let mut tables = RuleTables::clone(loaded);
        tables.apply(difference);
        state.check_coverage(&tables, coverage, self.settings.fail_open)?;
        writer.references.check_and_apply(loaded, difference, &tables)?;
        Ok(Loaded { generation: self.publish(self.draft().with_tables(Some((tables, origin))))? })
    }

    /// Unloads the tables.
    pub fn delete_tables(&self) -> Result<Loaded, ApiError> {
        let mut writer = self.lock_writer();
        writer.references = ReferenceCounts::default();
        Ok(Loaded { generation: self.publish(self.draft().with_tables(None))? })
    }

    /// Number of the last change of the state.
    pub fn generation(&self) -> Generation {
        self.state.load().generation
    }

    /// Lists all ports by name.
    pub fn ports(&self) -> Vec<PortInfo> {
        let state = self.state.load();
        state.ports.iter().map(|(name, port)| state.port_info(name, port)).collect()
    }

    /// Opens a port.
    pub fn put_port(&self, name: &str, request: &PortRequest) -> Result<PortInfo, ApiError> {
        let spec = validation::validate_port(name, request)?;
        let _writer = self.lock_writer();
        let mut next = self.draft();
        if let Some(port) = next.ports.get(name) {
            let interface = port.spec.interface.clone();
            return Err(ApiError::PortExists { name: name.to_owned(), interface });
        }
        if let Some((taken, _)) = next.ports.iter().find(|(_, port)| port.spec.has_interface_of(&spec)) {
            return Err(ApiError::InterfaceTaken { interface: spec.interface, name: taken.clone() });
        }
        if let (PortKind::Host, Some((host, _))) = (spec.kind, next.host_port()) {
            return Err(ApiError::HostPortExists { name: host.clone() });
        }
        next.check_addresses_free(&request.addresses, &self.settings)?;
        let report = self.dataplane.open_port(&spec)?;
        let (state, reason) = (PortState::Up, None);
        let port = PortRecord {
            spec,
            report,
            is_open: true,
            state,
            reason,
            node_addresses: request.addresses.clone(),
        };
        let info = next.port_info(name, &port);
        next.ports.insert(name.to_owned(), port);
        self.publish(next)?;
        Ok(info)
    }

    /// Closes a port that has no pod. `detach`, or else the settings, decide whether the kernel gets the
    /// interface back.
    pub fn delete_port(&self, name: &str, detach: Option<bool>) -> Result<(), ApiError> {
        let _writer = self.lock_writer();
        let before = self.draft();
        let mut next = before.clone();
        let port = before.known_port(name)?;
        next.ports.remove(name);
        if let Some(pod) = before.pod_behind(name) {
            return Err(ApiError::PortHasPod { port: name.to_owned(), pod: pod.clone() });
        }
        let detach = detach.unwrap_or(self.settings.detach);
        // The desired state loses the port before the workers close it, so that no route leads to a closing
        // port.
        let closed = self.publish(next).map_err(ApiError::from).and_then(|_| {
            if port.is_open {
                self.dataplane.close_port(port.report.id, detach)?;
            }
            if detach && port.spec.kind != PortKind::Tap {
                // The program that blocks interfaces of this name is detached too.
                self.dataplane.unblock_interface(&port.spec.interface)?;
            }
            Ok(())
        });
        closed.or_else(|error| self.publish(before).map_err(ApiError::from).and(Err(error)))
    }

    /// Lists all pods by name.
    pub fn pods(&self) -> Vec<PodInfo> {
        let state = self.state.load();
        state.pods.iter().map(|(name, pod)| state.pod_info(name, pod, self.settings.fail_open)).collect()
    }

    /// Attaches a pod to a port.
    pub fn put_pod(&self, name: &PodName, request: &PodRequest) -> Result<PodInfo, ApiError> {
        validation::validate_pod(name, request, self.settings.gateway.mac)?;
        let mut writer = self.lock_writer();
        let mut next = self.draft();
        if !request.bandwidth.is_unlimited() {
            self.require_rates()?;
        }
        if let Some(pod) = next.pods.get(name) {
            return Err(ApiError::PodExists { pod: name.clone(), port: pod.request.port.clone() });
        }
        let port = next.known_port(&request.port)?;
        if !port.spec.kind.has_pod() {
            return Err(ApiError::WrongKind { port: request.port.clone(), kind: port.spec.kind });
        }
        if let Some(pod) = next.pod_behind(&request.port) {
            return Err(ApiError::PortHasPod { port: request.port.clone(), pod: pod.clone() });
        }
        next.check_addresses_free(&request.addresses, &self.settings)?;
        self.check_port_mappings(&next, request)?;
        let attachment = writer.next_attachment()?;
        let pod = PodRecord { attachment, request: request.clone(), draining: false };
        let info = next.pod_info(name, &pod, self.settings.fail_open);
        next.pods.insert(name.clone(), pod);
        self.publish(next)?;
        Ok(info)
    }

    /// Detaches a pod. Its port stays open.
    pub fn delete_pod(&self, name: &PodName) -> Result<(), ApiError> {
        let _writer = self.lock_writer();
        let mut next = self.draft();
        next.attached_pod(name)?;
        next.pods.remove(name);
        self.publish(next)?;
        Ok(())
    }

    /// Reports all counters, those of open ports by name.
    pub fn counters(&self) -> CountersReport {
        let counters = self.dataplane.counters();
        let state = self.state.load();
        let named = |(id, counters)| Some((state.port_name(id)?.clone(), counters));
        CountersReport {
            ports: counters.ports.into_iter().filter_map(named).collect(),
            workers: counters.workers.into_iter().map(|(id, worker)| (id.to_string(), worker)).collect(),
            decisions: counters.decisions,
            offload: counters.offload,
        }
    }

    /// Reports the last dropped frames that `filter` selects, oldest first.
    pub fn drops(&self, query: &DropQuery) -> Result<DropsReport, ApiError> {
        self.require_workers(
            "samples of drops",
            "`palisade show counters` counts them by port, reason and rule",
        )?;
        let (state, is_first) = (self.state.load(), query.after == 0);
        // The first request must name a port, or a pod; one that goes on may have lost it.
        if let Some(name) = query.interface.as_ref().filter(|_| is_first) {
            state.known_port(name)?;
        }
        let report = self.drop_log.lock().unwrap_or_else(PoisonError::into_inner).select(query);
        if is_first && report.drops.is_empty() {
            query.filter.pods().try_for_each(|pod| state.known_addresses(pod).map(drop))?;
        }
        Ok(report)
    }

    pub(super) fn lock_writer(&self) -> MutexGuard<'_, Writer> {
        // A state is replaced as a whole, so a panic during a change leaves the state before it.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tests whether a change is going on, which the state may not tell of yet.
    pub(super) fn is_changing(&self) -> bool {
        matches!(self.writer.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Copies the state for a change.
    pub(super) fn draft(&self) -> State {
        State::clone(&self.state.load())
    }

    pub(super) fn publish(&self, mut next: State) -> Result<Generation, PublishError> {
        next.served = next.serve(&self.state.load().served);
        let published = self.dataplane.publish(next.desired(&self.settings));
        // A late worker takes the generation when it goes on, or the switch ends. The state is current in
        // either case.
        let (Ok(generation) | Err(PublishError { generation, .. })) = published;
        let same_tables = match (&self.state.load().tables, &next.tables) {
            (Some(before), Some(after)) => Arc::ptr_eq(before, after),
            (before, after) => before.is_none() && after.is_none(),
        };
        if !same_tables {
            next.tables_since = generation;
        }
        let services = |state: &State| state.services.as_ref().map(|loaded| Arc::as_ptr(&loaded.set));
        if services(&self.state.load()) != services(&next)
            && let Some(loaded) = &mut next.services
        {
            loaded.since = generation;
        }
        next.generation = generation;
        self.state.store(Arc::new(next));
        published
    }
}

impl Writer {
    /// Allocates an attachment number that is not used before.
    pub(super) fn next_attachment(&mut self) -> Result<AttachmentId, ApiError> {
        self.attachment = AttachmentId(self.attachment.0.checked_add(1).ok_or(ApiError::AttachmentsUsedUp)?);
        Ok(self.attachment)
    }
}

/// Formats an error for the status: bounded, and without control characters.
fn shown(error: &str) -> String {
    let end = error.floor_char_boundary(REJECTED_ERROR_BYTES_MAX);
    let mut text: String =
        error[..end].chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
    if end < error.len() {
        text.push_str(" …");
    }
    text
}
