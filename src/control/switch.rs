//! The switch as the control side drives it: every change is checked, made a world, and published.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use ipnet::IpNet;

use super::protocol::{
    CountersReport, Loaded, PodInfo, PodRequest, PortInfo, PortRequest, Status, TablesPatch, TablesSummary,
};
use super::state::{Pod, Port, State};
use super::{Engine, Refusal, requests};
use crate::dataplane::{FlowInfo, Gateway, PortKind};
use crate::ids::{AttachmentId, Generation};
use crate::tables::{PodName, References, RuleTables, TablesError};

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

/// The control side of a switch. Reads never wait for a change; changes happen one after the other.
pub struct Switch {
    engine: Arc<dyn Engine>,
    settings: SwitchSettings,
    started: Instant,
    state: ArcSwap<State>,
    change: Mutex<Change>,
}

/// What only changes need. Held during each.
#[derive(Default)]
struct Change {
    /// The last attachment number given.
    attachment: AttachmentId,
    /// How often the entries of the loaded tables are named.
    references: References,
}

impl Switch {
    /// A switch without ports, pods and tables. Publishes that.
    pub fn new(engine: Arc<dyn Engine>, settings: SwitchSettings) -> Switch {
        let switch = Switch {
            engine,
            settings,
            started: Instant::now(),
            state: ArcSwap::default(),
            change: Mutex::default(),
        };
        switch.publish(State::default());
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
            flow_table: self.engine.flow_table(),
        }
    }

    /// The loaded tables in numbers.
    pub fn tables_summary(&self) -> TablesSummary {
        self.state.load().tables_summary()
    }

    /// The loaded tables.
    pub fn tables(&self) -> Option<Arc<RuleTables>> {
        self.state.load().tables.clone()
    }

    /// Loads full tables.
    pub fn put_tables(&self, tables: RuleTables) -> Result<Loaded, Refusal> {
        tables.check()?;
        let references = References::of(&tables);
        let mut change = self.change();
        change.references = references;
        Ok(self.load_tables(Some(tables)))
    }

    /// Changes the loaded tables, at the cost of the change. The patch's base may be any generation since these tables were
    /// loaded.
    pub fn patch_tables(&self, patch: &TablesPatch) -> Result<Loaded, Refusal> {
        let mut change = self.change();
        let state = self.state.load_full();
        let loaded = state.tables.as_ref().ok_or(Refusal::NoBase)?;
        if !(state.tables_since..=state.generation).contains(&patch.base) {
            return Err(TablesError::Base { base: patch.base, current: state.generation }.into());
        }
        let mut tables = RuleTables::clone(loaded);
        tables.apply(&patch.diff);
        change.references.follow(loaded, &patch.diff, &tables)?;
        Ok(self.load_tables(Some(tables)))
    }

    /// Unloads the tables.
    pub fn delete_tables(&self) -> Loaded {
        let mut change = self.change();
        change.references = References::default();
        self.load_tables(None)
    }

    fn load_tables(&self, tables: Option<RuleTables>) -> Loaded {
        let mut next = self.next();
        next.tables = tables.map(Arc::new);
        Loaded { generation: self.publish(next) }
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
        let port = Port { spec, report, node_addresses: request.addresses.clone() };
        let info = next.port_info(name, &port);
        next.ports.insert(name.to_owned(), port);
        self.publish(next);
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
        // The world loses the port before the workers do, so that none routes to a port that is closing.
        self.publish(next);
        if let Err(error) = self.engine.close_port(port.report.id, detach.unwrap_or(self.settings.detach)) {
            self.publish(before);
            return Err(error.into());
        }
        Ok(())
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
        let attachment = AttachmentId(change.attachment.0.checked_add(1).ok_or(Refusal::AttachmentsUsedUp)?);
        change.attachment = attachment;
        let pod = Pod {
            attachment,
            port: request.port.clone(),
            addresses: request.addresses.clone(),
            mac: request.mac,
        };
        let info = next.pod_info(name, &pod, self.settings.fail_open);
        next.pods.insert(name.clone(), pod);
        self.publish(next);
        Ok(info)
    }

    /// Detaches a pod. Its port stays.
    pub fn delete_pod(&self, name: &PodName) -> Result<(), Refusal> {
        let _change = self.change();
        let mut next = self.next();
        next.pods.remove(name).ok_or_else(|| Refusal::NoPod { pod: name.clone() })?;
        self.publish(next);
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

    fn change(&self) -> MutexGuard<'_, Change> {
        // States are whole values: a panic during a change leaves the one before it.
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of the state, to be changed and published.
    fn next(&self) -> State {
        State::clone(&self.state.load())
    }

    fn publish(&self, mut next: State) -> Generation {
        let generation = self.engine.publish(next.world(&self.settings));
        let same_tables = match (&self.state.load().tables, &next.tables) {
            (Some(before), Some(after)) => Arc::ptr_eq(before, after),
            (before, after) => before.is_none() && after.is_none(),
        };
        if !same_tables {
            next.tables_since = generation;
        }
        next.generation = generation;
        self.state.store(Arc::new(next));
        generation
    }
}
