//! The switch as the control side drives it: every change is checked, made a world, and published.

use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use arc_swap::{ArcSwap, ArcSwapOption};
use ipnet::IpNet;

use super::explain::{self, PathReport};
use super::protocol::{
    CountersReport, Loaded, PodInfo, PodRequest, PolicyOrigin, PortInfo, PortRequest, PortState,
    RejectedReload, Status, TablesPatch, TablesSummary,
};
use super::state::{Pod, Port, State, unix_seconds};
use super::{Engine, Refusal, requests};
use crate::dataplane::{FlowInfo, Gateway, NotTaken, PortKind};
use crate::ids::{AttachmentId, Generation};
use crate::limits::{REJECTED_ERROR_BYTES_MAX, REJECTED_ERRORS_MAX};
use crate::net::flow::Protocol;
use crate::policy::testcase::Endpoint;
use crate::policy::testcase::expand_probe;
use crate::tables::{PodName, ReferenceCounts, RuleTables, TablesDiff, TablesError};
use crate::threads;

/// What holds for the life of a switch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SwitchSettings {
    /// Cores of the workers, for the status.
    pub cores: Vec<usize>,
    /// The switch as its pods see it.
    pub gateway: Gateway,
    /// Let traffic of pods pass that the tables do not know.
    pub fail_open: bool,
    /// Whether the interface of a removed port gets its traffic back. Off: its XDP program stays and drops everything.
    pub detach: bool,
    /// Prefixes that only pods of this node have addresses of.
    pub pod_prefixes: Vec<IpNet>,
    /// Routes.
    pub routes: Vec<PortRoute>,
}

/// A route to a port by name. It counts while the port is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortRoute {
    /// Destination prefix.
    pub prefix: IpNet,
    /// Name of the port.
    pub port: String,
    /// Router to send to; the destination itself where absent.
    pub next_hop: Option<IpAddr>,
}

/// Whether tables are loaded that know none of the attached pods, which closes them all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// They are.
    Allowed,
    /// They are not: whoever replaces all tables gives those of the attached pods.
    Refused,
    /// They are not where the tables before know one. A pod that is attached before its objects are loaded holds nothing up.
    RefusedIfKnown,
}

/// The control side of a switch. Reads never wait for a change; changes happen one after the other.
pub struct Switch {
    pub(super) engine: Arc<dyn Engine>,
    settings: SwitchSettings,
    started: Instant,
    pub(super) state: ArcSwap<State>,
    rejected_reload: ArcSwapOption<RejectedReload>,
    change: Mutex<Change>,
}

/// What only changes need. Held during each.
#[derive(Default)]
pub(super) struct Change {
    /// The last attachment number given.
    attachment: AttachmentId,
    /// How often the entries of the loaded tables are named.
    references: ReferenceCounts,
}

impl Switch {
    /// A switch without ports, pods and tables. Publishes that.
    pub fn new(engine: Arc<dyn Engine>, settings: SwitchSettings) -> Switch {
        let switch = Switch {
            engine,
            settings,
            started: Instant::now(),
            state: ArcSwap::default(),
            rejected_reload: ArcSwapOption::default(),
            change: Mutex::default(),
        };
        // The first state: a worker that is stuck from the start is reported with the first change.
        let _ = switch.publish(State::default());
        switch
    }

    /// The switch in short.
    pub fn status(&self) -> Status {
        let state = self.state.load();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            cores: self.settings.cores.clone(),
            generation: state.generation,
            tables_loaded: state.tables.is_some(),
            problems: self.problems(&state),
            flow_table: self.engine.flow_table(),
            policy: state.policy_status(),
            rejected_reload: self.rejected_reload.load().as_deref().cloned(),
        }
    }

    /// Problems for the operator to look at.
    fn problems(&self, state: &State) -> Vec<String> {
        let ports = state.ports.iter().filter_map(|(name, port)| {
            let reason = port.reason.as_ref()?;
            Some(match port.state {
                PortState::Up => format!("port {name}: {reason}"),
                PortState::Down => format!("port {name} is down: {reason}"),
                PortState::Unguarded => format!("port {name} is UNGUARDED: {reason}"),
            })
        });
        let stuck = self.engine.stuck_workers().into_iter().map(|stuck| {
            format!(
                "worker {} (core {}) has not come to the end of a batch for {} s: changes do not reach it; restart the switch",
                stuck.worker,
                stuck.core,
                stuck.since.as_secs()
            )
        });
        let links = self.engine.without_links().map(|why| {
            format!(
                "XDP programs are attached without BPF links ({why}): `ip link set dev NAME xdp off` takes them off; mount a \
                 BPF file system there (`mount -t bpf bpf /sys/fs/bpf`) and restart the switch"
            )
        });
        let panics = match threads::panics() {
            0 => None,
            count => Some(format!("{count} panics have been contained since the start: the log says where")),
        };
        ports.chain(stuck).chain(links).chain(panics).collect()
    }

    /// The loaded tables in numbers.
    pub fn tables_summary(&self) -> TablesSummary {
        self.state.load().tables_summary()
    }

    /// The loaded tables.
    pub fn tables(&self) -> Option<Arc<RuleTables>> {
        self.state.load().tables.clone()
    }

    /// Loads full tables that somebody on the control socket gives.
    pub fn put_tables(&self, tables: RuleTables) -> Result<Loaded, Refusal> {
        self.replace_tables(tables, PolicyOrigin::control_socket(None, None), Closing::Refused)
    }

    /// Loads full tables.
    pub fn replace_tables(
        &self,
        tables: RuleTables,
        origin: PolicyOrigin,
        closing: Closing,
    ) -> Result<Loaded, Refusal> {
        let check_closing = || self.state.load().check_closing(&tables, closing, self.settings.fail_open);
        // First what costs least; and again when nobody else changes anything.
        check_closing()?;
        tables.check()?;
        let references = ReferenceCounts::of(&tables);
        let mut change = self.change();
        check_closing()?;
        change.references = references;
        self.load_tables(Some((tables, origin)))
    }

    /// Changes the loaded tables for somebody on the control socket.
    pub fn patch_tables(&self, patch: &TablesPatch) -> Result<Loaded, Refusal> {
        let origin = PolicyOrigin::control_socket(None, None);
        self.change_tables(patch.base, &patch.diff, origin, Closing::RefusedIfKnown)
    }

    /// Changes the loaded tables, at the cost of the change. The base may be any generation since these tables were loaded. No
    /// difference is no change of the tables, only of what is said of their origin.
    pub fn change_tables(
        &self,
        base: Generation,
        difference: &TablesDiff,
        origin: PolicyOrigin,
        closing: Closing,
    ) -> Result<Loaded, Refusal> {
        let mut change = self.change();
        let state = self.state.load_full();
        let loaded = state.tables.as_ref().ok_or(Refusal::NoBase)?;
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
        state.check_closing(&tables, closing, self.settings.fail_open)?;
        change.references.check_and_apply(loaded, difference, &tables)?;
        self.load_tables(Some((tables, origin)))
    }

    /// Takes note that a change of the watched directory did not come into force, or (`None`) that one did.
    pub fn set_rejected_reload(&self, rejected: Option<(&Path, &[String])>) {
        let report = rejected.map(|(path, errors)| {
            let shown = errors.iter().take(REJECTED_ERRORS_MAX).map(|error| shown(error)).collect();
            Arc::new(RejectedReload {
                path: path.to_owned(),
                at_unix_s: unix_seconds(SystemTime::now()),
                errors: shown,
                left_out: errors.len().saturating_sub(REJECTED_ERRORS_MAX),
            })
        });
        self.rejected_reload.store(report);
    }

    /// Unloads the tables.
    pub fn delete_tables(&self) -> Result<Loaded, Refusal> {
        let mut change = self.change();
        change.references = ReferenceCounts::default();
        self.load_tables(None)
    }

    fn load_tables(&self, tables: Option<(RuleTables, PolicyOrigin)>) -> Result<Loaded, Refusal> {
        let mut next = self.next();
        let (tables, origin) = tables.unzip();
        next.tables = tables.map(Arc::new);
        next.origin = origin.map(|origin| (origin, SystemTime::now()));
        Ok(Loaded { generation: self.publish(next)? })
    }

    /// All ports, by name.
    pub fn ports(&self) -> Vec<PortInfo> {
        let state = self.state.load();
        state.ports.iter().map(|(name, port)| state.port_info(name, port)).collect()
    }

    /// Opens a port.
    pub fn put_port(&self, name: &str, request: &PortRequest) -> Result<PortInfo, Refusal> {
        let spec = requests::port_spec(name, request)?;
        let _change = self.change();
        let mut next = self.next();
        if let Some(port) = next.ports.get(name) {
            let interface = port.spec.interface.clone();
            return Err(Refusal::PortExists { name: name.to_owned(), interface });
        }
        if let Some((taken, _)) = next.ports.iter().find(|(_, port)| port.spec.interface == spec.interface) {
            return Err(Refusal::InterfaceTaken { interface: spec.interface, name: taken.clone() });
        }
        if let (PortKind::Host, Some((host, _))) = (spec.kind, next.host_port()) {
            return Err(Refusal::HostPortExists { name: host.clone() });
        }
        next.check_addresses_free(&request.addresses, &self.settings)?;
        let report = self.engine.open_port(&spec)?;
        let (state, reason) = (PortState::Up, None);
        let port =
            Port { spec, report, is_open: true, state, reason, node_addresses: request.addresses.clone() };
        let info = next.port_info(name, &port);
        next.ports.insert(name.to_owned(), port);
        self.publish(next)?;
        Ok(info)
    }

    /// Closes a port that has no pod. Its interface gets its traffic back where `detach`, or the settings, say so.
    pub fn delete_port(&self, name: &str, detach: Option<bool>) -> Result<(), Refusal> {
        let _change = self.change();
        let before = self.next();
        let mut next = before.clone();
        let port = next.ports.remove(name).ok_or_else(|| Refusal::NoPort { name: name.to_owned() })?;
        if let Some(pod) = before.pod_behind(name) {
            return Err(Refusal::PortHasPod { port: name.to_owned(), pod: pod.clone() });
        }
        let detach = detach.unwrap_or(self.settings.detach);
        // The world loses the port before the workers do, so that none routes to a port that is closing.
        let closed = self.publish(next).map_err(Refusal::from).and_then(|_| {
            if port.is_open {
                self.engine.close_port(port.report.id, detach)?;
            }
            if detach {
                // The program that closes an interface of its name goes, too.
                self.engine.release(&port.spec.interface)?;
            }
            Ok(())
        });
        closed.or_else(|refusal| self.publish(before).map_err(Refusal::from).and(Err(refusal)))
    }

    /// All pods, by name.
    pub fn pods(&self) -> Vec<PodInfo> {
        let state = self.state.load();
        state.pods.iter().map(|(name, pod)| state.pod_info(name, pod, self.settings.fail_open)).collect()
    }

    /// Attaches a pod to a port.
    pub fn put_pod(&self, name: &PodName, request: &PodRequest) -> Result<PodInfo, Refusal> {
        requests::check_pod(name, request, self.settings.gateway.mac)?;
        let mut change = self.change();
        let mut next = self.next();
        if let Some(pod) = next.pods.get(name) {
            return Err(Refusal::PodExists { pod: name.clone(), port: pod.port.clone() });
        }
        let port =
            next.ports.get(&request.port).ok_or_else(|| Refusal::NoPort { name: request.port.clone() })?;
        if port.spec.kind != PortKind::Pod {
            return Err(Refusal::WrongKind { port: request.port.clone(), kind: port.spec.kind });
        }
        if let Some(pod) = next.pod_behind(&request.port) {
            return Err(Refusal::PortHasPod { port: request.port.clone(), pod: pod.clone() });
        }
        next.check_addresses_free(&request.addresses, &self.settings)?;
        let attachment = change.next_attachment()?;
        let pod = Pod {
            attachment,
            port: request.port.clone(),
            addresses: request.addresses.clone(),
            mac: request.mac,
        };
        let info = next.pod_info(name, &pod, self.settings.fail_open);
        next.pods.insert(name.clone(), pod);
        self.publish(next)?;
        Ok(info)
    }

    /// Detaches a pod. Its port stays.
    pub fn delete_pod(&self, name: &PodName) -> Result<(), Refusal> {
        let _change = self.change();
        let mut next = self.next();
        next.pods.remove(name).ok_or_else(|| Refusal::NoPod { pod: name.clone() })?;
        self.publish(next)?;
        Ok(())
    }

    /// All counters, of the open ports by name.
    pub fn counters(&self) -> CountersReport {
        let counters = self.engine.counters();
        let state = self.state.load();
        let named = |(id, counters)| Some((state.port_name(id)?.clone(), counters));
        CountersReport {
            ports: counters.ports.into_iter().filter_map(named).collect(),
            workers: counters.workers.into_iter().map(|(id, worker)| (id.to_string(), worker)).collect(),
            decisions: counters.decisions,
        }
    }

    /// Explains a new connection: one report for each family in which both ends have an address.
    pub fn explain(
        &self,
        ends: [&Endpoint; 2],
        protocol: Protocol,
        port: Option<u16>,
    ) -> Result<Vec<PathReport>, Refusal> {
        if protocol.has_ports() && port.is_none_or(|port| port == 0) {
            let reason = format!("{protocol} needs a destination port, from 1 to 65535");
            return Err(Refusal::Field { field: "port", reason });
        }
        let state = self.state.load_full();
        let pods = ends.into_iter().filter_map(|end| match end {
            Endpoint::Pod(name) => Some((name.clone(), state.addresses_of(name)?)),
            Endpoint::Ip(_) => None,
        });
        let flows = expand_probe(&pods.collect(), ends[0], ends[1], protocol, port.unwrap_or_default())?;
        let report = |flow| explain::report(&self.engine.path(flow), ends, &state, &self.settings);
        Ok(flows.iter().map(report).collect())
    }

    /// Up to `max` flows, of all pods or of one that is attached.
    pub fn flows(&self, max: usize, pod: Option<&PodName>) -> Result<Vec<FlowInfo>, Refusal> {
        let Some(name) = pod else {
            return Ok(self.engine.flows(max, &mut |_| true));
        };
        let state = self.state.load_full();
        let pod = state.pods.get(name).ok_or_else(|| Refusal::NoPod { pod: name.clone() })?;
        let of_pod =
            |flow: &FlowInfo| [flow.key.src, flow.key.dst].iter().any(|end| pod.addresses.contains(end));
        Ok(self.engine.flows(max, &mut { of_pod }))
    }

    pub(super) fn change(&self) -> MutexGuard<'_, Change> {
        // States are whole values: a panic during a change leaves the one before it.
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of the state, to be changed and published.
    pub(super) fn next(&self) -> State {
        State::clone(&self.state.load())
    }

    pub(super) fn publish(&self, mut next: State) -> Result<Generation, NotTaken> {
        let published = self.engine.publish(next.world(&self.settings));
        // A worker that has not taken it will, or the switch ends: either way this is the state.
        let (Ok(generation) | Err(NotTaken { generation, .. })) = published;
        let same_tables = match (&self.state.load().tables, &next.tables) {
            (Some(before), Some(after)) => Arc::ptr_eq(before, after),
            (before, after) => before.is_none() && after.is_none(),
        };
        if !same_tables {
            next.tables_since = generation;
        }
        next.generation = generation;
        self.state.store(Arc::new(next));
        published
    }
}

impl Change {
    /// A number that no attachment has had.
    pub(super) fn next_attachment(&mut self) -> Result<AttachmentId, Refusal> {
        self.attachment = AttachmentId(self.attachment.0.checked_add(1).ok_or(Refusal::AttachmentsUsedUp)?);
        Ok(self.attachment)
    }
}

/// An error as a status shows it: bounded, and without characters that a terminal obeys.
fn shown(error: &str) -> String {
    let end = error.floor_char_boundary(REJECTED_ERROR_BYTES_MAX);
    let mut text: String =
        error[..end].chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
    if end < error.len() {
        text.push_str(" …");
    }
    text
}
