//! Group of a `NetworkPolicy`, and the resource that records it.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;

use super::cluster::{Cluster, Owner, port_numbers};
use super::groups::{Groups, Members};
use super::model::{
    KuryrNetPolicy, KuryrNetPolicySpec, Metadata, RecordedRule, Remote, RuleMatch, SecurityGroupRule, Service,
};
use super::ranges::Ranges;
use super::{ids, spec};
use crate::net::flow::Protocol;
use crate::policy::objects::{
    AssignedMetadata, IpBlock, NetworkPolicy, NetworkPolicyRule, Peer, Peers, Pod, PortMatch, Ports,
};
use crate::policy::{NamespaceScope, PodSet};
use crate::render::output::RenderError;
use crate::render::plan::Family;
use crate::tables::Direction;

/// Description of a group, as Kuryr writes it.
const GROUP_DESCRIPTION: &str = "Kuryr-Kubernetes NetPolicy SG";
/// Description of a rule, as Kuryr writes it.
pub(super) const RULE_DESCRIPTION: &str = "Kuryr-Kubernetes NetPolicy SG rule";

/// Directions of a policy.
pub(super) const DIRECTIONS: [Direction; 2] = [Direction::Ingress, Direction::Egress];

/// Rules of a policy in a direction; `None` if it does not isolate.
pub(super) fn rules(policy: &NetworkPolicy, direction: Direction) -> Option<&[NetworkPolicyRule]> {
    match direction {
        Direction::Ingress => policy.ingress.as_deref(),
        Direction::Egress => policy.egress.as_deref(),
    }
}

/// Pods that a policy selects.
pub(super) fn subject(policy: &NetworkPolicy) -> PodSet {
    PodSet { namespaces: NamespaceScope::Named(policy.namespace.clone()), pods: policy.pod_selector.clone() }
}

/// Pods of a peer, unless it is a block.
fn peer_set(policy: &NetworkPolicy, peer: &Peer) -> Option<PodSet> {
    let Peer::Pods { namespaces, pods } = peer else { return None };
    let namespaces = match namespaces {
        Some(selector) => NamespaceScope::Matching(selector.clone()),
        None => NamespaceScope::Named(policy.namespace.clone()),
    };
    Some(PodSet { namespaces, pods: pods.clone() })
}

/// Tests whether a policy treats the owners of a shared address alike in a direction. If not, a rule would have to match
/// the address for one of them alone.
pub(super) fn is_uniform(cluster: &Cluster, policy: &NetworkPolicy, direction: Direction) -> bool {
    let rules = rules(policy, direction).unwrap_or_default();
    let is_alike = |address: IpAddr, owners: &[Owner]| {
        rules.iter().all(|rule| {
            let peers = match &rule.peers {
                Peers::Everyone => [].iter(),
                Peers::Any(peers) => peers.iter(),
            };
            peers
                .into_iter()
                .all(|peer| all_equal(owners, |owner| matches(cluster, policy, peer, address, owner)))
                && named_ports(rule).all(|(name, protocol)| {
                    direction == Direction::Ingress
                        || all_equal(owners, |owner| match owner {
                            Owner::Pod(pod) => port_numbers(pod, name, protocol),
                            Owner::Node => Vec::new(),
                        })
                })
        })
    };
    cluster.shared.iter().all(|(address, owners)| is_alike(*address, owners))
}

fn all_equal<'o, T: PartialEq>(owners: &[Owner<'o>], of: impl Fn(Owner<'o>) -> T) -> bool {
    owners.windows(2).all(|pair| of(pair[0]) == of(pair[1]))
}

fn matches(cluster: &Cluster, policy: &NetworkPolicy, peer: &Peer, address: IpAddr, owner: Owner) -> bool {
    match (peer, owner) {
        (Peer::IpBlock(block), owner) => Cluster::block_has(block, address, owner),
        (Peer::Pods { .. }, Owner::Pod(pod)) => {
            peer_set(policy, peer).is_some_and(|set| cluster.is_in(pod, &set))
        }
        (Peer::Pods { .. }, Owner::Node) => false,
    }
}

fn named_ports(rule: &NetworkPolicyRule) -> impl Iterator<Item = (&str, Protocol)> {
    let ports = match &rule.ports {
        Ports::All => [].iter(),
        Ports::Any(ports) => ports.iter(),
    };
    ports.filter_map(|port| match port {
        PortMatch::Named { protocol, name } => Some((name.as_str(), *protocol)),
        PortMatch::Range { .. } => None,
    })
}

/// Policy on its way to a group.
pub(super) struct PolicyGroup<'a, 'g> {
    cluster: &'g Cluster<'a>,
    groups: &'g mut Groups<'a>,
    policy: &'a NetworkPolicy,
    /// Pods whose ports are attached to the group.
    attached: &'g [&'a Pod],
    id: String,
    name: String,
    rules: [Vec<RecordedRule>; 2],
    /// Places of the rules in their lists, by id.
    places: HashMap<String, usize>,
}

impl<'a, 'g> PolicyGroup<'a, 'g> {
    /// Adds the group of a policy, attaches its pods, and returns the resource. It records as well the rules for the
    /// directions in which the policy does not isolate: `open`, of another group, because another policy may.
    pub(super) fn add(
        cluster: &'g Cluster<'a>,
        groups: &'g mut Groups<'a>,
        policy: &'a NetworkPolicy,
        attached: &'g [&'a Pod],
        open: Vec<SecurityGroupRule>,
    ) -> Result<KuryrNetPolicy, RenderError> {
        let AssignedMetadata { uid, generation } = &policy.assigned;
        let of_names = || ids::uuid(&["policy", &policy.namespace, &policy.name]);
        let uid = uid.clone().unwrap_or_else(of_names);
        let name = ids::name("sg-", &policy.name);
        let mut tags = vec![format!("networkpolicy_uid={uid}")];
        tags.extend(generation.map(|generation| format!("networkpolicy_generation={generation}")));
        let key = ["group", &policy.namespace, &policy.name];
        let id = groups.add(&key, name.clone(), GROUP_DESCRIPTION, tags)?;
        attached.iter().for_each(|pod| groups.attach(&pod.name, &id));
        let (rules_of, places) = (<[Vec<RecordedRule>; 2]>::default(), HashMap::new());
        let mut group = PolicyGroup { cluster, groups, policy, attached, id, name, rules: rules_of, places };
        open.into_iter().for_each(|rule| group.record(rule, None, BTreeMap::new()));
        for direction in DIRECTIONS {
            for rule in rules(policy, direction).unwrap_or_default() {
                group.add_entry(direction, rule)?;
            }
        }
        Ok(group.resource(uid))
    }

    fn resource(self, uid: String) -> KuryrNetPolicy {
        let [ingress_sg_rules, egress_sg_rules] = self.rules;
        let annotations = [
            ("networkpolicy_name", self.policy.name.clone()),
            ("networkpolicy_namespace", self.policy.namespace.clone()),
            ("networkpolicy_uid", uid),
        ];
        KuryrNetPolicy {
            api_version: "openstack.org/v1".to_owned(),
            kind: "KuryrNetPolicy".to_owned(),
            metadata: Metadata {
                annotations: annotations.map(|(key, value)| (key.to_owned(), value)).into(),
                name: ids::name("np-", &self.policy.name),
                namespace: self.policy.namespace.clone(),
            },
            spec: KuryrNetPolicySpec {
                egress_sg_rules,
                ingress_sg_rules,
                policy_spec: spec::policy(self.policy),
                pod_selector: spec::selector(&self.policy.pod_selector),
                security_group_id: self.id,
                security_group_name: self.name,
            },
        }
    }

    /// Adds the product of the ports and peers of a rule.
    fn add_entry(&mut self, direction: Direction, rule: &'a NetworkPolicyRule) -> Result<(), RenderError> {
        let ports = match &rule.ports {
            Ports::All => return self.add_peers(direction, &rule.peers, None),
            Ports::Any(ports) => ports,
        };
        for port in ports {
            match port {
                PortMatch::Range { protocol, first, last } => {
                    let ports = Some((*first, *last)).filter(|ports| *ports != (0, u16::MAX));
                    self.add_peers(direction, &rule.peers, Some((*protocol, ports)))?;
                }
                PortMatch::Named { protocol, name } if direction == Direction::Ingress => {
                    self.add_own_ports(&rule.peers, name, *protocol)?;
                }
                PortMatch::Named { protocol, name } => self.add_peer_ports(&rule.peers, name, *protocol)?,
            }
        }
        Ok(())
    }

    fn add_peers(
        &mut self,
        direction: Direction,
        peers: &Peers,
        service: Service,
    ) -> Result<(), RenderError> {
        let id = self.id.clone();
        for (family, remote, namespace) in self.remotes(peers)? {
            let rule = RuleMatch { direction, family, service, remote };
            self.add_rule(&id, &rule, namespace, BTreeMap::new())?;
        }
        Ok(())
    }

    /// Adds rules for the ports with a name of the pods that the policy selects. Pods with another number, or without
    /// the port, must not have the rule: it belongs to a group of its own unless all pods agree.
    fn add_own_ports(&mut self, peers: &Peers, name: &str, protocol: Protocol) -> Result<(), RenderError> {
        let mut by_number: BTreeMap<u16, Vec<&'a Pod>> = BTreeMap::new();
        for &pod in self.attached {
            for number in port_numbers(pod, name, protocol) {
                by_number.entry(number).or_default().push(pod);
            }
        }
        let remotes = if by_number.is_empty() { Vec::new() } else { self.remotes(peers)? };
        for (number, pods) in by_number {
            let id = if pods.len() == self.attached.len() {
                self.id.clone()
            } else {
                self.port_group(name, protocol, number, &pods)?
            };
            let addresses = addresses(&pods);
            for (family, remote, namespace) in remotes.clone() {
                let service = Some((protocol, Some((number, number))));
                let rule = RuleMatch { direction: Direction::Ingress, family, service, remote };
                self.add_rule(&id, &rule, namespace, addresses.clone())?;
            }
        }
        Ok(())
    }

    /// Group of the policy's pods whose named port has this number.
    fn port_group(
        &mut self,
        name: &str,
        protocol: Protocol,
        number: u16,
        pods: &[&'a Pod],
    ) -> Result<String, RenderError> {
        let port = format!("{name}-{}-{number}", protocol.to_string().to_lowercase());
        let key = ["port", &self.policy.namespace, &self.policy.name, &port];
        let group_name = ids::name("sg-", &format!("{}-{port}", self.policy.name));
        let id = self.groups.add(&key, group_name, GROUP_DESCRIPTION, Vec::new())?;
        pods.iter().for_each(|pod| self.groups.attach(&pod.name, &id));
        Ok(id)
    }

    /// Adds rules for the ports with a name of the peers, each of which has numbers of its own.
    fn add_peer_ports(&mut self, peers: &Peers, name: &str, protocol: Protocol) -> Result<(), RenderError> {
        let everyone: [Option<&Peer>; 1] = [None];
        let peers: Vec<Option<&Peer>> = match peers {
            Peers::Everyone => everyone.into(),
            Peers::Any(peers) => peers.iter().map(Some).collect(),
        };
        let id = self.id.clone();
        for peer in peers {
            if let Some(Peer::IpBlock(block)) = peer {
                self.add_ports_in_block(block, name, protocol)?;
                continue;
            }
            let set = peer.and_then(|peer| peer_set(self.policy, peer));
            let pods = match &set {
                Some(set) => self.cluster.select(set),
                None => self.cluster.pods.values().copied().collect(),
            };
            let mut numbers: Vec<u16> =
                pods.iter().flat_map(|pod| port_numbers(pod, name, protocol)).collect();
            numbers.sort_unstable();
            numbers.dedup();
            for number in numbers {
                let port = Some((name.to_owned(), protocol, number));
                let members = Members { set: set.clone(), port };
                let (group, pods) = self.groups.members(self.cluster, &members)?;
                let addresses = addresses(&pods);
                for &family in &self.cluster.families {
                    let service = Some((protocol, Some((number, number))));
                    let remote = Remote::Group(group.clone());
                    let rule = RuleMatch { direction: Direction::Egress, family, service, remote };
                    self.add_rule(&id, &rule, namespace_of(set.as_ref()), addresses.clone())?;
                }
            }
        }
        Ok(())
    }

    /// Adds a rule for each address of a pod in a block whose port has the name.
    fn add_ports_in_block(
        &mut self,
        block: &IpBlock,
        name: &str,
        protocol: Protocol,
    ) -> Result<(), RenderError> {
        let id = self.id.clone();
        for &pod in self.cluster.pods.values() {
            let inside =
                pod.addresses.iter().filter(|address| Cluster::block_has(block, **address, Owner::Pod(pod)));
            for &address in inside {
                for number in port_numbers(pod, name, protocol) {
                    let rule = RuleMatch {
                        direction: Direction::Egress,
                        family: family_of(address),
                        service: Some((protocol, Some((number, number)))),
                        remote: Remote::Prefix(address.into()),
                    };
                    let addresses = [(address, pod.name.namespace.clone())].into();
                    self.add_rule(&id, &rule, None, addresses)?;
                }
            }
        }
        Ok(())
    }

    /// Peers as remotes of rules, with the namespace if there is one by name.
    fn remotes(&mut self, peers: &Peers) -> Result<Vec<(Family, Remote, Option<String>)>, RenderError> {
        let mut remotes = Vec::new();
        let Peers::Any(peers) = peers else {
            return Ok(self.cluster.families.iter().map(|&family| (family, Remote::Anyone, None)).collect());
        };
        for peer in peers {
            match peer {
                Peer::Pods { .. } => {
                    let set = peer_set(self.policy, peer);
                    let namespace = namespace_of(set.as_ref());
                    let (group, _) = self.groups.members(self.cluster, &Members { set, port: None })?;
                    let of_family = |&family| (family, Remote::Group(group.clone()), namespace.clone());
                    remotes.extend(self.cluster.families.iter().map(of_family));
                }
                Peer::IpBlock(block) => {
                    let family = family_of(block.cidr.addr());
                    let prefixes = self.prefixes(block, family).into_iter();
                    remotes.extend(prefixes.map(|prefix| (family, Remote::Prefix(prefix), None)));
                }
            }
        }
        Ok(remotes)
    }

    /// Prefixes that make up a block without its exceptions and without addresses that stand for unknown ones.
    fn prefixes(&self, block: &IpBlock, family: Family) -> Vec<IpNet> {
        if block.is_whole() {
            return vec![block.cidr];
        }
        let inside = |address: &&IpAddr| block.cidr.contains(*address);
        let placeholders = self.cluster.placeholders.iter().filter(inside).map(|&address| address.into());
        let mut except: Vec<(IpNet, bool)> =
            block.except.iter().copied().chain(placeholders).map(|prefix| (prefix.trunc(), true)).collect();
        except.sort_unstable();
        except.dedup();
        let whole = Ranges::of(&[(block.cidr.trunc(), true)]);
        whole.without(&Ranges::of(&except)).prefixes(family)
    }

    fn add_rule(
        &mut self,
        id: &str,
        rule: &RuleMatch,
        namespace: Option<String>,
        addresses: BTreeMap<IpAddr, String>,
    ) -> Result<(), RenderError> {
        let rule = self.groups.add_rule(id, rule, RULE_DESCRIPTION)?;
        self.record(rule, namespace, addresses);
        Ok(())
    }

    fn record(
        &mut self,
        rule: SecurityGroupRule,
        namespace: Option<String>,
        addresses: BTreeMap<IpAddr, String>,
    ) {
        let recorded = &mut self.rules[usize::from(rule.direction == Direction::Egress)];
        if let Some(&place) = self.places.get(&rule.id) {
            // Two entries of the policy match the same: of named ports the pods add up.
            let known = &mut recorded[place].remote_ip_prefixes;
            if !known.is_empty() {
                known.extend(addresses);
            }
            return;
        }
        self.places.insert(rule.id.clone(), recorded.len());
        recorded.push(RecordedRule { namespace, remote_ip_prefixes: addresses, security_group_rule: rule });
    }
}

/// Addresses of pods, with their namespaces.
fn addresses(pods: &[&Pod]) -> BTreeMap<IpAddr, String> {
    let of_pod =
        |pod: &&Pod| pod.addresses.iter().map(|&a| (a, pod.name.namespace.clone())).collect::<Vec<_>>();
    pods.iter().flat_map(of_pod).collect()
}

fn namespace_of(set: Option<&PodSet>) -> Option<String> {
    match &set?.namespaces {
        NamespaceScope::Named(name) => Some(name.clone()),
        NamespaceScope::Matching(_) => None,
    }
}

pub(super) fn family_of(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::V4 } else { Family::V6 }
}
