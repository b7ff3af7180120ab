//! Pod direction: the policies that select a pod for ingress or egress, and their rules in order.
//!
//! The order is that of the specifications: the admin tier by priority; then `NetworkPolicy` if one isolates
//! the pod, with a final default deny; else the baseline tier by priority; else allow.

use std::net::IpAddr;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};

use crate::policy::objects::{
    ClusterAction, ClusterNetworkPolicy, ClusterPeer, ClusterPort, ClusterRule, ContainerPort, IpBlock,
    NetworkPolicy, NetworkPolicyRule, Peer, Peers, Pod, PortMatch, Ports, Tier,
};
use crate::policy::store::{GroupId, Store, StoredPod, Versioned};
use crate::tables::{Direction, PolicyKind, PolicyRef, RuleOrigin};

use super::group::{AddressGroup, NamespaceScope, PodSet, PortName};
use super::rule_list::NamedRule;
use super::rule_list::{Action, PortTerm, Rule, RuleList};

/// One direction of a pod, and the policies that select the pod for it, in the order of evaluation.
pub(crate) struct PodDirection<'a> {
    direction: Direction,
    pod: &'a Pod,
    admin: Vec<&'a Versioned<ClusterNetworkPolicy>>,
    network: Vec<&'a Versioned<NetworkPolicy>>,
    baseline: Vec<&'a Versioned<ClusterNetworkPolicy>>,
}

/// Identity of a rule list: pod directions with equal keys have equal rules.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RuleSetKey {
    direction: Direction,
    is_isolated: bool,
    versions: Vec<u64>,
    own_node: OwnNode,
    ports: Vec<ContainerPort>,
}

/// Node whose traffic the pod always accepts, as named by the pod; empty if no rule refers to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct OwnNode {
    name: Option<String>,
    addresses: Vec<IpAddr>,
}

impl OwnNode {
    /// Groups of the addresses of the `Node` object and of `status.hostIPs` of the pod.
    fn groups(&self) -> Vec<AddressGroup> {
        let by_name = self.name.iter().map(|name| AddressGroup::OwnNode(name.clone()));
        let block =
            |address: &IpAddr| AddressGroup::block(&IpBlock { cidr: (*address).into(), except: Vec::new() });
        by_name.chain(self.addresses.iter().map(block)).collect()
    }
}

impl RuleSetKey {
    /// Direction.
    pub(crate) fn direction(&self) -> Direction {
        self.direction
    }

    /// Tests whether the rules differ from those of another key only in policies and in the name of the
    /// default deny.
    pub(crate) fn differs_only_in_policies(&self, other: &RuleSetKey) -> bool {
        (self.direction, self.is_isolated, &self.own_node, &self.ports)
            == (other.direction, other.is_isolated, &other.own_node, &other.ports)
    }
}

impl<'a> PodDirection<'a> {
    /// Collects the policies of one direction of a pod.
    pub(crate) fn new(store: &'a Store, stored: &'a StoredPod, direction: Direction) -> PodDirection<'a> {
        let network = store.policies_of(stored).filter(|entry| rules(&entry.policy, direction).is_some());
        let network: Vec<_> = network.collect();
        let cluster = store.cluster_policies_of(stored);
        let (admin, baseline): (Vec<_>, Vec<_>) = cluster
            .filter(|entry| !cluster_rules(&entry.policy, direction).is_empty())
            .partition(|entry| entry.policy.tier == Tier::Admin);
        let baseline = if network.is_empty() { baseline } else { Vec::new() };
        PodDirection { direction, pod: &stored.pod, admin, network, baseline }
    }

    /// Policies, in the order of evaluation.
    pub(crate) fn policies(&self) -> Vec<PolicyRef> {
        let admin = self.admin.iter().map(|entry| cluster_name(&entry.policy));
        let network = self.network.iter().map(|entry| network_name(&entry.policy));
        let baseline = self.baseline.iter().map(|entry| cluster_name(&entry.policy));
        admin.chain(network).chain(baseline).collect()
    }

    /// Key of the rules.
    pub(crate) fn key(&self) -> RuleSetKey {
        RuleSetKey {
            direction: self.direction,
            is_isolated: !self.network.is_empty(),
            versions: self.versions().collect(),
            own_node: self.own_node(),
            ports: self.own_ports(),
        }
    }

    /// Versions of the policies, in the order of evaluation.
    fn versions(&self) -> impl Iterator<Item = u64> {
        let [admin, baseline] =
            [&self.admin, &self.baseline].map(|policies| policies.iter().map(|e| e.version));
        admin.chain(self.network.iter().map(|entry| entry.version)).chain(baseline)
    }

    /// Rules, with their peers as groups.
    pub(crate) fn rules(&self, group: &mut dyn FnMut(AddressGroup) -> GroupId) -> RuleList {
        self.rules_reusing(RuleList::default(), group).0
    }

    /// Rules, and the groups of the rules that only one of `self` and `before` has. Reuses the rules of
    /// policies that both have.
    pub(crate) fn rules_reusing(
        &self,
        before: RuleList,
        group: &mut dyn FnMut(AddressGroup) -> GroupId,
    ) -> (RuleList, Vec<GroupId>) {
        let mut known = before.into_policies();
        let next: HashSet<u64> = self.versions().collect();
        let dropped = known.extract_if(|version, _| !next.contains(version)).flat_map(|(_, rules)| rules);
        let dropped = dropped.map(|(rule, name)| (name, rule)).collect();
        let mut resolver = RuleResolver { pod_direction: self, group, known, dropped, added: Vec::new() };
        let mut rules = RuleList::default();
        rules.begin_tier();
        resolver.cluster(&self.admin, &mut rules);
        rules.begin_tier();
        if self.network.is_empty() {
            resolver.cluster(&self.baseline, &mut rules);
        } else {
            resolver.network(&mut rules);
        }
        rules.begin_tier();
        let origin = RuleOrigin::NotIsolated { direction: self.direction };
        rules.append(None, vec![any_peer_rule(Action::Allow, origin)]);
        let mut groups = resolver.added;
        groups.extend(resolver.dropped.values().filter_map(|rule| rule.peers.as_ref()).flatten());
        groups.sort_unstable();
        groups.dedup();
        (rules, groups)
    }

    /// Tests whether the rules that differ from those of a similar key are static: they refer to groups and
    /// to port numbers only.
    pub(crate) fn differs_statically_from(&self, before: &RuleList) -> bool {
        let next: HashSet<u64> = self.versions().collect();
        let before = before.policies();
        if before.iter().any(|(version, is_static)| !is_static && !next.contains(version)) {
            return false;
        }
        let known: HashSet<u64> = before.into_iter().map(|(version, _)| version).collect();
        let asks_by_name = |ports: Option<Vec<PortTerm>>| {
            let ports = if self.direction == Direction::Ingress { None } else { ports };
            ports.into_iter().flatten().any(|term| matches!(term, PortTerm::Named(_)))
        };
        let cluster = self.admin.iter().chain(&self.baseline).filter(|entry| !known.contains(&entry.version));
        let mut cluster = cluster.flat_map(|entry| cluster_rules(&entry.policy, self.direction));
        let network = self.network.iter().filter(|entry| !known.contains(&entry.version));
        let mut network = network.filter_map(|entry| rules(&entry.policy, self.direction)).flatten();
        cluster.all(|rule| !rule.peers.contains(&ClusterPeer::Everyone) && !asks_by_name(cluster_ports(rule)))
            && network
                .all(|rule| matches!(rule.peers, Peers::Any(_)) && !asks_by_name(network_ports(&rule.ports)))
    }

    /// Origin of the default deny, if the pod is isolated.
    pub(crate) fn default_deny(&self) -> Option<RuleOrigin> {
        let mut policies: Vec<_> = self.network.iter().map(|entry| network_name(&entry.policy)).collect();
        policies.sort_unstable();
        (!policies.is_empty()).then_some(RuleOrigin::DefaultDeny { direction: self.direction, policies })
    }

    /// Node whose traffic the pod always accepts.
    fn own_node(&self) -> OwnNode {
        let applies = self.direction == Direction::Ingress && !self.network.is_empty();
        if !applies {
            return OwnNode::default();
        }
        OwnNode { name: self.pod.node.clone(), addresses: self.pod.host_ips.clone() }
    }

    /// Ports of the pod that its ingress rules name.
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

/// Resolver of the policies of a pod direction into rules.
struct RuleResolver<'a, 'b> {
    pod_direction: &'b PodDirection<'a>,
    group: &'b mut dyn FnMut(AddressGroup) -> GroupId,
    /// Resolved rules of earlier versions of the list, by policy version.
    known: HashMap<u64, Vec<NamedRule>>,
    /// Rules of earlier policies, by origin, that the list no longer has.
    dropped: HashMap<Arc<RuleOrigin>, Rule>,
    /// Groups in added rules.
    added: Vec<GroupId>,
}

impl RuleResolver<'_, '_> {
    fn cluster(&mut self, policies: &[&Versioned<ClusterNetworkPolicy>], to: &mut RuleList) {
        for entry in policies {
            let known = self.known.remove(&entry.version);
            let rules = known.unwrap_or_else(|| {
                let rules = self.cluster_policy(&entry.policy);
                rules.iter().for_each(|(rule, _)| self.added.extend(rule.peers.iter().flatten()));
                rules
            });
            to.append(Some(entry.version), rules);
        }
    }

    fn network(&mut self, to: &mut RuleList) {
        let mut own_node: Vec<_> =
            self.pod_direction.own_node().groups().into_iter().map(|group| (self.group)(group)).collect();
        if !own_node.is_empty() {
            own_node.sort_unstable();
            own_node.dedup();
            let rule = Rule { peers: Some(own_node), ports: None, action: Action::Allow, origin: 0 };
            to.append(None, vec![(rule, Arc::new(RuleOrigin::OwnNode))]);
        }
        for entry in &self.pod_direction.network {
            let known = self.known.remove(&entry.version);
            let rules = known.unwrap_or_else(|| {
                let rules = self.network_policy(&entry.policy);
                rules.iter().for_each(|(rule, name)| self.add_rule(rule, name));
                rules
            });
            to.append(Some(entry.version), rules);
        }
        if let Some(origin) = self.pod_direction.default_deny() {
            to.append(None, vec![any_peer_rule(Action::Deny, origin)]);
        }
    }

    /// Adds a rule of a changed policy. A rule that the policy had at the same index keeps its position,
    /// because these policies are ordered by name.
    fn add_rule(&mut self, rule: &Rule, name: &Arc<RuleOrigin>) {
        if self.dropped.get(name).is_some_and(|before| before.has_same_effect(rule)) {
            self.dropped.remove(name);
        } else {
            self.added.extend(rule.peers.iter().flatten());
        }
    }

    fn cluster_policy(&mut self, policy: &ClusterNetworkPolicy) -> Vec<NamedRule> {
        let direction = self.pod_direction.direction;
        let rules = cluster_rules(policy, direction).iter().enumerate().map(|(index, rule)| {
            let peers = self.cluster_peers(&rule.peers);
            let ports = self.own(cluster_ports(rule));
            let action = match rule.action {
                ClusterAction::Accept => Action::Allow,
                ClusterAction::Deny => Action::Deny,
                ClusterAction::Pass => Action::Pass,
            };
            let (policy, index, name) = (cluster_name(policy), index as u32, rule.name.clone());
            let origin = RuleOrigin::Rule { policy, direction, index, name };
            (Rule { peers, ports, action, origin: 0 }, Arc::new(origin))
        });
        rules.collect()
    }

    fn network_policy(&mut self, policy: &NetworkPolicy) -> Vec<NamedRule> {
        let direction = self.pod_direction.direction;
        let rules = rules(policy, direction).into_iter().flatten().enumerate().map(|(index, rule)| {
            let peers = self.network_peers(&policy.namespace, &rule.peers);
            let ports = self.own(network_ports(&rule.ports));
            let (policy, index) = (network_name(policy), index as u32);
            let origin = RuleOrigin::Rule { policy, direction, index, name: None };
            (Rule { peers, ports, action: Action::Allow, origin: 0 }, Arc::new(origin))
        });
        rules.collect()
    }

    fn network_peers(&mut self, namespace: &str, peers: &Peers) -> Option<Vec<GroupId>> {
        let Peers::Any(peers) = peers else { return None };
        let groups = peers.iter().map(|peer| match peer {
            Peer::Pods { namespaces, pods } => {
                let namespaces = match namespaces {
                    Some(selector) => NamespaceScope::Matching(selector.clone()),
                    None => NamespaceScope::Named(namespace.to_owned()),
                };
                AddressGroup::Pods(PodSet { namespaces, pods: pods.clone() })
            }
            Peer::IpBlock(block) => AddressGroup::block(block),
        });
        Some(groups.map(&mut *self.group).collect())
    }

    fn cluster_peers(&mut self, peers: &[ClusterPeer]) -> Option<Vec<GroupId>> {
        if peers.contains(&ClusterPeer::Everyone) {
            return None;
        }
        let groups = peers.iter().filter_map(|peer| match peer {
            ClusterPeer::Pods(scope) => Some(AddressGroup::Pods(scope.into())),
            ClusterPeer::Network(cidr) => {
                Some(AddressGroup::block(&IpBlock { cidr: *cidr, except: Vec::new() }))
            }
            ClusterPeer::Nodes(selector) => Some(AddressGroup::Nodes(selector.clone())),
            // The compiler knows no address of a domain name: the peer matches nothing.
            ClusterPeer::DomainName(_) | ClusterPeer::Everyone => None,
        });
        Some(groups.map(&mut *self.group).collect())
    }

    /// Replaces names by port numbers if the pod is the destination. For egress the names refer to the peers.
    fn own(&self, ports: Option<Vec<PortTerm>>) -> Option<Vec<PortTerm>> {
        if self.pod_direction.direction == Direction::Egress {
            return ports;
        }
        let mut found = Vec::new();
        for term in ports? {
            let PortTerm::Named(name) = term else {
                found.push(term);
                continue;
            };
            let ports = self.pod_direction.pod.ports.iter().filter(|port| name.is_of(port));
            found.extend(ports.map(|port| PortTerm::Range {
                protocol: port.protocol,
                first: port.port,
                last: port.port,
            }));
        }
        Some(found)
    }
}

fn any_peer_rule(action: Action, origin: RuleOrigin) -> NamedRule {
    (Rule { peers: None, ports: None, action, origin: 0 }, Arc::new(origin))
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
