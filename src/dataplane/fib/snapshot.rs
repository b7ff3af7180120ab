//! The world as workers see it: a [`DesiredState`] laid out for look-up, whole and unchanging, with a generation.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::desired_state::DesiredState;
use super::effective_acls::{EffectiveAcls, Flow};
use super::layout;
use super::next_hop::{Adjacency, Hop};
use super::port::{PolicyMode, PortProperties, PortView};
use super::publish::Numbered;
use super::restored_pods::RestoredPods;
use super::rules::{Change, Rules};
use crate::dataplane::DropReason;
use crate::ids::{AclId, Generation, PortId};
use crate::net::address::{self, Address, is_v4, pack};
use crate::net::icmp::link_local;
use crate::net::mac::Mac;
use crate::tables::{RouteTable, RuleOrigin};

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
    /// By port, the last generation that changed what the pod behind it may do: a flow between two ports that was evaluated since
    /// then on both sides need not be evaluated again.
    policy_epochs: Vec<Generation>,
    /// The last generation that changed anything but rule tables.
    pub layout_generation: Generation,
    /// The last one in which a pod that had been there was not there any more, or not alone with its addresses.
    pub pod_removed: Generation,
    /// Pods of the process before that may still come back.
    restored_pods: Arc<RestoredPods>,
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
        open: &BTreeMap<PortId, PortProperties>,
        workers: usize,
    ) -> Snapshot {
        let rules = desired.tables.as_ref().map(|tables| Arc::new(Rules::new(tables, workers)));
        Snapshot::build_layout(desired, generation, open, rules, None, Arc::default())
    }

    /// The same, with pods of the process before that may still come back.
    pub(crate) fn with_restored_pods(self, restored_pods: RestoredPods) -> Snapshot {
        Snapshot { restored_pods: Arc::new(restored_pods), ..self }
    }

    /// The view of a further world, at the cost of what changes. This one's was `before`; `same_ports` says that it had the
    /// same open ports. Where anything but rules changes, `recall` says which pods were there in the process before.
    pub(crate) fn next(
        &self,
        before: &DesiredState,
        desired: &DesiredState,
        open: &BTreeMap<PortId, PortProperties>,
        same_ports: bool,
        workers: usize,
        recall: impl FnOnce() -> Arc<RestoredPods>,
    ) -> Snapshot {
        let generation = Generation(self.generation.0 + 1);
        let (rules, change) = Rules::next(self.rules.as_ref(), desired.tables.as_ref(), workers);
        if !(same_ports && desired.has_layout_of(before)) {
            return Snapshot::build_layout(desired, generation, open, rules, Some(self), recall());
        }
        let mut next = Snapshot { generation, rules, ..self.clone() };
        next.apply(desired, &change);
        if !matches!(change, Change::Nothing) {
            next.classify_pods();
        }
        next
    }

    /// Lets pods be evaluated by changed tables.
    fn apply(&mut self, desired: &DesiredState, change: &Change) {
        let tables = desired.tables.as_deref();
        for pod in &desired.pods {
            let Some(Some(port)) = self.ports.get_mut(pod.port.index()) else { continue };
            let before = port.policy_mode;
            if change.affects_pod(&pod.pod) {
                port.policy_mode = layout::policy_mode(tables, &pod.pod, desired.fail_open);
            }
            let touched = match (port.policy_mode, tables) {
                (PolicyMode::Tables { ingress, egress }, Some(tables)) => {
                    change.touches(ingress, tables) || change.touches(egress, tables)
                }
                _ => false,
            };
            if touched || port.policy_mode != before {
                self.policy_epochs[pod.port.index()] = self.generation;
            }
        }
    }

    fn build_layout(
        desired: &DesiredState,
        generation: Generation,
        open: &BTreeMap<PortId, PortProperties>,
        rules: Option<Arc<Rules>>,
        before: Option<&Snapshot>,
        restored_pods: Arc<RestoredPods>,
    ) -> Snapshot {
        let (routes, hops) = layout::routes(desired);
        let gateway =
            |v4: bool| desired.gateway.addresses.iter().find(|a| a.is_ipv4() == v4).map(|a| pack(*a));
        let mut ports = layout::ports(desired, open);
        layout::set_attached_since(
            &mut ports,
            before.map(|before| &*before.ports),
            generation,
            &restored_pods,
        );
        let stayed = before.filter(|before| !layout::has_removed_pod(&before.ports, &ports));
        let mut snapshot = Snapshot {
            generation,
            mac: desired.gateway.mac,
            gateway_v4: gateway(true),
            gateway_v6: gateway(false).unwrap_or_else(|| link_local(desired.gateway.mac).into()),
            rules,
            routes,
            adjacencies: hops.iter().map(|hop| layout::adjacency(hop, &ports)).collect(),
            hops,
            policy_epochs: vec![generation; ports.len()],
            ports,
            layout_generation: generation,
            pod_removed: stayed.map_or(generation, |before| before.pod_removed),
            restored_pods,
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

    /// What a flow between two ports must have been evaluated by, or by what came later, not to be evaluated again.
    #[inline]
    pub(crate) fn policy_epoch(&self, one: PortId, other: PortId) -> Generation {
        match (self.policy_epochs.get(one.index()), self.policy_epochs.get(other.index())) {
            (Some(one), Some(other)) => *one.max(other),
            _ => self.generation,
        }
    }

    /// Whether what was evaluated of a flow between two ports by generation `epoch`, and its hop, hold by this one.
    #[inline]
    pub(crate) fn is_current(&self, epoch: Generation, one: PortId, other: PortId) -> bool {
        epoch == self.generation
            || (self.layout_generation..self.generation).contains(&epoch)
                && epoch >= self.policy_epoch(one, other)
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
    pub(crate) fn hop_and_adjacency(&self, number: u32) -> (Hop, Adjacency) {
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
    pub(crate) fn port_of_address(&self, address: Address) -> Option<(PortId, &PortView)> {
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

    /// Whether the end of a flow that has this address is who it was when generation `epoch` evaluated the flow. `was_pod`: that was
    /// a pod of this node.
    ///
    /// A pod is who it was if it has been there since that generation or longer. Who is no pod of this node is told from others by
    /// the address alone.
    pub(crate) fn is_same_endpoint(&self, address: Address, was_pod: bool, epoch: Generation) -> bool {
        match self.port_of_address(address) {
            Some((_, port)) if port.has_pod_address(address) => {
                was_pod && port.attached_since.is_some_and(|since| since <= epoch)
            }
            _ => !was_pod,
        }
    }

    /// Whether all ends of a flow that are not who they were were pods of the process before that may still come back: then nothing passes
    /// and the flow waits.
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

    /// Judges a flow by the egress table of its source and the ingress table of its destination: why it is dropped, or
    /// `None` where it may pass. `from` and `to` are the ports that its two ends lie behind; what decides is counted by the
    /// worker `counted_by`, if there is one.
    pub(crate) fn evaluate(
        &self,
        flow: &Flow,
        from: &PortView,
        to: &PortView,
        counted_by: Option<usize>,
    ) -> Option<DropReason> {
        let acls = EffectiveAcls::between(flow, from, to);
        let passes = |acl: Option<AclId>, peer: Address| {
            let Some(acl) = acl else { return true };
            self.rules.as_ref().is_some_and(|rules| rules.decide(acl, peer, flow, counted_by).is_allow())
        };
        if !passes(acls.egress, flow.dst) {
            Some(DropReason::PolicyEgress)
        } else if !passes(acls.ingress, flow.src) {
            Some(DropReason::PolicyIngress)
        } else {
            acls.closed
        }
    }

    /// What decides on a flow, for people: egress and ingress.
    pub(crate) fn origins(&self, flow: &Flow) -> [Option<RuleOrigin>; 2] {
        let decide = |acl: AclId, peer: Address| self.rules.as_ref()?.origin(acl, peer, flow);
        let from = self.port_of_address(flow.src).map(|(_, port)| port);
        let to = self.port_of_address(flow.dst).map(|(_, port)| port);
        let egress = match from.map(|port| port.policy_mode) {
            Some(PolicyMode::Tables { egress, .. }) => decide(egress, flow.dst),
            _ => None,
        };
        let ingress = match to.map(|port| port.policy_mode) {
            Some(PolicyMode::Tables { .. }) if from.is_some_and(|from| from.is_node_address(flow.src)) => {
                Some(RuleOrigin::OwnNode)
            }
            Some(PolicyMode::Tables { ingress, .. }) => decide(ingress, flow.src),
            _ => None,
        };
        [egress, ingress]
    }
}

#[cfg(test)]
mod tests;
