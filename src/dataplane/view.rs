//! The world as workers see it: a [`World`] laid out for look-up, whole and unchanging, with a generation.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use ipnet::IpNet;

use super::packet::{Address, from_v4, is_v4, pack, unpack};
use super::{DecisionCount, DropReason, PortKind, World};
use crate::ids::{AclId, AttachmentId, Generation, PortId};
use crate::limits::{POD_ADDRESSES_MAX, PORTS_MAX};
use crate::net::flow::Protocol;
use crate::net::icmp::link_local;
use crate::net::mac::Mac;
use crate::tables::{Classifier, Decision, PodName, RouteTable, RuleOrigin, RuleTables};

/// What the pod behind a port may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policing {
    /// Nobody asks: not a pod.
    None,
    /// Nothing: the tables do not know the pod, or there are none.
    Closed,
    /// Everything: unknown, and the operator wants it so.
    Open,
    /// What its tables say.
    Tables {
        /// Table for flows in.
        ingress: AclId,
        /// Table for flows out.
        egress: AclId,
    },
}

/// A port, as of one generation.
#[derive(Debug, Clone)]
pub(crate) struct PortView {
    /// What it is for.
    pub kind: PortKind,
    /// 802.1Q identifier of its frames, 0 without.
    pub vlan: u16,
    /// Largest IP packet that it takes.
    pub mtu: u16,
    /// The pod behind it.
    pub attachment: AttachmentId,
    /// What that pod may do.
    pub policing: Policing,
    /// Ethernet address behind it, if given.
    pub mac: Option<Mac>,
    /// Ethernet address that frames come to and leave from: the switch's, on an uplink the NIC's.
    pub own_mac: Mac,
    /// First addresses of the pod: IPv6, IPv4. Where it has none, one that no packet of that family has.
    pod_addresses: [Address; 2],
    addresses: [Address; POD_ADDRESSES_MAX],
    addresses_len: usize,
}

/// No address of IPv6 packets and of IPv4 packets: each is of the other family.
const NO_ADDRESSES: [Address; 2] = [from_v4(0), 0];

/// Where a destination leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hop {
    /// To the switch itself.
    Gateway,
    /// Among the addresses of this node's pods, and no pod has it.
    Nowhere,
    /// Out of a port, to a next hop or, with `None`, to the destination itself.
    Port(PortId, Option<Address>),
}

/// What a packet needs to leave by a hop: all in sixteen bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Exit {
    /// Ethernet address of what is there, as [`Mac::to_bits`] has it; zero where it is to be learned.
    pub mac: u64,
    /// Port that it leaves by.
    pub out: PortId,
    /// 802.1Q identifier of that port's frames, 0 without.
    pub vlan: u16,
    /// Largest IP packet that the port takes; zero where there is no such port.
    pub mtu: u16,
    /// Whether the port is an uplink.
    pub is_uplink: bool,
}

/// One generation.
pub(crate) struct View {
    /// Its number.
    pub generation: Generation,
    /// Ethernet address of the switch.
    pub mac: Mac,
    /// IPv4 address that errors of the switch come from.
    pub gateway_v4: Option<Address>,
    /// IPv6 address that errors and questions of the switch come from.
    pub gateway_v6: Address,
    classifier: Option<Classifier>,
    routes: RouteTable,
    hops: Vec<Hop>,
    /// By number of the hop.
    exits: Vec<Exit>,
    ports: Vec<Option<PortView>>,
    /// Sorted.
    attachments: Vec<AttachmentId>,
    origins: Vec<Option<RuleOrigin>>,
    /// Decisions taken, by worker, then by rule, allowed and denied.
    hits: Vec<Box<[[AtomicU64; 2]]>>,
}

/// What the control side knows of an open port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortFacts {
    pub kind: PortKind,
    pub vlan: u16,
    pub mtu: u16,
    /// Of an uplink, the NIC's Ethernet address.
    pub mac: Option<Mac>,
}

impl PortView {
    fn new(facts: PortFacts, gateway: Mac) -> PortView {
        PortView {
            kind: facts.kind,
            vlan: facts.vlan,
            mtu: facts.mtu,
            attachment: AttachmentId::NONE,
            policing: if facts.kind == PortKind::Pod { Policing::Closed } else { Policing::None },
            mac: None,
            own_mac: facts.mac.unwrap_or(gateway),
            pod_addresses: NO_ADDRESSES,
            addresses: [0; POD_ADDRESSES_MAX],
            addresses_len: 0,
        }
    }

    fn place(&mut self, addresses: &[IpAddr], mac: Option<Mac>) {
        let addresses = &addresses[..addresses.len().min(POD_ADDRESSES_MAX)];
        for (slot, address) in self.addresses.iter_mut().zip(addresses) {
            *slot = pack(*address);
        }
        self.addresses_len = addresses.len();
        self.mac = mac;
    }

    /// Lets the addresses be those of a pod, which alone may speak by them here.
    fn expect(&mut self, addresses: &[IpAddr]) {
        for (is_v4, place) in [false, true].into_iter().zip(&mut self.pod_addresses) {
            if let Some(first) = addresses.iter().find(|address| address.is_ipv4() == is_v4) {
                *place = pack(*first);
            }
        }
    }

    /// The first address of this family that the pod behind the port has.
    #[inline]
    pub(crate) fn pod_address(&self, is_v4: bool) -> Address {
        self.pod_addresses[usize::from(is_v4)]
    }

    /// Addresses of the pod, or of the node, behind the port.
    #[inline]
    pub(crate) fn addresses(&self) -> &[Address] {
        &self.addresses[..self.addresses_len]
    }

    /// Whether the pod or node behind the port has the address.
    #[inline]
    pub(crate) fn owns(&self, address: Address) -> bool {
        self.addresses().contains(&address)
    }

    /// Whether the address, behind this port, is the node's.
    fn is_own_node(&self, address: Address) -> bool {
        self.kind == PortKind::Host && self.owns(address)
    }

    /// The pod behind the port, if it has the address.
    #[inline]
    pub(crate) fn attachment_of(&self, address: Address) -> AttachmentId {
        if self.owns(address) { self.attachment } else { AttachmentId::NONE }
    }

    /// Whether a pod is behind it.
    #[inline]
    pub(crate) fn is_pod(&self) -> bool {
        self.policing != Policing::None
    }
}

impl View {
    /// Lays out a world. Its tables have been checked ([`World::tables`]).
    pub(crate) fn new(
        world: &World,
        generation: Generation,
        open: &BTreeMap<PortId, PortFacts>,
        workers: usize,
    ) -> View {
        let tables = world.tables.as_deref();
        let (routes, hops) = layout_routes(world);
        let rules =
            tables.and_then(|tables| tables.rules.last_key_value()).map_or(0, |(id, _)| id.index() + 1);
        let mut origins = vec![None; rules];
        for (id, origin) in tables.iter().flat_map(|tables| &tables.rules) {
            origins[id.index()] = Some(origin.clone());
        }
        let ports = layout_ports(world, open);
        let gateway = |v4: bool| world.gateway.addresses.iter().find(|a| a.is_ipv4() == v4).map(|a| pack(*a));
        View {
            generation,
            mac: world.gateway.mac,
            gateway_v4: gateway(true),
            gateway_v6: gateway(false).unwrap_or_else(|| link_local(world.gateway.mac).into()),
            classifier: tables
                .map(|tables| Classifier::new(tables).expect("tables of a world have been checked")),
            routes,
            exits: hops.iter().map(|hop| layout_exit(hop, &ports)).collect(),
            hops,
            ports,
            attachments: world.pods.iter().map(|pod| pod.id).collect::<BTreeSet<_>>().into_iter().collect(),
            hits: (0..workers).map(|_| (0..rules).map(|_| Default::default()).collect()).collect(),
            origins,
        }
    }

    /// A port, if it is open.
    #[inline]
    pub(crate) fn port(&self, port: PortId) -> Option<&PortView> {
        self.ports.get(port.index())?.as_ref()
    }

    /// Where a destination leads.
    pub(crate) fn hop(&self, destination: Address) -> Option<Hop> {
        self.hop_number(destination).map(|number| self.hops[number as usize])
    }

    /// The number of the hop that a destination leads to: good for as long as this generation.
    #[inline]
    pub(crate) fn hop_number(&self, destination: Address) -> Option<u32> {
        if is_v4(destination) {
            self.routes.next_hop_v4(destination as u32)
        } else {
            self.routes.next_hop_v6(destination)
        }
    }

    /// The hop with this number, and how to leave by it.
    #[inline]
    pub(crate) fn hop_and_exit(&self, number: u32) -> (Hop, Exit) {
        (self.hops[number as usize], self.exits[number as usize])
    }

    /// Who is to be given packets to `destination` that leave by the hop with this number, and behind which port that is.
    pub(crate) fn neighbor(&self, number: u32, destination: Address) -> Option<(PortId, Address)> {
        match self.hops[number as usize] {
            Hop::Port(out, next_hop) => Some((out, next_hop.unwrap_or(destination))),
            Hop::Gateway | Hop::Nowhere => None,
        }
    }

    /// How to leave by the hop with this number.
    #[inline]
    pub(crate) fn exit(&self, number: u16) -> Option<Exit> {
        self.exits.get(usize::from(number)).copied()
    }

    /// The port that an address lies behind.
    pub(crate) fn port_towards(&self, address: Address) -> Option<(PortId, &PortView)> {
        match self.hop(address)? {
            Hop::Gateway | Hop::Nowhere => None,
            Hop::Port(port, _) => self.port(port).map(|view| (port, view)),
        }
    }

    /// Whether an address is the switch's own, one that only a pod of this node may have, or that of a pod or the node
    /// behind another port than this.
    pub(crate) fn is_elsewhere(&self, address: Address, port: PortId) -> bool {
        match self.hop(address) {
            Some(Hop::Gateway | Hop::Nowhere) => true,
            Some(Hop::Port(home, _)) if home != port => {
                self.port(home).is_some_and(|home| home.owns(address))
            }
            _ => false,
        }
    }

    /// Whether a pod is attached by this id. "No pod" always is.
    pub(crate) fn is_attached(&self, id: AttachmentId) -> bool {
        id == AttachmentId::NONE || self.attachments.binary_search(&id).is_ok()
    }

    /// The pod that has an address.
    pub(crate) fn attachment(&self, address: Address) -> AttachmentId {
        self.port_towards(address).map_or(AttachmentId::NONE, |(_, port)| port.attachment_of(address))
    }

    /// Judges a flow by the egress table of its source and the ingress table of its destination: why it is dropped, or
    /// `None` where it may pass. `from` and `to` are the ports that its two ends lie behind.
    pub(crate) fn judge(
        &self,
        flow: &Flow,
        from: &PortView,
        to: &PortView,
        worker: usize,
    ) -> Option<DropReason> {
        if from.is_pod() && from.attachment == to.attachment && to.owns(flow.dst) {
            return None; // A pod cannot be kept from itself.
        }
        self.judge_egress(flow, from, worker).or_else(|| self.judge_ingress(flow, from, to, worker))
    }

    fn judge_egress(&self, flow: &Flow, from: &PortView, worker: usize) -> Option<DropReason> {
        let acl = match from.policing {
            Policing::None | Policing::Open => return None,
            Policing::Closed => return Some(DropReason::UnknownPod),
            Policing::Tables { egress, .. } => egress,
        };
        self.decide(acl, flow.dst, flow, worker, DropReason::PolicyEgress)
    }

    fn judge_ingress(
        &self,
        flow: &Flow,
        from: &PortView,
        to: &PortView,
        worker: usize,
    ) -> Option<DropReason> {
        let acl = match to.policing {
            Policing::None | Policing::Open => return None,
            Policing::Closed => return Some(DropReason::UnknownPod),
            Policing::Tables { ingress, .. } => ingress,
        };
        if from.is_own_node(flow.src) {
            return None; // The pod's own node is always let in (`networking/v1` types.go, ingress).
        }
        self.decide(acl, flow.src, flow, worker, DropReason::PolicyIngress)
    }

    fn decide(
        &self,
        acl: AclId,
        peer: Address,
        flow: &Flow,
        worker: usize,
        deny: DropReason,
    ) -> Option<DropReason> {
        let Some(classifier) = &self.classifier else { return Some(DropReason::UnknownPod) };
        let class = if is_v4(peer) { classifier.class_v4(peer as u32) } else { classifier.class_v6(peer) };
        let decision = classifier.decide(acl, class, flow.protocol, flow.dst_port);
        self.hit(decision, worker);
        (!decision.is_allow()).then_some(deny)
    }

    fn hit(&self, decision: Decision, worker: usize) {
        if let Some(counters) = self.hits[worker].get(decision.rule().index()) {
            let counter = &counters[usize::from(!decision.is_allow())];
            counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// What decides on a flow, for people: egress and ingress.
    pub(crate) fn origins(&self, flow: &Flow) -> [Option<RuleOrigin>; 2] {
        let decide = |acl: AclId, peer: Address| {
            let classifier = self.classifier.as_ref()?;
            let class = classifier.class(unpack(peer));
            let rule = classifier.decide(acl, class, flow.protocol, flow.dst_port).rule();
            self.origins.get(rule.index()).cloned().flatten()
        };
        let from = self.port_towards(flow.src).map(|(_, port)| port);
        let to = self.port_towards(flow.dst).map(|(_, port)| port);
        let egress = match from.map(|port| port.policing) {
            Some(Policing::Tables { egress, .. }) => decide(egress, flow.dst),
            _ => None,
        };
        let ingress = match to.map(|port| port.policing) {
            Some(Policing::Tables { .. }) if from.is_some_and(|from| from.is_own_node(flow.src)) => {
                Some(RuleOrigin::OwnNode)
            }
            Some(Policing::Tables { ingress, .. }) => decide(ingress, flow.src),
            _ => None,
        };
        [egress, ingress]
    }

    /// Decisions taken under this generation, all workers together.
    pub(crate) fn decisions(&self) -> Vec<DecisionCount> {
        let mut counts = Vec::new();
        for (rule, origin) in self.origins.iter().enumerate() {
            let Some(origin) = origin else { continue };
            for decision in [Decision::allow, Decision::deny] {
                let decision = decision(crate::ids::RuleId(rule as u32));
                let column = usize::from(!decision.is_allow());
                let packets = self.hits.iter().map(|hits| hits[rule][column].load(Ordering::Relaxed)).sum();
                if packets != 0 {
                    counts.push(DecisionCount {
                        verdict: decision.verdict(),
                        origin: origin.clone(),
                        packets,
                    });
                }
            }
        }
        counts
    }
}

/// What of a flow is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flow {
    /// Who opens it.
    pub src: Address,
    /// To whom.
    pub dst: Address,
    /// By which protocol.
    pub protocol: Protocol,
    /// On which port.
    pub dst_port: u16,
}

fn layout_routes(world: &World) -> (RouteTable, Vec<Hop>) {
    let mut prefixes: BTreeMap<IpNet, Hop> = BTreeMap::new();
    for route in &world.routes {
        prefixes.insert(route.prefix.trunc(), Hop::Port(route.port, route.next_hop.map(pack)));
    }
    // Over a route to the same prefix: what is for our pods does not leave again by where it came from.
    prefixes.extend(world.pod_prefixes.iter().map(|prefix| (prefix.trunc(), Hop::Nowhere)));
    for address in &world.gateway.addresses {
        prefixes.insert(IpNet::from(*address), Hop::Gateway);
    }
    prefixes.insert(IpNet::from(IpAddr::from(link_local(world.gateway.mac))), Hop::Gateway);
    if let Some(node) = &world.node {
        prefixes
            .extend(node.addresses.iter().map(|address| (IpNet::from(*address), Hop::Port(node.port, None))));
    }
    for pod in &world.pods {
        prefixes
            .extend(pod.addresses.iter().map(|address| (IpNet::from(*address), Hop::Port(pod.port, None))));
    }
    let hops = prefixes.values().copied().collect();
    let routes = RouteTable::build(prefixes.into_keys().zip(0..));
    (routes, hops)
}

fn layout_exit(hop: &Hop, ports: &[Option<PortView>]) -> Exit {
    let Hop::Port(out, _) = *hop else { return Exit::default() };
    let Some(Some(port)) = ports.get(out.index()) else { return Exit { out, ..Exit::default() } };
    let is_uplink = port.kind == PortKind::Uplink;
    Exit { mac: port.mac.map_or(0, Mac::to_bits), out, vlan: port.vlan, mtu: port.mtu, is_uplink }
}

fn layout_ports(world: &World, open: &BTreeMap<PortId, PortFacts>) -> Vec<Option<PortView>> {
    let mut ports: Vec<Option<PortView>> = vec![None; PORTS_MAX];
    for (port, facts) in open {
        ports[port.index()] = Some(PortView::new(*facts, world.gateway.mac));
    }
    let tables = world.tables.as_deref();
    for pod in &world.pods {
        if let Some(Some(port)) = ports.get_mut(pod.port.index()) {
            port.attachment = pod.id;
            port.policing = policing(tables, &pod.pod, world.fail_open);
            port.place(&pod.addresses, pod.mac);
            port.expect(&pod.addresses);
        }
    }
    if let Some(node) = &world.node
        && let Some(Some(port)) = ports.get_mut(node.port.index())
    {
        port.kind = PortKind::Host;
        port.place(&node.addresses, node.mac);
    }
    ports
}

fn policing(tables: Option<&RuleTables>, pod: &PodName, fail_open: bool) -> Policing {
    match tables.and_then(|tables| tables.pods.get(pod)) {
        Some(policy) => Policing::Tables { ingress: policy.ingress, egress: policy.egress },
        None if fail_open => Policing::Open,
        None => Policing::Closed,
    }
}
