//! The desired state of the dataplane: the pods behind the ports, routes, and policy. The control side
//! publishes it as a whole.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::dataplane::{Bandwidth, Masquerade, TunnelSettings};
use crate::ids::{AttachmentId, PortId};
pub use crate::net::mac::Mac;
use crate::tables::{PodName, RuleTables, ServiceSet};
use ipnet::IpNet;
use serde::Deserialize;

/// The desired state. With the open ports and conntrack, it determines every verdict.
#[derive(Debug, Clone, Default)]
pub struct DesiredState {
    /// Rule tables, which have passed their check. `None` while none are loaded: then no packet of a pod
    /// passes, unless `fail_open` is set.
    pub tables: Option<Arc<RuleTables>>,
    /// Whether packets of pods that the tables do not know pass. If not, they are dropped.
    pub fail_open: bool,
    /// Whether senders of packets that policy denies get an answer. If not, these packets are dropped in silence.
    pub rejects: bool,
    /// The switch as gateway of the pods.
    pub gateway: Gateway,
    /// Pods of this node.
    pub pods: Vec<PodAttachment>,
    /// Ports that are drained: no new flows from or to their pods.
    pub draining: BTreeSet<PortId>,
    /// The node's own network stack.
    pub node: Option<NodeAttachment>,
    /// Prefixes of the addresses of this node's pods. A packet to such a prefix never leaves the node, even
    /// if no pod has its destination.
    pub pod_prefixes: Vec<IpNet>,
    /// Routes to all other destinations.
    pub routes: Vec<Route>,
    /// Services whose packets are translated.
    pub services: Option<Arc<ServiceSet>>,
    /// Whether these are ports of the node alone, because no Services have been loaded since the start.
    pub services_awaited: bool,
    /// Masquerading of what pods send outside, if there is any.
    pub masquerade: Option<Arc<Masquerade>>,
    /// Tunnels to the pods of other nodes, if there are any.
    pub tunnel: Option<TunnelSettings>,
}

impl DesiredState {
    /// Whether Services have been loaded since the start.
    pub fn has_services(&self) -> bool {
        self.services.is_some() && !self.services_awaited
    }

    /// Prefixes that an uplink takes from the kernel: those of this node's pods, and the addresses of each
    /// pod.
    pub fn uplink_prefixes(&self) -> BTreeSet<IpNet> {
        let addresses = self.pods.iter().flat_map(|pod| &pod.addresses).map(|address| IpNet::from(*address));
        self.pod_prefixes.iter().map(IpNet::trunc).chain(addresses).collect()
    }

    /// Families in which clients of Services outside reach backends elsewhere: IPv4, IPv6.
    pub(super) fn carried_families(&self) -> [bool; 2] {
        self.masquerade.as_ref().map_or([false; 2], |masquerade| masquerade.carried_families())
    }

    /// Whether the two states have the same layout: only their rule tables, Services and masquerading may
    /// differ.
    pub(crate) fn has_layout_of(&self, other: &DesiredState) -> bool {
        let DesiredState {
            tables: _,
            services: _,
            services_awaited: _,
            masquerade: _,
            fail_open,
            rejects,
            gateway,
            pods,
            draining,
            node,
            routes,
            pod_prefixes,
            tunnel,
        } = self;
        *fail_open == other.fail_open
            && *rejects == other.rejects
            && *gateway == other.gateway
            && *pods == other.pods
            && *draining == other.draining
            && *node == other.node
            && *routes == other.routes
            && *pod_prefixes == other.pod_prefixes
            && *tunnel == other.tunnel
    }
}

/// IPv4 gateway of pods that are alone on their links.
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// IPv6 gateway of these pods.
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// The switch as gateway of its pods.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gateway {
    /// Ethernet address of the switch on every port.
    pub mac: Mac,
    /// Addresses that answer an ICMP echo request.
    pub addresses: Vec<IpAddr>,
}

impl Default for Gateway {
    fn default() -> Gateway {
        // A locally administered unicast address (IEEE 802c).
        let mac = Mac([0x02, 0x50, 0x41, 0x4c, 0x00, 0x01]);
        Gateway { mac, addresses: vec![GATEWAY_V4.into(), GATEWAY_V6.into()] }
    }
}

/// A pod behind a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodAttachment {
    /// Number of this attachment. Each attachment of a pod has another one.
    pub id: AttachmentId,
    /// Name of the pod in the tables.
    pub pod: PodName,
    /// Port of the pod. A port has one pod.
    pub port: PortId,
    /// Addresses that the pod may send from, and that are routed to its port.
    pub addresses: Vec<IpAddr>,
    /// Ethernet address of the pod. If absent, it is learned from the pod's frames.
    pub mac: Option<Mac>,
    /// Bandwidth of the pod.
    pub bandwidth: Bandwidth,
}

/// The node's own network stack behind a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAttachment {
    /// Port of the node.
    pub port: PortId,
    /// Addresses of the node. Packets that its sockets send from them are always let into pods, and packets
    /// to them are routed to this port.
    pub addresses: Vec<IpAddr>,
    /// Ethernet address of the node. If absent, it is learned.
    pub mac: Option<Mac>,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Destination prefix.
    pub prefix: IpNet,
    /// Port that the route leads to.
    pub port: PortId,
    /// Next-hop router; the destination itself if absent.
    pub next_hop: Option<IpAddr>,
    /// Whether the next hop is another node, and the prefix one of its pods.
    pub node: bool,
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
            bandwidth: Bandwidth::default(),
        };
        let pod_prefixes = vec!["10.244.1.3/24".parse().unwrap()];
        let desired = DesiredState { pods: vec![pod], pod_prefixes, ..DesiredState::default() };
        let expected = ["10.244.1.0/24", "10.244.1.7/32", "192.0.2.9/32", "fd00::7/128"];
        assert_eq!(desired.uplink_prefixes(), expected.map(|text| text.parse().unwrap()).into());
    }
}
