//! The world as workers see it: a [`DesiredState`] laid out for look-up, whole and unchanging, with a generation.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::publish::Numbered;
use super::rules::{Change, Rules};
use crate::dataplane::endpoints::RestoredPods;
use crate::dataplane::packet::Packet;
use crate::dataplane::{DesiredState, DropReason, PortKind};
use crate::ids::{AclId, AttachmentId, ClassId, Generation, PortId};
use crate::limits::POD_ADDRESSES_MAX;
use crate::net::address::{self, Address, from_v4, is_v4, pack};
use crate::net::flow::Protocol;
use crate::net::icmp::link_local;
use crate::net::mac::Mac;
use crate::tables::{PodName, RouteTable, RuleOrigin, RuleTables};

/// What the pod behind a port may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PolicyMode {
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
    /// The generation since which that pod has been there, by the same addresses. `None` without a pod, and where another
    /// one has one of its addresses too.
    there_since: Option<Generation>,
    /// What that pod may do.
    pub policing: PolicyMode,
    /// Ethernet address behind it, if given.
    pub mac: Option<Mac>,
    /// Ethernet address that frames come to and leave from: the switch's, on an uplink the NIC's.
    pub own_mac: Mac,
    /// First addresses of the pod: IPv6, IPv4. Where it has none, one that no packet of that family has.
    pod_addresses: [Address; 2],
    /// The classes of those by the tables.
    pod_classes: [ClassId; 2],
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
pub(crate) struct Adjacency {
    /// Ethernet address of what is there, as [`Mac::to_bits`] has it; of a hop zero where it is to be learned, and always on
    /// uplinks.
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

impl Adjacency {
    /// Whether a packet may leave without a further look: to a pod whose Ethernet address is given, small enough, and not at
    /// the end of its life.
    #[inline(always)]
    pub(crate) fn takes(&self, packet: &Packet) -> bool {
        (packet.ttl > 1) & (packet.ip_bytes() <= usize::from(self.mtu)) & (self.mac != 0)
    }
}

/// One generation.
#[derive(Clone)]
pub(crate) struct Snapshot {
    /// Its number.
    pub generation: Generation,
    /// Ethernet address of the switch.
    pub mac: Mac,
    /// IPv4 address that errors of the switch come from.
    pub gateway_v4: Option<Address>,
    /// IPv6 address that errors and questions of the switch come from.
    pub gateway_v6: Address,
    rules: Option<Arc<Rules>>,
    routes: RouteTable,
    hops: Vec<Hop>,
    /// By number of the hop.
    adjacencies: Vec<Adjacency>,
    ports: Vec<Option<PortView>>,
    /// By port, the last generation that changed what the pod behind it may do: a flow between two ports that was judged since
    /// then on both sides need not be judged again.
    since: Vec<Generation>,
    /// The last generation that changed anything but rule tables.
    pub layout_generation: Generation,
    /// The last one in which a pod that had been there was not there any more, or not alone with its addresses.
    pub pod_left: Generation,
    /// Pods of the process before that may still come back.
    recalled: Arc<RestoredPods>,
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
            there_since: None,
            policing: if facts.kind == PortKind::Pod { PolicyMode::Closed } else { PolicyMode::None },
            mac: None,
            own_mac: facts.mac.unwrap_or(gateway),
            pod_addresses: NO_ADDRESSES,
            pod_classes: [ClassId::WORLD; 2],
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

    /// The class of an address of this family, if it is the first one that the pod behind the port has: these are known
    /// beforehand.
    #[inline(always)]
    pub(crate) fn class_of_pod(&self, address: Address, is_v4: bool) -> Option<ClassId> {
        let family = usize::from(is_v4);
        (address == self.pod_addresses[family]).then_some(self.pod_classes[family])
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
    pub(crate) fn is_own_node(&self, address: Address) -> bool {
        self.kind == PortKind::Host && self.owns(address)
    }

    fn has_pod(&self) -> bool {
        self.attachment != AttachmentId::NONE
    }

    /// Whether there is a pod behind the port that has the address.
    #[inline]
    pub(crate) fn is_of_pod(&self, address: Address) -> bool {
        self.has_pod() && self.owns(address)
    }

    /// The generation since which the pod behind it has been there: what judged the pod's flows since then may be held to.
    pub(crate) fn there_since(&self) -> Option<Generation> {
        self.there_since
    }

    /// Whether a pod is behind it.
    #[inline]
    pub(crate) fn is_pod(&self) -> bool {
        self.policing != PolicyMode::None
    }
}

impl Numbered for Snapshot {
    #[inline]
    fn generation(&self) -> Generation {
        self.generation
    }
}

impl Snapshot {
    /// Lays out a world. Its tables have been checked ([`DesiredState::tables`]).
    pub(crate) fn new(
        desired: &DesiredState,
        generation: Generation,
        open: &BTreeMap<PortId, PortFacts>,
        workers: usize,
    ) -> Snapshot {
        let rules = desired.tables.as_ref().map(|tables| Arc::new(Rules::new(tables, workers)));
        Snapshot::build_layout(desired, generation, open, rules, None, Arc::default())
    }

    /// The same, with pods of the process before that may still come back.
    pub(crate) fn recalling(self, recalled: RestoredPods) -> Snapshot {
        Snapshot { recalled: Arc::new(recalled), ..self }
    }

    /// The view of a further world, at the cost of what changes. This one's was `before`; `same_ports` says that it had the
    /// same open ports. Where anything but rules changes, `recall` says which pods were there in the process before.
    pub(crate) fn next(
        &self,
        before: &DesiredState,
        desired: &DesiredState,
        open: &BTreeMap<PortId, PortFacts>,
        same_ports: bool,
        workers: usize,
        recall: impl FnOnce() -> Arc<RestoredPods>,
    ) -> Snapshot {
        let generation = Generation(self.generation.0 + 1);
        let (rules, change) = Rules::follow(self.rules.as_ref(), desired.tables.as_ref(), workers);
        if !(same_ports && desired.has_layout_of(before)) {
            return Snapshot::build_layout(desired, generation, open, rules, Some(self), recall());
        }
        let mut next = Snapshot { generation, rules, ..self.clone() };
        next.follow(desired, &change);
        if !matches!(change, Change::Nothing) {
            next.classify_pods();
        }
        next
    }

    /// Lets pods be judged by changed tables.
    fn follow(&mut self, desired: &DesiredState, change: &Change) {
        let tables = desired.tables.as_deref();
        for pod in &desired.pods {
            let Some(Some(port)) = self.ports.get_mut(pod.port.index()) else { continue };
            let before = port.policing;
            if change.is_about(&pod.pod) {
                port.policing = policing(tables, &pod.pod, desired.fail_open);
            }
            let touched = match (port.policing, tables) {
                (PolicyMode::Tables { ingress, egress }, Some(tables)) => {
                    change.touches(ingress, tables) || change.touches(egress, tables)
                }
                _ => false,
            };
            if touched || port.policing != before {
                self.since[pod.port.index()] = self.generation;
            }
        }
    }

    fn build_layout(
        desired: &DesiredState,
        generation: Generation,
        open: &BTreeMap<PortId, PortFacts>,
        rules: Option<Arc<Rules>>,
        before: Option<&Snapshot>,
        recalled: Arc<RestoredPods>,
    ) -> Snapshot {
        let (routes, hops) = layout_routes(desired);
        let gateway =
            |v4: bool| desired.gateway.addresses.iter().find(|a| a.is_ipv4() == v4).map(|a| pack(*a));
        let mut ports = layout_ports(desired, open);
        note_since(&mut ports, before, generation, &recalled);
        let stayed = before.filter(|before| !has_lost_pod(before, &ports));
        let mut snapshot = Snapshot {
            generation,
            mac: desired.gateway.mac,
            gateway_v4: gateway(true),
            gateway_v6: gateway(false).unwrap_or_else(|| link_local(desired.gateway.mac).into()),
            rules,
            routes,
            adjacencies: hops.iter().map(|hop| layout_exit(hop, &ports)).collect(),
            hops,
            since: vec![generation; ports.len()],
            ports,
            layout_generation: generation,
            pod_left: stayed.map_or(generation, |before| before.pod_left),
            recalled,
        };
        snapshot.classify_pods();
        snapshot
    }

    /// Asks the tables for the classes of the pods here, so that no packet need.
    fn classify_pods(&mut self) {
        let Some(rules) = &self.rules else { return };
        for port in self.ports.iter_mut().flatten() {
            port.pod_classes = port.pod_addresses.map(|address| rules.class(address));
        }
    }

    /// What a flow between two ports must have been judged by, or by what came later, not to be judged again.
    #[inline]
    pub(crate) fn judged_since(&self, one: PortId, other: PortId) -> Generation {
        match (self.since.get(one.index()), self.since.get(other.index())) {
            (Some(one), Some(other)) => *one.max(other),
            _ => self.generation,
        }
    }

    /// Whether what was judged of a flow between two ports by generation `judged`, and its hop, hold by this one.
    #[inline]
    pub(crate) fn is_current(&self, judged: Generation, one: PortId, other: PortId) -> bool {
        judged == self.generation
            || (self.layout_generation..self.generation).contains(&judged)
                && judged >= self.judged_since(one, other)
    }

    /// The tables that it judges by, with their counters.
    pub(crate) fn rules(&self) -> Option<&Arc<Rules>> {
        self.rules.as_ref()
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
    pub(crate) fn hop_and_exit(&self, number: u32) -> (Hop, Adjacency) {
        (self.hops[number as usize], self.adjacencies[number as usize])
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
    pub(crate) fn adjacency(&self, number: u32) -> Option<Adjacency> {
        self.adjacencies.get(number as usize).copied()
    }

    /// The port that an address lies behind.
    pub(crate) fn port_towards(&self, address: Address) -> Option<(PortId, &PortView)> {
        match self.hop(address)? {
            Hop::Gateway | Hop::Nowhere => None,
            Hop::Port(port, _) => self.port(port).map(|snapshot| (port, snapshot)),
        }
    }

    /// The open ports.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (PortId, &PortView)> {
        let ports = self.ports.iter().enumerate();
        ports.filter_map(|(number, port)| Some((PortId(number as u16), port.as_ref()?)))
    }

    /// Whether packets from this address may come by a port.
    pub(crate) fn may_send(&self, port: &PortView, id: PortId, source: Address) -> bool {
        if port.is_pod() {
            port.owns(source)
        } else {
            // Others route behind these ports: any source but those that are elsewhere for sure.
            !address::is_group(source) && !self.is_elsewhere(source, id)
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

    /// Whether the end of a flow that has this address is who it was when generation `judged` judged the flow. `was_pod`: that was
    /// a pod of this node.
    ///
    /// A pod is who it was if it has been there since that generation or longer. Who is no pod of this node is told from others by
    /// the address alone.
    pub(crate) fn is_same_end(&self, address: Address, was_pod: bool, judged: Generation) -> bool {
        match self.port_towards(address) {
            Some((_, port)) if port.is_of_pod(address) => {
                was_pod && port.there_since.is_some_and(|since| since <= judged)
            }
            _ => !was_pod,
        }
    }

    /// Whether all ends of a flow that are not who they were were pods of the process before that may still come back: then nothing passes
    /// and the flow waits.
    #[cold]
    pub(crate) fn awaits_ends(&self, ends: [(Address, bool); 2], judged: Generation, now_ms: u32) -> bool {
        ends.into_iter().all(|(address, was_pod)| {
            self.is_same_end(address, was_pod, judged) || was_pod && self.recalled.awaits(address, now_ms)
        })
    }

    /// Judges a flow by the egress table of its source and the ingress table of its destination: why it is dropped, or
    /// `None` where it may pass. `from` and `to` are the ports that its two ends lie behind; what decides is counted by the
    /// worker `counted_by`, if there is one.
    pub(crate) fn judge(
        &self,
        flow: &Flow,
        from: &PortView,
        to: &PortView,
        counted_by: Option<usize>,
    ) -> Option<DropReason> {
        let gates = EffectiveAcls::of(flow, from, to);
        let passes = |acl: Option<AclId>, peer: Address| {
            let Some(acl) = acl else { return true };
            self.rules.as_ref().is_some_and(|rules| rules.decide(acl, peer, flow, counted_by).is_allow())
        };
        if !passes(gates.egress, flow.dst) {
            Some(DropReason::PolicyEgress)
        } else if !passes(gates.ingress, flow.src) {
            Some(DropReason::PolicyIngress)
        } else {
            gates.closed
        }
    }

    /// What decides on a flow, for people: egress and ingress.
    pub(crate) fn origins(&self, flow: &Flow) -> [Option<RuleOrigin>; 2] {
        let decide = |acl: AclId, peer: Address| self.rules.as_ref()?.origin(acl, peer, flow);
        let from = self.port_towards(flow.src).map(|(_, port)| port);
        let to = self.port_towards(flow.dst).map(|(_, port)| port);
        let egress = match from.map(|port| port.policing) {
            Some(PolicyMode::Tables { egress, .. }) => decide(egress, flow.dst),
            _ => None,
        };
        let ingress = match to.map(|port| port.policing) {
            Some(PolicyMode::Tables { .. }) if from.is_some_and(|from| from.is_own_node(flow.src)) => {
                Some(RuleOrigin::OwnNode)
            }
            Some(PolicyMode::Tables { ingress, .. }) => decide(ingress, flow.src),
            _ => None,
        };
        [egress, ingress]
    }
}

/// Who is asked whether a flow may pass: first the egress table of its source about the address of its destination, then the
/// ingress table of its destination about that of its source. The first that denies has decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EffectiveAcls {
    /// The source's table.
    pub egress: Option<AclId>,
    /// The destination's table.
    pub ingress: Option<AclId>,
    /// Why it is dropped whatever those say that are asked.
    pub closed: Option<DropReason>,
}

impl EffectiveAcls {
    /// Of a flow between these ports.
    #[inline(always)]
    pub(crate) fn of(flow: &Flow, from: &PortView, to: &PortView) -> EffectiveAcls {
        match (from.policing, to.policing) {
            (PolicyMode::Tables { egress, .. }, PolicyMode::Tables { ingress, .. })
                if from.attachment != to.attachment =>
            {
                EffectiveAcls { egress: Some(egress), ingress: Some(ingress), closed: None }
            }
            _ => EffectiveAcls::of_any(flow, from, to),
        }
    }

    #[inline(never)]
    fn of_any(flow: &Flow, from: &PortView, to: &PortView) -> EffectiveAcls {
        const OPEN: EffectiveAcls = EffectiveAcls { egress: None, ingress: None, closed: None };
        const CLOSED: EffectiveAcls = EffectiveAcls { closed: Some(DropReason::UnknownPod), ..OPEN };
        if from.is_pod() && from.attachment == to.attachment && to.owns(flow.dst) {
            return OPEN; // A pod cannot be kept from itself.
        }
        let egress = match from.policing {
            PolicyMode::None | PolicyMode::Open => None,
            PolicyMode::Closed => return CLOSED,
            PolicyMode::Tables { egress, .. } => Some(egress),
        };
        match to.policing {
            PolicyMode::None | PolicyMode::Open => EffectiveAcls { egress, ..OPEN },
            PolicyMode::Closed => EffectiveAcls { egress, ..CLOSED },
            // The pod's own node is always let in (`networking/v1` types.go, ingress).
            PolicyMode::Tables { .. } if from.is_own_node(flow.src) => EffectiveAcls { egress, ..OPEN },
            PolicyMode::Tables { ingress, .. } => {
                EffectiveAcls { egress, ingress: Some(ingress), closed: None }
            }
        }
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

fn layout_routes(desired: &DesiredState) -> (RouteTable, Vec<Hop>) {
    let mut prefixes: BTreeMap<IpNet, Hop> = BTreeMap::new();
    for route in &desired.routes {
        prefixes.insert(route.prefix.trunc(), Hop::Port(route.port, route.next_hop.map(pack)));
    }
    // Over a route to the same prefix: what is for our pods does not leave again by where it came from.
    prefixes.extend(desired.pod_prefixes.iter().map(|prefix| (prefix.trunc(), Hop::Nowhere)));
    for address in &desired.gateway.addresses {
        prefixes.insert(IpNet::from(*address), Hop::Gateway);
    }
    prefixes.insert(IpNet::from(IpAddr::from(link_local(desired.gateway.mac))), Hop::Gateway);
    if let Some(node) = &desired.node {
        prefixes
            .extend(node.addresses.iter().map(|address| (IpNet::from(*address), Hop::Port(node.port, None))));
    }
    for pod in &desired.pods {
        prefixes
            .extend(pod.addresses.iter().map(|address| (IpNet::from(*address), Hop::Port(pod.port, None))));
    }
    let hops = prefixes.values().copied().collect();
    let routes = RouteTable::build(prefixes.into_keys().zip(0..));
    (routes, hops)
}

fn layout_exit(hop: &Hop, ports: &[Option<PortView>]) -> Adjacency {
    let Hop::Port(out, _) = *hop else { return Adjacency::default() };
    let Some(Some(port)) = ports.get(out.index()) else { return Adjacency { out, ..Adjacency::default() } };
    let is_uplink = port.kind == PortKind::Uplink;
    Adjacency { mac: port.mac.map_or(0, Mac::to_bits), out, vlan: port.vlan, mtu: port.mtu, is_uplink }
}

fn layout_ports(desired: &DesiredState, open: &BTreeMap<PortId, PortFacts>) -> Vec<Option<PortView>> {
    let ports = open.last_key_value().map_or(0, |(last, _)| last.index() + 1);
    let mut ports: Vec<Option<PortView>> = vec![None; ports];
    for (port, facts) in open {
        ports[port.index()] = Some(PortView::new(*facts, desired.gateway.mac));
    }
    let tables = desired.tables.as_deref();
    for pod in &desired.pods {
        if let Some(Some(port)) = ports.get_mut(pod.port.index()) {
            port.attachment = pod.id;
            port.policing = policing(tables, &pod.pod, desired.fail_open);
            port.place(&pod.addresses, pod.mac);
            port.expect(&pod.addresses);
        }
    }
    if let Some(node) = &desired.node
        && let Some(Some(port)) = ports.get_mut(node.port.index())
    {
        port.kind = PortKind::Host;
        port.place(&node.addresses, node.mac);
    }
    ports
}

/// Lets each port say since which generation its pod has been there: since that of the view `before`, if it is there unchanged; or
/// since one of the process before, if it has come back.
fn note_since(
    ports: &mut [Option<PortView>],
    before: Option<&Snapshot>,
    generation: Generation,
    recalled: &RestoredPods,
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
        // Which of two pods an address leads to may change while both of them stay.
        if port.addresses().iter().any(|address| shared.contains(address)) {
            continue;
        }
        let last = before.and_then(|snapshot| snapshot.ports.get(number)?.as_ref());
        let since = match last.filter(|last| last.attachment == port.attachment) {
            Some(last) => last.there_since.filter(|_| last.addresses() == port.addresses()),
            None => recalled.since.get(&port.attachment).copied(),
        };
        port.there_since = since.or(Some(generation));
    }
}

/// Whether a pod that was there is not behind its port any more, as it was.
fn has_lost_pod(before: &Snapshot, ports: &[Option<PortView>]) -> bool {
    before.ports.iter().enumerate().any(|(number, port)| {
        let since = |port: &PortView| port.there_since;
        let now = ports.get(number).and_then(Option::as_ref).and_then(since);
        port.as_ref().is_some_and(|port| port.has_pod() && (since(port).is_none() || since(port) != now))
    })
}

fn policing(tables: Option<&RuleTables>, pod: &PodName, fail_open: bool) -> PolicyMode {
    match tables.and_then(|tables| tables.pods.get(pod)) {
        Some(policy) => PolicyMode::Tables { ingress: policy.ingress, egress: policy.egress },
        None if fail_open => PolicyMode::Open,
        None => PolicyMode::Closed,
    }
}

#[cfg(test)]
mod tests;
