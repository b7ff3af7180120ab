//! Layout of a desired state for lookup by address and by number of port and hop.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use super::desired_state::{DesiredState, Route};
use super::next_hop::{Adjacency, Egress, Hop};
use super::port::{PolicyMode, PortView};
use super::restored_pods::RestoredPods;
use super::tunnel::{self, Underlay};
use crate::dataplane::service::LocalAddresses;
use crate::dataplane::{PortKind, RouteOrigin};
use crate::ids::{Generation, PortId};
use crate::net::address::{Address, pack, unpack};
use crate::net::icmp::link_local;
use crate::net::mac::Mac;
use crate::tables::{PodName, RouteTable, RuleTables};

/// Source of the ICMP errors of a router without an address that may leave its link (RFC 7600, section 4.8).
pub(super) const DUMMY_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);

/// Way of packets to a prefix.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    pub(super) hop: Hop,
    pub(super) origin: RouteOrigin,
    /// Other end of the tunnel that the packets take.
    pub(super) remote: Option<Address>,
    /// Whether it leads to pods of another node.
    pub(super) to_other_pods: bool,
}

/// Ways of the configured routes.
fn configured(desired: &DesiredState) -> impl Iterator<Item = (IpNet, Way)> {
    let routes = desired.routes.iter();
    let between = routes.clone().map(|route| (route.prefix, route.next_hop, route.node));
    let underlay = Underlay::new(desired.tunnel.as_ref(), between);
    routes.map(move |route| {
        let remote = route.next_hop.filter(|_| route.node);
        let tunnel = remote.and_then(|remote| Some((pack(remote), underlay.next_hop(remote)?)));
        let next_hop = tunnel.map(|(_, next_hop)| next_hop).or(route.next_hop);
        let hop = Hop::Port(route.port, next_hop.map(pack));
        let remote = tunnel.map(|(remote, _)| remote);
        (
            route.prefix.trunc(),
            Way { hop, origin: RouteOrigin::Configured, remote, to_other_pods: route.node },
        )
    })
}

/// Next hops of the configured routes on their links, which the kernel keeps resolved.
pub(in crate::dataplane) fn next_hops(desired: &DesiredState) -> BTreeSet<(PortId, IpAddr)> {
    let next_hop = |(_, way): (IpNet, Way)| match way.hop {
        Hop::Port(port, Some(next_hop)) => Some((port, unpack(next_hop))),
        _ => None,
    };
    configured(desired).filter_map(next_hop).collect()
}

/// Ways to all prefixes. Their order numbers the hops.
pub(super) fn prefixes(desired: &DesiredState) -> BTreeMap<IpNet, Way> {
    let mut prefixes: BTreeMap<IpNet, Way> = configured(desired).collect();
    // Packets of a pod to a node take the tunnel to its pods: nothing between the nodes has a route back.
    let to_node = |way: &Way| Way { to_other_pods: false, ..*way };
    let is_remote = |way: &Way| way.remote.map(|remote| (IpNet::from(unpack(remote)), to_node(way)));
    let remotes: BTreeMap<IpNet, Way> = prefixes.values().filter_map(is_remote).collect();
    for (prefix, way) in remotes {
        prefixes.entry(prefix).or_insert(way);
    }
    let local = |hop, origin| Way { hop, origin, remote: None, to_other_pods: false };
    // This replaces a route to the same prefix: a packet for a pod of this node must not leave the node.
    let nowhere = local(Hop::Nowhere, RouteOrigin::PodPrefix);
    prefixes.extend(desired.pod_prefixes.iter().map(|prefix| (prefix.trunc(), nowhere)));
    let own = IpAddr::from(link_local(desired.gateway.mac));
    for address in desired.gateway.addresses.iter().copied().chain([own]) {
        prefixes.insert(IpNet::from(address), local(Hop::Gateway, RouteOrigin::Gateway));
    }
    if let Some(node) = &desired.node {
        let way = local(Hop::Port(node.port, None), RouteOrigin::Node);
        prefixes.extend(node.addresses.iter().map(|address| (IpNet::from(*address), way)));
    }
    for pod in &desired.pods {
        let way = local(Hop::Port(pod.port, None), RouteOrigin::Pod);
        prefixes.extend(pod.addresses.iter().map(|address| (IpNet::from(*address), way)));
    }
    prefixes
}

/// Routes, and the ways that their numbers name.
pub(super) fn routes(desired: &DesiredState) -> (RouteTable, Vec<Way>) {
    let prefixes = prefixes(desired);
    let ways = prefixes.values().copied().collect();
    let routes = RouteTable::build(prefixes.into_keys().zip(0..));
    (routes, ways)
}

/// Addresses of this node, for Services: `ports` are the open ports.
pub(super) fn local_addresses(desired: &DesiredState, ports: &[Option<PortView>]) -> LocalAddresses {
    let pods = desired.pods.iter().flat_map(|pod| &pod.addresses);
    let own = IpAddr::from(link_local(desired.gateway.mac));
    let pods = pods.chain(&desired.gateway.addresses).chain([&own]).map(|address| pack(*address));
    let node = desired.node.iter().flat_map(|node| &node.addresses).map(|address| pack(*address));
    let is_local = |route: &&Route| {
        let port = ports.get(route.port.index()).and_then(Option::as_ref);
        port.is_some_and(|port| port.kind != PortKind::Uplink)
    };
    let prefixes = desired.routes.iter().filter(is_local).map(|route| route.prefix.trunc());
    LocalAddresses::new(pods, node, prefixes, desired.carried_families())
}

pub(super) fn adjacency(way: &Way, ports: &[Option<PortView>]) -> Adjacency {
    let Hop::Port(out, _) = way.hop else { return Adjacency::default() };
    let Some(Some(port)) = ports.get(out.index()) else { return Adjacency { out, ..Adjacency::default() } };
    let egress = match port.kind {
        _ if port.takes_segments() => Egress::Tap,
        PortKind::Uplink if way.remote.is_some() => Egress::Tunnel,
        PortKind::Uplink => Egress::Uplink,
        _ => Egress::Plain,
    };
    Adjacency {
        mac: port.mac.map_or(0, Mac::to_bits),
        out,
        vlan: port.vlan,
        mtu: way.remote.map_or(port.mtu, |remote| tunnel::mtu(port.mtu, remote)),
        egress,
    }
}

/// Views of the open ports. Those of the snapshot before give the tokens of policers.
pub(super) fn ports(
    desired: &DesiredState,
    open: &BTreeMap<PortId, PortView>,
    before: Option<&[Option<PortView>]>,
) -> Vec<Option<PortView>> {
    let ports = open.last_key_value().map_or(0, |(last, _)| last.index() + 1);
    let mut ports: Vec<Option<PortView>> = vec![None; ports];
    for (port, view) in open {
        let view = ports[port.index()].insert(view.clone());
        if view.kind != PortKind::Uplink {
            view.own_mac = desired.gateway.mac;
        }
    }
    let tables = desired.tables.as_deref();
    for pod in &desired.pods {
        if let Some(Some(port)) = ports.get_mut(pod.port.index()) {
            port.attachment = pod.id;
            port.set_policy_mode(policy_mode(tables, &pod.pod, desired.fail_open));
            port.set_addresses(&pod.addresses, pod.mac);
            port.set_pod_addresses(&pod.addresses);
            let before = before.and_then(|before| before.get(pod.port.index())?.as_ref());
            port.set_bandwidth(&pod.bandwidth, before);
            if desired.draining.contains(&pod.port) {
                port.drain();
            }
        }
    }
    if let Some(node) = &desired.node
        && let Some(Some(port)) = ports.get_mut(node.port.index())
    {
        port.kind = PortKind::Host;
        port.set_addresses(&node.addresses, node.mac);
    }
    ports
}

/// Sets the generation since which each port has its pod: that of the port in the snapshot `before`, if the
/// pod has stayed; that of the previous process, if the pod has been restored; else this one.
pub(super) fn set_attached_since(
    ports: &mut [Option<PortView>],
    before: Option<&[Option<PortView>]>,
    generation: Generation,
    restored_pods: &RestoredPods,
) {
    let mut owners = BTreeMap::new();
    let mut shared = BTreeSet::new();
    for (number, port) in ports.iter().enumerate() {
        for address in port.iter().filter(|port| port.has_pod()).flat_map(PortView::addresses) {
            if owners.insert(*address, number).is_some_and(|other| other != number) {
                shared.insert(*address);
            }
        }
    }
    for (number, port) in ports.iter_mut().enumerate() {
        let Some(port) = port.as_mut().filter(|port| port.has_pod()) else { continue };
        // Of two pods with one address, the one that the address is routed to may change while both stay.
        if port.addresses().iter().any(|address| shared.contains(address)) {
            continue;
        }
        let last = before.and_then(|before| before.get(number)?.as_ref());
        let since = match last.filter(|last| last.attachment == port.attachment) {
            Some(last) => last.attached_since.filter(|_| last.addresses() == port.addresses()),
            None => restored_pods.since.get(&port.attachment).copied(),
        };
        port.attached_since = since.or(Some(generation));
    }
}

/// Whether a pod of the snapshot `before` is not behind its port any more, or not with the same addresses.
pub(super) fn has_removed_pod(before: &[Option<PortView>], ports: &[Option<PortView>]) -> bool {
    before.iter().enumerate().any(|(number, port)| {
        let since = |port: &PortView| port.attached_since;
        let now = ports.get(number).and_then(Option::as_ref).and_then(since);
        port.as_ref().is_some_and(|port| port.has_pod() && (since(port).is_none() || since(port) != now))
    })
}

pub(super) fn policy_mode(tables: Option<&RuleTables>, pod: &PodName, fail_open: bool) -> PolicyMode {
    match tables.and_then(|tables| tables.pods.get(pod)) {
        Some(policy) => PolicyMode::Tables { ingress: policy.ingress, egress: policy.egress },
        None if fail_open => PolicyMode::Open,
        None => PolicyMode::Closed,
    }
}

/// Address of a family that ICMP errors come from: one of the switch that may leave its link, else one of the node, as from
/// the node's kernel. Networks that check sources drop others.
pub(super) fn icmp_source(desired: &DesiredState, v4: bool) -> Option<IpAddr> {
    let node = desired.node.iter().flat_map(|node| &node.addresses);
    let mut own = desired.gateway.addresses.iter().chain(node).copied();
    own.find(|own| match own {
        IpAddr::V4(own) => v4 && !own.is_link_local(),
        IpAddr::V6(own) => !v4 && !own.is_unicast_link_local(),
    })
}
