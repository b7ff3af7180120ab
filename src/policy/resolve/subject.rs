//! Subjects: which policies judge one direction of a pod, and their rules in order.
//!
//! The order is that of the specifications. Admin tier by priority. Then `NetworkPolicy`, where at least one isolates
//! the pod: what none of its rules allows is denied, and the baseline tier is not asked. Else the baseline tier by
//! priority. Else everything passes.

use std::sync::Arc;

use crate::policy::objects::{
    ClusterAction, ClusterNetworkPolicy, ClusterPeer, ClusterPort, ClusterRule, ContainerPort, IpBlock,
    NetworkPolicy, NetworkPolicyRule, Peer, Peers, Pod, PortMatch, Ports, Tier,
};
use crate::policy::store::{GroupId, Store, StoredPod, Versioned};
use crate::tables::{Direction, PolicyKind, PolicyRef, RuleOrigin};

use super::{Action, Group, NamespaceScope, PodSet, PortName, PortTerm, Rule, RuleSet};

/// One direction of a pod, and the policies that select the pod for it, in the order they are asked.
pub(crate) struct Subject<'a> {
    direction: Direction,
    pod: &'a Pod,
    admin: Vec<&'a Versioned<ClusterNetworkPolicy>>,
    network: Vec<&'a Versioned<NetworkPolicy>>,
    baseline: Vec<&'a Versioned<ClusterNetworkPolicy>>,
}

/// What the rules of a subject depend on: subjects with equal keys have equal rules.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SubjectKey {
    direction: Direction,
    versions: Vec<u64>,
    own_node: Option<String>,
    ports: Vec<ContainerPort>,
}

impl<'a> Subject<'a> {
    /// What judges one direction of a pod.
    pub(crate) fn new(store: &'a Store, stored: &'a StoredPod, direction: Direction) -> Subject<'a> {
        let network = store.policies_of(stored).filter(|entry| rules(&entry.policy, direction).is_some());
        let network: Vec<_> = network.collect();
        let cluster = store.cluster_policies_of(stored);
        let (admin, baseline): (Vec<_>, Vec<_>) = cluster
            .filter(|entry| !cluster_rules(&entry.policy, direction).is_empty())
            .partition(|entry| entry.policy.tier == Tier::Admin);
        let baseline = if network.is_empty() { baseline } else { Vec::new() };
        Subject { direction, pod: &stored.pod, admin, network, baseline }
    }

    /// The policies, in the order they are asked.
    pub(crate) fn policies(&self) -> Vec<PolicyRef> {
        let admin = self.admin.iter().map(|entry| cluster_name(&entry.policy));
        let network = self.network.iter().map(|entry| network_name(&entry.policy));
        let baseline = self.baseline.iter().map(|entry| cluster_name(&entry.policy));
        admin.chain(network).chain(baseline).collect()
    }

    /// What the rules depend on.
    pub(crate) fn key(&self) -> SubjectKey {
        let cluster = self.admin.iter().chain(&self.baseline).map(|entry| entry.version);
        let network = self.network.iter().map(|entry| entry.version);
        SubjectKey {
            direction: self.direction,
            versions: cluster.chain(network).collect(),
            own_node: self.own_node().cloned(),
            ports: self.own_ports(),
        }
    }

    /// The rules, with their peers as groups.
    pub(crate) fn rules(&self, group: &mut dyn FnMut(Group) -> GroupId) -> RuleSet {
        let mut resolver = Resolver { subject: self, group, origins: Vec::new() };
        let admin = resolver.cluster(&self.admin);
        let middle =
            if self.network.is_empty() { resolver.cluster(&self.baseline) } else { resolver.network() };
        let origin = RuleOrigin::NotIsolated { direction: self.direction };
        let last = vec![resolver.everything(Action::Allow, origin)];
        RuleSet { stages: vec![admin, middle, last], origins: resolver.origins }
    }

    /// The node from which the pod always takes traffic.
    fn own_node(&self) -> Option<&'a String> {
        let applies = self.direction == Direction::Ingress && !self.network.is_empty();
        if applies { self.pod.node.as_ref() } else { None }
    }

    /// The pod's own ports, as far as the rules ask for them by name: where the pod is the destination.
    fn own_ports(&self) -> Vec<ContainerPort> {
        if self.direction == Direction::Egress || self.pod.ports.is_empty() {
            return Vec::new();
        }
        let cluster = self.admin.iter().chain(&self.baseline).flat_map(|entry| &entry.own_port_names);
        let names: Vec<&String> =
            self.network.iter().flat_map(|entry| &entry.own_port_names).chain(cluster).collect();
        let asked = |port: &&ContainerPort| port.name.as_ref().is_some_and(|name| names.contains(&name));
        let mut ports: Vec<ContainerPort> = self.pod.ports.iter().filter(asked).cloned().collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }
}

/// Turns the policies of a subject into rules.
struct Resolver<'a, 'b> {
    subject: &'b Subject<'a>,
    group: &'b mut dyn FnMut(Group) -> GroupId,
    origins: Vec<Arc<RuleOrigin>>,
}

impl Resolver<'_, '_> {
    fn cluster(&mut self, policies: &[&Versioned<ClusterNetworkPolicy>]) -> Vec<Rule> {
        let direction = self.subject.direction;
        let mut found = Vec::new();
        for Versioned { policy, .. } in policies {
            for (index, rule) in cluster_rules(policy, direction).iter().enumerate() {
                let peers = self.cluster_peers(&rule.peers);
                let ports = self.own(cluster_ports(rule));
                let action = match rule.action {
                    ClusterAction::Accept => Action::Allow,
                    ClusterAction::Deny => Action::Deny,
                    ClusterAction::Pass => Action::Pass,
                };
                let (policy, index, name) = (cluster_name(policy), index as u32, rule.name.clone());
                let origin = self.name(RuleOrigin::Rule { policy, direction, index, name });
                found.push(Rule { peers, ports, action, origin });
            }
        }
        found
    }

    fn network(&mut self) -> Vec<Rule> {
        let direction = self.subject.direction;
        let mut found = Vec::new();
        if let Some(node) = self.subject.own_node() {
            let peers = Some(vec![(self.group)(Group::OwnNode(node.clone()))]);
            let origin = self.name(RuleOrigin::OwnNode);
            found.push(Rule { peers, ports: None, action: Action::Allow, origin });
        }
        for Versioned { policy, .. } in &self.subject.network {
            for (index, rule) in rules(policy, direction).into_iter().flatten().enumerate() {
                let peers = self.network_peers(&policy.namespace, &rule.peers);
                let ports = self.own(network_ports(&rule.ports));
                let (policy, index) = (network_name(policy), index as u32);
                let origin = self.name(RuleOrigin::Rule { policy, direction, index, name: None });
                found.push(Rule { peers, ports, action: Action::Allow, origin });
            }
        }
        let mut policies: Vec<_> =
            self.subject.network.iter().map(|entry| network_name(&entry.policy)).collect();
        policies.sort_unstable();
        found.push(self.everything(Action::Deny, RuleOrigin::DefaultDeny { direction, policies }));
        found
    }

    fn everything(&mut self, action: Action, origin: RuleOrigin) -> Rule {
        Rule { peers: None, ports: None, action, origin: self.name(origin) }
    }

    fn network_peers(&mut self, namespace: &str, peers: &Peers) -> Option<Vec<GroupId>> {
        let Peers::Any(peers) = peers else { return None };
        let groups = peers.iter().map(|peer| match peer {
            Peer::Pods { namespaces, pods } => {
                let namespaces = match namespaces {
                    Some(selector) => NamespaceScope::Matching(selector.clone()),
                    None => NamespaceScope::Named(namespace.to_owned()),
                };
                Group::Pods(PodSet { namespaces, pods: pods.clone() })
            }
            Peer::IpBlock(block) => Group::block(block),
        });
        Some(groups.map(&mut *self.group).collect())
    }

    fn cluster_peers(&mut self, peers: &[ClusterPeer]) -> Option<Vec<GroupId>> {
        if peers.contains(&ClusterPeer::Everyone) {
            return None;
        }
        let groups = peers.iter().filter_map(|peer| match peer {
            ClusterPeer::Pods(scope) => Some(Group::Pods(scope.into())),
            ClusterPeer::Network(cidr) => Some(Group::block(&IpBlock { cidr: *cidr, except: Vec::new() })),
            ClusterPeer::Nodes(selector) => Some(Group::Nodes(selector.clone())),
            // No address of the name is known: the peer matches nothing.
            ClusterPeer::DomainName(_) | ClusterPeer::Everyone => None,
        });
        Some(groups.map(&mut *self.group).collect())
    }

    /// Looks names up on the pod itself, where it is the destination; else leaves them to the peers.
    fn own(&self, ports: Option<Vec<PortTerm>>) -> Option<Vec<PortTerm>> {
        if self.subject.direction == Direction::Egress {
            return ports;
        }
        let mut found = Vec::new();
        for term in ports? {
            let PortTerm::Named(name) = term else {
                found.push(term);
                continue;
            };
            let ports = self.subject.pod.ports.iter().filter(|port| name.is_of(port));
            found.extend(ports.map(|port| PortTerm::Range {
                protocol: port.protocol,
                first: port.port,
                last: port.port,
            }));
        }
        Some(found)
    }

    fn name(&mut self, origin: RuleOrigin) -> u32 {
        self.origins.push(Arc::new(origin));
        self.origins.len() as u32 - 1
    }
}

fn rules(policy: &NetworkPolicy, direction: Direction) -> Option<&Vec<NetworkPolicyRule>> {
    match direction {
        Direction::Ingress => policy.ingress.as_ref(),
        Direction::Egress => policy.egress.as_ref(),
    }
}

fn cluster_rules(policy: &ClusterNetworkPolicy, direction: Direction) -> &[ClusterRule] {
    match direction {
        Direction::Ingress => &policy.ingress,
        Direction::Egress => &policy.egress,
    }
}

fn network_name(policy: &NetworkPolicy) -> PolicyRef {
    PolicyRef {
        kind: PolicyKind::NetworkPolicy,
        namespace: policy.namespace.clone(),
        name: policy.name.clone(),
    }
}

fn cluster_name(policy: &ClusterNetworkPolicy) -> PolicyRef {
    PolicyRef { kind: policy.kind, namespace: String::new(), name: policy.name.clone() }
}

fn network_ports(ports: &Ports) -> Option<Vec<PortTerm>> {
    let Ports::Any(ports) = ports else { return None };
    let terms = ports.iter().map(|port| match port {
        PortMatch::Range { protocol, first, last } => {
            PortTerm::Range { protocol: *protocol, first: *first, last: *last }
        }
        PortMatch::Named { protocol, name } => {
            PortTerm::Named(PortName { name: name.clone(), protocol: Some(*protocol) })
        }
    });
    Some(terms.collect())
}

fn cluster_ports(rule: &ClusterRule) -> Option<Vec<PortTerm>> {
    let terms = rule.ports.as_ref()?.iter().map(|port| match port {
        ClusterPort::Range { protocol, first, last } => {
            PortTerm::Range { protocol: *protocol, first: *first, last: *last }
        }
        ClusterPort::Named { protocol, name } => {
            PortTerm::Named(PortName { name: name.clone(), protocol: *protocol })
        }
    });
    Some(terms.collect())
}
