//! Ends of connections, by the names of pods.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::control::state::State;
use crate::net::flow::{FlowKey, Protocol};
use crate::tables::PodName;

/// Ends of connections: names of pods, or addresses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ends {
    pub(super) source: String,
    pub(super) destination: String,
    pub(super) protocol: Protocol,
    pub(super) port: u16,
}

impl Ends {
    pub(super) fn of<'a>(key: &FlowKey, pod_with: impl Fn(IpAddr) -> Option<&'a PodName>) -> Ends {
        let name =
            |address: IpAddr| pod_with(address).map_or_else(|| address.to_string(), ToString::to_string);
        Ends {
            source: name(key.src),
            destination: name(key.dst),
            protocol: key.protocol,
            port: if key.protocol.has_ports() { key.dst_port } else { 0 },
        }
    }
}

/// Attached pods by address.
pub(super) fn pods_by_address(state: &State) -> HashMap<IpAddr, &PodName> {
    let pods = state.pods.iter();
    pods.flat_map(|(name, pod)| pod.request.addresses.iter().map(move |address| (*address, name))).collect()
}
