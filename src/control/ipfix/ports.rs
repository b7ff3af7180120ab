//! Numbers and names of the interfaces of records: the ports of the switch.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::templates::interface;
use crate::control::state::State;
use crate::ids::PortId;

/// Number of an interface that is not known.
pub(super) const UNKNOWN: u32 = 0;

/// Number of a port as an interface. Zero is no interface's number.
pub(super) fn number_of(port: PortId) -> u32 {
    u32::from(port.0) + 1
}

/// Open ports of a state.
#[derive(Default)]
pub(super) struct Ports {
    /// State that the rest is made of.
    state: Arc<State>,
    by_name: HashMap<String, u32>,
    by_address: HashMap<IpAddr, u32>,
    /// Longest prefixes first.
    routes: Vec<(IpNet, u32)>,
    /// Options of each interface.
    options: Vec<Vec<u8>>,
}

impl Ports {
    /// Takes another state. Returns the options that are new or have changed.
    pub(super) fn update(&mut self, state: &Arc<State>) -> Vec<Vec<u8>> {
        if Arc::ptr_eq(&self.state, state) {
            return Vec::new();
        }
        let before: HashSet<Vec<u8>> =
            std::mem::replace(self, Ports::of(state)).options.into_iter().collect();
        self.options.iter().filter(|option| !before.contains(*option)).cloned().collect()
    }

    fn of(state: &Arc<State>) -> Ports {
        let mut ports = Ports { state: state.clone(), ..Ports::default() };
        let pods: HashMap<&str, _> =
            state.pods.iter().map(|(name, pod)| (pod.request.port.as_str(), (name, pod))).collect();
        for (name, port) in state.ports.iter().filter(|(_, port)| port.is_open) {
            let number = number_of(port.report.id);
            ports.by_name.insert(name.clone(), number);
            ports.by_address.extend(port.node_addresses.iter().map(|address| (*address, number)));
            let mut description = port.spec.interface.clone();
            if let Some((pod, record)) = pods.get(name.as_str()) {
                ports.by_address.extend(record.request.addresses.iter().map(|address| (*address, number)));
                description = pod.to_string();
            }
            ports.options.push(interface(number, name, &description));
        }
        let routes = state.routes.iter();
        ports.routes =
            routes.filter_map(|route| Some((route.prefix, *ports.by_name.get(&route.port)?))).collect();
        ports.routes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.prefix_len()));
        ports
    }

    /// Number of the port that packets to an address leave by.
    pub(super) fn towards(&self, address: IpAddr) -> u32 {
        let route = || self.routes.iter().find(|(prefix, _)| prefix.contains(&address)).map(|(_, port)| port);
        self.by_address.get(&address).or_else(route).copied().unwrap_or(UNKNOWN)
    }

    /// Number of the port of this name.
    pub(super) fn named(&self, name: &str) -> u32 {
        self.by_name.get(name).copied().unwrap_or(UNKNOWN)
    }

    /// Options of each interface.
    pub(super) fn options(&self) -> &[Vec<u8>] {
        &self.options
    }
}
