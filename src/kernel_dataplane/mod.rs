//! Dataplane whose packets the kernel forwards, for nodes without AF_XDP: routes to the pods, and rules of nftables.
//!
//! [`KernelDataplane`] takes the place of the workers behind [`DataplaneApi`](crate::dataplane::DataplaneApi). Its rules are
//! those of [`render`](crate::render) for the attached pods (`rules`), and a table about ports (`port_rules`), which the
//! program `nft` loads (`load`). Rules, routes and settings outlive the process.

mod api;
mod counters;
mod host_end;
mod load;
mod nft;
mod port_rules;
mod rules;
mod table_names;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use self::counters::Decisions;
use self::host_end::Routes;
use self::nft::Nft;
use self::rules::{Interfaces, Rules};
use self::table_names::TableNames;
use crate::dataplane::{PortKind, PortSpec, PublishedState, ShutdownMode, StartError};
use crate::ids::PortId;
use crate::limits::PORTS_MAX;
use crate::netlink::Interface;

/// Shortest time between two looks whether the kernel still has the tables.
const LOOK_INTERVAL: Duration = Duration::from_millis(900);

/// Dataplane whose packets the kernel forwards.
///
/// It changes nothing before [`KernelDataplane::take_over`]: until then the rules of the process before hold, if there was one.
pub struct KernelDataplane {
    published: PublishedState,
    nft: Nft,
    tcp_pickup: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether rules, routes and settings are those of this process.
    has_taken_over: bool,
    ports: BTreeMap<PortId, Port>,
    /// Names of interfaces that stay closed without a port.
    blocked: BTreeSet<String>,
    /// Rules in the kernel.
    loaded: Option<Rules>,
    /// Routes to pods in the kernel.
    routes: Routes,
    /// Reason for which the kernel does not have the last published state.
    failed: Option<String>,
    /// Packets that rules of earlier changes have decided on.
    retired: Decisions,
    /// Time of the last look whether the kernel still has the tables.
    looked: Option<Instant>,
    /// Times that the tables were gone.
    times_gone: u64,
}

/// Open port.
struct Port {
    spec: PortSpec,
    interface: Interface,
}

impl KernelDataplane {
    /// Finds the program `nft`. `tcp_pickup` admits TCP connections in their middle.
    pub fn new(tcp_pickup: bool) -> Result<KernelDataplane, StartError> {
        Ok(KernelDataplane {
            published: PublishedState::new()?,
            nft: Nft::find()?,
            tcp_pickup,
            state: Mutex::default(),
        })
    }

    /// Replaces the rules of the process before by those of the published state, and makes the kernel forward the packets of the
    /// open ports. Interfaces that were ports before stay closed until they are ports again.
    pub fn take_over(&self) -> Result<(), StartError> {
        let mut state = self.state();
        let earlier = self.earlier_ports().map_err(StartError::Setup)?;
        state.blocked.extend(earlier.iter().flatten().cloned());
        state.blocked.retain(|name| Interface::find(name).is_ok());
        state.has_taken_over = true;
        let load = self.load_rules(&mut state);
        let taken = load.and_then(|()| self.raise_all(&state)).and_then(|()| self.route(&mut state));
        taken.map_err(|reason| {
            if earlier.is_none() {
                let _ = host_end::change_routes(&mut state.routes, &Routes::new());
                let _ = self.remove_all_tables();
            }
            StartError::Setup(format!("the kernel does not forward for pods: {reason}"))
        })?;
        tracing::warn!(
            "backend nftables: the kernel forwards the packets of pods, which is slower than AF_XDP{}",
            if earlier.is_some() { "; the rules of the process before are replaced" } else { "" }
        );
        Ok(())
    }

    /// Ends the work. Rules and routes stay, unless the ports are detached.
    pub fn stop(self, shutdown_mode: ShutdownMode) -> Result<(), StartError> {
        let state = self.state();
        if !state.has_taken_over || shutdown_mode != ShutdownMode::Detached {
            return Ok(());
        }
        let desired = self.published.desired();
        // An interface that is gone has no settings.
        for port in state.ports.values().filter(|port| port.spec.kind == PortKind::Pod) {
            if let Err(error) = host_end::lower(&port.interface.name, &desired) {
                tracing::debug!("{error}");
            }
        }
        let mut routes = state.routes.clone();
        host_end::change_routes(&mut routes, &Routes::new())
            .map_err(|error| StartError::Setup(error.to_string()))?;
        self.remove_all_tables().map_err(StartError::Setup)
    }

    /// Interfaces of pods that the process before had, or kept closed. `None` without such a process.
    fn earlier_ports(&self) -> Result<Option<Vec<String>>, String> {
        let found = self.nft.tables()?;
        let tables = TableNames::BOTH
            .map(TableNames::ports)
            .into_iter()
            .filter(|table| found.iter().any(|name| name == table));
        let mut names = None;
        for table in tables {
            let names: &mut Vec<String> = names.get_or_insert_default();
            let sets = self.nft.list(&["table", table])?;
            let sets = sets["nftables"].as_array().into_iter().flatten().map(|object| &object["set"]);
            let sets = sets.filter(|set| matches!(set["name"].as_str(), Some("pod-ports" | "closed-ports")));
            let elements = sets.filter_map(|set| set["elem"].as_array()).flatten();
            names.extend(elements.filter_map(|name| name.as_str().map(str::to_owned)));
        }
        Ok(names)
    }

    /// Brings rules and routes of the kernel to the published state, and remembers a failure.
    fn apply(&self, state: &mut State) -> Result<(), String> {
        if !state.has_taken_over {
            return Ok(());
        }
        // No route leads to a pod before its rules hold.
        let applied = self.load_rules(state).and_then(|()| self.route(state));
        state.failed = applied.as_ref().err().cloned();
        applied
    }

    /// Loads the rules of the published state, unless the kernel has them.
    fn load_rules(&self, state: &mut State) -> Result<(), String> {
        let desired = self.published.desired();
        let mut rules = Rules::new(&desired, &state.interfaces(), self.tcp_pickup);
        if let Some(loaded) = &state.loaded {
            rules = rules.named(loaded.names());
            let steps = rules.since(loaded).map_err(|error| error.to_string())?;
            let Err(refused) = self.load_change(&steps, loaded, &mut state.retired) else {
                state.loaded = Some(rules);
                return Ok(());
            };
            // Another program may have changed the tables.
            tracing::warn!("all rules are loaded anew, and counters begin at zero: {refused}");
            state.loaded = None;
        }
        state.loaded = Some(self.replace(rules)?);
        Ok(())
    }

    /// Brings the kernel's routes to those of the published state.
    fn route(&self, state: &mut State) -> Result<(), String> {
        let name = |port| Some(state.ports.get(&port)?.interface.name.clone());
        let wanted = host_end::routes(&self.published.desired(), name);
        host_end::change_routes(&mut state.routes, &wanted).map_err(|error| error.to_string())
    }

    /// Makes the kernel forward the packets of all ports.
    fn raise_all(&self, state: &State) -> Result<(), String> {
        let desired = self.published.desired();
        for port in state.ports.values() {
            let warnings = host_end::raise(&port.interface.name, port.spec.kind, &desired);
            let warnings = warnings.map_err(|error| error.to_string())?;
            warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        }
        Ok(())
    }

    /// Loads the rules again if another program has removed them, or if the last change has failed.
    fn maintain(&self, state: &mut State) {
        if !state.has_taken_over || state.looked.is_some_and(|looked| looked.elapsed() < LOOK_INTERVAL) {
            return;
        }
        state.looked = Some(Instant::now());
        let found = self.nft.tables();
        let is_there = |table: &str| found.as_ref().is_ok_and(|found| found.iter().any(|name| name == table));
        let is_gone = |rules: &Rules| !rules.names().all().iter().all(|table| is_there(table));
        if found.is_ok() && state.loaded.as_ref().is_some_and(is_gone) {
            state.times_gone += 1;
            state.loaded = None;
            tracing::error!(
                "another program has removed the rules: they are loaded again, and packets may have passed unchecked"
            );
        } else if state.failed.is_none() {
            return;
        }
        match self.apply(state) {
            Ok(()) => tracing::info!("the kernel has the rules of the last change"),
            Err(error) => tracing::error!("the kernel does not take the rules: {error}"),
        }
    }

    fn remove_all_tables(&self) -> Result<(), String> {
        TableNames::BOTH.into_iter().try_for_each(|names| self.remove_tables(names))
    }

    /// Keeps an interface closed without a port.
    fn block(state: &mut State, name: String) {
        state.blocked.insert(name);
        if state.blocked.len() > PORTS_MAX {
            state.blocked.retain(|name| Interface::find(name).is_ok());
        }
    }

    /// Locks the state. No holder of the lock leaves it half changed when it panics.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn interfaces(&self) -> Interfaces {
        let name = |port: &Port| port.interface.name.clone();
        let is_pod = |port: &Port| port.spec.kind == PortKind::Pod;
        let pods = self.ports.iter().filter(|(_, port)| is_pod(port));
        let pods: BTreeMap<PortId, String> = pods.map(|(id, port)| (*id, name(port))).collect();
        let others = self.ports.values().filter(|port| !is_pod(port)).map(name).collect();
        let is_port = |name: &&String| !pods.values().any(|port| port == *name);
        let blocked = self.blocked.iter().filter(is_port).cloned().collect();
        Interfaces { pods, others, blocked }
    }
}
