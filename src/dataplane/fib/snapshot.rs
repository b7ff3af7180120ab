//! A snapshot of the FIB and the policy: a [`DesiredState`] laid out for lookup. It is immutable, and has a
//! generation.

mod sources;
mod tunnels;

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;

use super::desired_state::DesiredState;
use super::effective_acls::{EffectiveAcls, Flow};
use super::layout;
use super::next_hop::{Adjacency, Hop};
use super::port::{PolicyMode, PortView};
use super::publish::Numbered;
use super::restored_pods::RestoredPods;
use super::rules::{Change, Rules};
use super::tunnel::Tunnels;
use crate::dataplane::masquerade::MasqueradeView;
use crate::dataplane::service::ServiceFib;
use crate::dataplane::{DropReason, PortKind, RouteOrigin};
use crate::ids::{AclId, Generation, PortId};
use crate::net::address::{Address, is_v4, pack};
use crate::net::icmp::link_local;
use crate::net::mac::Mac;
use crate::tables::{RouteTable, RuleOrigin};

/// A snapshot.
#[derive(Clone)]
pub(crate) struct Snapshot {
    /// Number of the generation.
    pub generation: Generation,
    /// Ethernet address of the switch.
    pub mac: Mac,
    /// Whether senders of packets that policy denies get an answer.
    pub rejects: bool,
    /// Whether the bandwidth of a pod is limited.
    pub has_policers: bool,
    /// Source address of the switch's ARP requests.
    pub gateway_v4: Option<Address>,
    /// Source address of the switch's ICMP errors.
    pub icmp_source_v4: Address,
    /// Source address of the switch's `ICMPv6` errors.
    pub icmp_source_v6: Address,
    rules: Option<Arc<Rules>>,
    services: Option<Arc<ServiceFib>>,
    masquerade: Option<Arc<MasqueradeView>>,
    tunnels: Option<Arc<Tunnels>>,
    routes: RouteTable,
    hops: Vec<Hop>,
    /// By number of the hop, whether it leads to pods of another node.
    to_other_pods: Vec<bool>,
    /// Adjacencies by number of the hop.
    adjacencies: Vec<Adjacency>,
    ports: Vec<Option<PortView>>,
    /// Policy epoch by port: the last generation that changed the policy of the pod behind it. A flow is
    /// current if it was evaluated since the epochs of both of its ports.
    policy_epochs: Vec<Generation>,
    /// Last generation that changed more than rule tables.
    pub layout_generation: Generation,
    /// Last generation in which a pod has left its port, or has lost the sole use of its addresses.
    pub pod_removed: Generation,
    /// Pods of the previous process that may still be attached again.
    restored_pods: Arc<RestoredPods>,
}

impl Numbered for Snapshot {
    #[inline]
    fn generation(&self) -> Generation {
        self.generation
    }
}

impl Snapshot {
    /// Lays out a desired state. Its tables have passed their check ([`DesiredState::tables`]).
    pub(crate) fn new(
        desired: &DesiredState,
        generation: Generation,
        open: &BTreeMap<PortId, PortView>,
        workers: usize,
    ) -> Snapshot {
        let rules = desired.tables.as_ref().map(|tables| Arc::new(Rules::new(tables, workers)));
        Snapshot::build_layout(desired, generation, open, rules, None, Arc::default())
    }

    /// The same snapshot, with pods of the previous process that may still be attached again.
    pub(crate) fn with_restored_pods(self, restored_pods: RestoredPods) -> Snapshot {
        Snapshot { restored_pods: Arc::new(restored_pods), ..self }
    }

    /// Returns the snapshot of another state, at the cost of the difference. This snapshot is that of the
    /// state `before`; `same_ports` states that the open ports are the same. If more than rules changes,
    /// `recall` gives the pods of the previous process.
    pub(crate) fn next(
        &self,
        before: &DesiredState,
        desired: &DesiredState,
        open: &BTreeMap<PortId, PortView>,
        same_ports: bool,
        workers: usize,
        recall: impl FnOnce() -> Arc<RestoredPods>,
    ) -> Snapshot {
        let generation = Generation(self.generation.0 + 1);
        let (rules, change) = Rules::next(self.rules.as_ref(), desired.tables.as_ref(), workers);
        if !(same_ports && desired.has_layout_of(before)) {
            return Snapshot::build_layout(desired, generation, open, rules, Some(self), recall());
        }
        let local = || layout::local_addresses(desired, &self.ports);
        let services = ServiceFib::next(self.services.as_ref(), desired.services.as_ref(), local, generation);
        let masquerade = MasqueradeView::next(self.masquerade.as_ref(), desired.masquerade.as_ref());
        let mut next = Snapshot { generation, rules, services, masquerade, ..self.clone() };
        next.apply(desired, &change);
        if next.masquerade.as_ref().map(Arc::as_ptr) != self.masquerade.as_ref().map(Arc::as_ptr) {
            next.renew_uplinks();
        }
        if !matches!(change, Change::Nothing) {
            next.classify_pods();
        }
        next
    }

    /// Applies changed tables to the policy of the pods.
    fn apply(&mut self, desired: &DesiredState, change: &Change) {
        let tables = desired.tables.as_deref();
        for pod in &desired.pods {
            let Some(Some(port)) = self.ports.get_mut(pod.port.index()) else { continue };
            let before = port.policy_mode();
            if change.affects_pod(&pod.pod) {
                port.set_policy_mode(layout::policy_mode(tables, &pod.pod, desired.fail_open));
            }
            let touched = match (port.policy_mode(), tables) {
                (PolicyMode::Tables { ingress, egress }, Some(tables)) => {
                    change.touches(ingress, tables) || change.touches(egress, tables)
                }
                _ => false,
            };
            if touched || port.policy_mode() != before {
                self.policy_epochs[pod.port.index()] = self.generation;
            }
        }
    }

    fn build_layout(
        desired: &DesiredState,
        generation: Generation,
        open: &BTreeMap<PortId, PortView>,
        rules: Option<Arc<Rules>>,
        before: Option<&Snapshot>,
        restored_pods: Arc<RestoredPods>,
    ) -> Snapshot {
        let (routes, ways) = layout::routes(desired);
        let remotes = || ways.iter().map(|way| way.remote).collect();
        let gateway =
            |v4: bool| desired.gateway.addresses.iter().find(|a| a.is_ipv4() == v4).map(|a| pack(*a));
        let icmp_source = |v4: bool| layout::icmp_source(desired, v4).map(pack);
        let ports_before = before.map(|before| &*before.ports);
        let mut ports = layout::ports(desired, open, ports_before);
        layout::set_attached_since(&mut ports, ports_before, generation, &restored_pods);
        let stayed = before.filter(|before| !layout::has_removed_pod(&before.ports, &ports));
        let mut snapshot = Snapshot {
            generation,
            mac: desired.gateway.mac,
            rejects: desired.rejects,
            gateway_v4: gateway(true),
            icmp_source_v4: icmp_source(true).unwrap_or_else(|| pack(layout::DUMMY_ADDRESS.into())),
            icmp_source_v6: icmp_source(false).unwrap_or_else(|| link_local(desired.gateway.mac).into()),
            rules,
            services: ServiceFib::next(
                before.and_then(|before| before.services.as_ref()),
                desired.services.as_ref(),
                || layout::local_addresses(desired, &ports),
                generation,
            ),
            masquerade: MasqueradeView::next(
                before.and_then(|before| before.masquerade.as_ref()),
                desired.masquerade.as_ref(),
            ),
            tunnels: desired.tunnel.as_ref().map(|tunnel| Arc::new(Tunnels::new(tunnel, remotes()))),
            routes,
            adjacencies: ways.iter().map(|way| layout::adjacency(way, &ports)).collect(),
            hops: ways.iter().map(|way| way.hop).collect(),
            to_other_pods: ways.iter().map(|way| way.to_other_pods).collect(),
            policy_epochs: vec![generation; ports.len()],
            has_policers: desired.pods.iter().any(|pod| !pod.bandwidth.is_unlimited()),
            ports,
            layout_generation: generation,
            pod_removed: stayed.map_or(generation, |before| before.pod_removed),
            restored_pods,
        };
        snapshot.classify_pods();
        snapshot
    }

    /// Has flows by uplinks be looked at again: another address may be theirs.
    fn renew_uplinks(&mut self) {
        for (port, epoch) in self.ports.iter().zip(&mut self.policy_epochs) {
            if port.as_ref().is_some_and(|port| port.kind == PortKind::Uplink) {
                *epoch = self.generation;
            }
        }
    }

    /// Classifies the addresses of the pods of this node, so that no packet needs a lookup for them.
    fn classify_pods(&mut self) {
        let Some(rules) = &self.rules else { return };
        for port in self.ports.iter_mut().flatten() {
            port.pod_classes = port.pod_addresses.map(|address| rules.class(address));
        }
    }

    /// Policy epoch of a flow between two ports: one that was evaluated since then is current.
    #[inline]
    pub(crate) fn policy_epoch(&self, one: PortId, other: PortId) -> Generation {
        match (self.policy_epochs.get(one.index()), self.policy_epochs.get(other.index())) {
            (Some(one), Some(other)) => *one.max(other),
            _ => self.generation,
        }
    }

    /// Whether the evaluation of a flow between two ports by generation `epoch`, and the hop that the flow
    /// remembers from it, are still current.
    #[inline]
    pub(crate) fn is_current(&self, epoch: Generation, one: PortId, other: PortId) -> bool {
        epoch == self.generation
            || (self.layout_generation..self.generation).contains(&epoch)
                && epoch >= self.policy_epoch(one, other)
    }

    /// Rule tables with their counters.
    pub(crate) fn rules(&self) -> Option<&Arc<Rules>> {
        self.rules.as_ref()
    }

    /// Services whose packets are translated.
    #[inline]
    pub(crate) fn services(&self) -> Option<&ServiceFib> {
        self.services.as_deref()
    }

    /// Masquerading of what pods send outside.
    #[inline]
    pub(crate) fn masquerade(&self) -> Option<&Arc<MasqueradeView>> {
        self.masquerade.as_ref()
    }

    /// A port, if it is open.
    #[inline]
    pub(crate) fn port(&self, port: PortId) -> Option<&PortView> {
        self.ports.get(port.index())?.as_ref()
    }

    /// Hop of a destination.
    pub(crate) fn hop(&self, destination: Address) -> Option<Hop> {
        self.hop_number(destination).map(|number| self.hops[number as usize])
    }

    /// Number of the hop of a destination. It is valid in this generation.
    #[inline]
    pub(crate) fn hop_number(&self, destination: Address) -> Option<u32> {
        if is_v4(destination) {
            self.routes.next_hop_v4(destination as u32)
        } else {
            self.routes.next_hop_v6(destination)
        }
    }

    /// Routes of this snapshot, which was built from `desired`: prefix, origin, and number of the hop.
    pub(crate) fn routes(&self, desired: &DesiredState) -> Vec<(IpNet, RouteOrigin, u32)> {
        let prefixes = layout::prefixes(desired).into_iter().zip(0..self.hops.len() as u32);
        prefixes.map(|((prefix, way), number)| (prefix, way.origin, number)).collect()
    }

    /// The hop with this number, and its adjacency.
    #[inline]
    pub(crate) fn hop_and_adjacency(&self, number: u32) -> (Hop, Adjacency) {
        (self.hops[number as usize], self.adjacencies[number as usize])
    }

    /// Port and neighbour that get packets to `destination` by the hop with this number.
    pub(crate) fn neighbor(&self, number: u32, destination: Address) -> Option<(PortId, Address)> {
        match self.hops[number as usize] {
            Hop::Port(out, next_hop) => Some((out, next_hop.unwrap_or(destination))),
            Hop::Gateway | Hop::Nowhere => None,
        }
    }

    /// Adjacency of the hop with this number.
    #[inline]
    pub(crate) fn adjacency(&self, number: u32) -> Option<Adjacency> {
        self.adjacencies.get(number as usize).copied()
    }

    /// Port of an address.
    pub(crate) fn port_of_address(&self, address: Address) -> Option<(PortId, &PortView)> {
        match self.hop(address)? {
            Hop::Gateway | Hop::Nowhere => None,
            Hop::Port(port, _) => self.port(port).map(|snapshot| (port, snapshot)),
        }
    }

    /// Open ports.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (PortId, &PortView)> {
        let ports = self.ports.iter().enumerate();
        ports.filter_map(|(number, port)| Some((PortId(number as u16), port.as_ref()?)))
    }

    /// Whether the endpoint of a flow at this address is the same as when generation `epoch` evaluated the
    /// flow. `was_pod`: it was a pod of this node.
    ///
    /// A pod is the same if it has been attached since that generation or longer. Another endpoint is known
    /// by its address alone.
    pub(crate) fn is_same_endpoint(&self, address: Address, was_pod: bool, epoch: Generation) -> bool {
        match self.port_of_address(address) {
            Some((_, port)) if port.has_pod_address(address) => {
                was_pod && port.attached_since.is_some_and(|since| since <= epoch)
            }
            _ => !was_pod,
        }
    }

    /// Whether each end of a flow that is not the same endpoint was a pod of the previous process that may
    /// still be attached again. Then no packet passes, and the flow stays.
    #[cold]
    pub(crate) fn awaits_endpoints(
        &self,
        ends: [(Address, bool); 2],
        epoch: Generation,
        now_ms: u32,
    ) -> bool {
        ends.into_iter().all(|(address, was_pod)| {
            self.is_same_endpoint(address, was_pod, epoch)
                || was_pod && self.restored_pods.awaits(address, now_ms)
        })
    }

    /// Evaluates a new flow as [`Snapshot::evaluate`] does. None may begin at a port that is drained.
    pub(crate) fn evaluate_new(
        &self,
        flow: &Flow,
        from: &PortView,
        to: &PortView,
        counted_by: Option<usize>,
    ) -> Option<DropReason> {
        self.decide(EffectiveAcls::between(flow, from, to), flow, counted_by)
    }

    /// Evaluates a flow by the egress table of its source and the ingress table of its destination. Returns
    /// the reason to drop it, or `None` if it may pass. `from` and `to` are the ports of its ends. The worker
    /// `counted_by` counts the decisions.
    pub(crate) fn evaluate(
        &self,
        flow: &Flow,
        from: &PortView,
        to: &PortView,
        counted_by: Option<usize>,
    ) -> Option<DropReason> {
        self.decide(EffectiveAcls::of_established(flow, from, to), flow, counted_by)
    }

    /// Evaluates a flow of the pod behind `port` to itself through its own Service, to which policies of the cluster alone
    /// apply. Returns the reason to drop it, or `None` if it may pass. Each packet asks, so the worker `counted_by` counts denials
    /// alone.
    #[cold]
    pub(crate) fn evaluate_to_itself(
        &self,
        flow: &Flow,
        port: &PortView,
        counted_by: Option<usize>,
    ) -> Option<DropReason> {
        let (egress, ingress) = match port.policy_mode() {
            PolicyMode::None | PolicyMode::Open => return None,
            PolicyMode::Closed | PolicyMode::Draining => return Some(DropReason::UnknownPod),
            PolicyMode::Tables { egress, ingress } => (egress, ingress),
        };
        let Some(rules) = &self.rules else { return Some(DropReason::UnknownPod) };
        let denies = |acl: AclId| {
            let decision = rules.decide(acl, flow.src, flow, None);
            let is_subject = rules.name(decision).is_some_and(RuleOrigin::is_of_cluster_policy);
            let is_denied = is_subject && !decision.is_allow();
            if let Some(worker) = counted_by.filter(|_| is_denied) {
                rules.count(worker, decision);
            }
            is_denied
        };
        if denies(egress) {
            Some(DropReason::PolicyEgress)
        } else {
            denies(ingress).then_some(DropReason::PolicyIngress)
        }
    }

    fn decide(&self, acls: EffectiveAcls, flow: &Flow, counted_by: Option<usize>) -> Option<DropReason> {
        let passes = |acl: Option<AclId>, peer: Address| {
            let Some(acl) = acl else { return true };
            self.rules.as_ref().is_some_and(|rules| rules.decide(acl, peer, flow, counted_by).is_allow())
        };
        if !passes(acls.egress, flow.dst) {
            Some(DropReason::PolicyEgress)
        } else if !passes(acls.ingress, self.ingress_peer(&acls, flow)) {
            Some(DropReason::PolicyIngress)
        } else {
            acls.closed
        }
    }

    /// Address by which the ingress table decides on a flow.
    pub(crate) fn ingress_peer(&self, acls: &EffectiveAcls, flow: &Flow) -> Address {
        match (&self.rules, acls.ingress) {
            (Some(rules), Some(acl)) if acls.is_forwarded => rules.peer_of_forwarded(acl, flow),
            _ => flow.src,
        }
    }

    /// Origins of the egress and ingress decision on a flow, for output.
    pub(crate) fn origins(&self, flow: &Flow) -> [Option<RuleOrigin>; 2] {
        let decide = |acl: AclId, peer: Address| self.rules.as_ref()?.origin(acl, peer, flow);
        let from = self.port_of_address(flow.src).map(|(_, port)| port);
        let to = self.port_of_address(flow.dst).map(|(_, port)| port);
        let egress = match from.map(PortView::policy_mode) {
            Some(PolicyMode::Tables { egress, .. }) => decide(egress, flow.dst),
            _ => None,
        };
        let ingress = match to.map(PortView::policy_mode) {
            Some(PolicyMode::Tables { ingress, .. }) => {
                match from.filter(|from| from.is_node_address(flow.src)) {
                    Some(_) if flow.by_node_socket => Some(RuleOrigin::OwnNode),
                    Some(_) => {
                        let peer = self.rules.as_ref().map(|rules| rules.peer_of_forwarded(ingress, flow));
                        decide(ingress, peer.unwrap_or(flow.src))
                    }
                    None => decide(ingress, flow.src),
                }
            }
            _ => None,
        };
        [egress, ingress]
    }
}

#[cfg(test)]
mod tests;
