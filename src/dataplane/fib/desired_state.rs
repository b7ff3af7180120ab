//! The world: who is behind which port, where addresses lead, and what may pass. Published whole.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use crate::ids::{AttachmentId, PortId};
pub use crate::net::mac::Mac;
use crate::tables::{PodName, RuleTables};
use ipnet::IpNet;
use serde::Deserialize;

/// Everything that a verdict depends on, but for the flows themselves.
#[derive(Debug, Clone, Default)]
pub struct DesiredState {
    /// Rule tables, checked; `None` while none are loaded: then no pod may talk unless `fail_open`.
    pub tables: Option<Arc<RuleTables>>,
    /// Let traffic of pods pass that the tables do not know. Off: it is dropped.
    pub fail_open: bool,
    /// The switch itself, as pods see it.
    pub gateway: Gateway,
    /// Pods of this node.
    pub pods: Vec<PodAttachment>,
    /// The node's own stack, behind a host port.
    pub node: Option<NodeAttachment>,
    /// Prefixes that only pods of this node have addresses of: what is for them never leaves the node, whether a pod has
    /// the address or not.
    pub pod_prefixes: Vec<IpNet>,
    /// Routes to everything else.
    pub routes: Vec<Route>,
}

impl DesiredState {
    /// What an uplink takes from the kernel: the prefixes of this node's pods, and each pod's addresses.
    pub fn uplink_prefixes(&self) -> BTreeSet<IpNet> {
        let addresses = self.pods.iter().flat_map(|pod| &pod.addresses).map(|address| IpNet::from(*address));
        self.pod_prefixes.iter().map(IpNet::trunc).chain(addresses).collect()
    }

    /// Whether the two differ in nothing but rule tables.
    pub(crate) fn has_layout_of(&self, other: &DesiredState) -> bool {
        let DesiredState { tables: _, fail_open, gateway, pods, node, routes, pod_prefixes } = self;
        *fail_open == other.fail_open
            && *gateway == other.gateway
            && *pods == other.pods
            && *node == other.node
            && *routes == other.routes
            && *pod_prefixes == other.pod_prefixes
    }
}

/// The switch as its pods' gateway.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gateway {
    /// Its Ethernet address on every port.
    pub mac: Mac,
    /// Addresses on which it answers an ICMP echo.
    pub addresses: Vec<IpAddr>,
}

impl Default for Gateway {
    fn default() -> Gateway {
        // Locally administered, unicast (IEEE 802c); the rest spells nothing.
        Gateway { mac: Mac([0x02, 0x50, 0x41, 0x4c, 0x00, 0x01]), addresses: Vec::new() }
    }
}

/// A pod behind a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodAttachment {
    /// This attachment; a new one each time a pod is attached.
    pub id: AttachmentId,
    /// The pod: the tables know it by this name.
    pub pod: PodName,
    /// Its port, of kind pod or memory. A port has one pod.
    pub port: PortId,
    /// Its addresses: what it may send from, and what is routed to its port.
    pub addresses: Vec<IpAddr>,
    /// Its Ethernet address; learned from its frames where absent.
    pub mac: Option<Mac>,
}

/// The node's own stack behind a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAttachment {
    /// Its port, of kind host or memory.
    pub port: PortId,
    /// The node's addresses: always let into pods, and routed to this port.
    pub addresses: Vec<IpAddr>,
    /// Its Ethernet address; learned where absent.
    pub mac: Option<Mac>,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Destination prefix.
    pub prefix: IpNet,
    /// Port it leads to.
    pub port: PortId,
    /// Router to send to; the destination itself where absent.
    pub next_hop: Option<IpAddr>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::AttachmentId;

    #[test]
    fn an_uplink_takes_the_pods_prefixes_and_the_addresses_of_pods_elsewhere() {
        let addresses = ["10.244.1.7", "192.0.2.9", "fd00::7"].map(|text| text.parse().unwrap());
        let pod = PodAttachment {
            id: AttachmentId(1),
            pod: PodName::new("default", "pod"),
            port: PortId(0),
            addresses: addresses.to_vec(),
            mac: None,
        };
        let pod_prefixes = vec!["10.244.1.3/24".parse().unwrap()];
        let desired = DesiredState { pods: vec![pod], pod_prefixes, ..DesiredState::default() };
        let expected = ["10.244.1.0/24", "10.244.1.7/32", "192.0.2.9/32", "fd00::7/128"];
        assert_eq!(desired.uplink_prefixes(), expected.map(|text| text.parse().unwrap()).into());
    }
}
