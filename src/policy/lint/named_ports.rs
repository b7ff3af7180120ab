//! Check of named ports: no destination pod has the port, or the rule applies to addresses only. Such an
//! entry matches nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::finding::{Check, LintFinding};
use super::objects::{LintObjects, selects};
use crate::net::flow::Protocol;
use crate::policy::evaluate::{AddressOwner, PeerAddress, cluster_tiers, isolation};
use crate::policy::objects::{
    ClusterPeer, ClusterPort, NetworkPolicyRule, Peer, Peers, Pod, PortMatch, Ports,
};
use crate::tables::{Direction, PolicyRef};

pub(super) fn check(objects: &LintObjects<'_>, found: &mut Vec<LintFinding>) {
    for direction in [Direction::Ingress, Direction::Egress] {
        for policy in &objects.network {
            for (index, rule) in isolation::rules(policy, direction).into_iter().flatten().enumerate() {
                let destination = |pod: &Pod| match direction {
                    Direction::Ingress => selects(policy, pod),
                    Direction::Egress => network_peers_hold(objects, &policy.namespace, rule, pod),
                };
                let is_of_addresses = direction == Direction::Egress && names_no_pod(&rule.peers);
                let Ports::Any(ports) = &rule.ports else { continue };
                for (at, port) in ports.iter().enumerate() {
                    if let PortMatch::Named { protocol, name } = port {
                        let path = format!("spec.{direction}[{index}].ports[{at}].port");
                        let asked = (Some(*protocol), name.as_str());
                        let named = Named { policy: isolation::name(policy), path, asked, is_of_addresses };
                        let pods = match direction {
                            Direction::Ingress => {
                                Box::new(objects.pods.of_namespace(&policy.namespace, &policy.pod_selector))
                            }
                            Direction::Egress => objects.pods.of_peers(&policy.namespace, &rule.peers),
                        };
                        check_selection(named, pods.filter(|pod| destination(pod)), found);
                    }
                }
            }
        }
        for policy in &objects.cluster {
            for (index, rule) in cluster_tiers::rules(policy, direction).iter().enumerate() {
                let destination = |pod: &Pod| match direction {
                    Direction::Ingress => objects.evaluator.scope_selects(&policy.subject, pod),
                    Direction::Egress => cluster_peers_hold(objects, &rule.peers, pod),
                };
                for (at, port) in rule.ports.iter().flatten().enumerate() {
                    if let ClusterPort::Named { protocol, name } = port {
                        let path = format!("spec.{direction}[{index}].protocols[{at}]");
                        let asked = (*protocol, name.as_str());
                        let policy = cluster_tiers::name(policy);
                        check_selection(
                            // A rule with peers that are no pods has no named port.
                            Named { policy, path, asked, is_of_addresses: false },
                            objects.pods.all().filter(|pod| destination(pod)),
                            found,
                        );
                    }
                }
            }
        }
    }
}

/// Named port and its place.
struct Named<'a> {
    policy: PolicyRef,
    path: String,
    asked: (Option<Protocol>, &'a str),
    /// Indicates that no peer of the rule selects pods.
    is_of_addresses: bool,
}

fn names_no_pod(peers: &Peers) -> bool {
    match peers {
        Peers::Everyone => false,
        Peers::Any(peers) => peers.iter().all(|peer| matches!(peer, Peer::IpBlock(_))),
    }
}

fn check_selection<'a>(
    named: Named<'_>,
    destinations: impl Iterator<Item = &'a Pod>,
    found: &mut Vec<LintFinding>,
) {
    let Named { policy, path, asked: (protocol, name), is_of_addresses } = named;
    let mut destinations = destinations.peekable();
    if destinations.peek().is_none() {
        if is_of_addresses {
            let message = format!(
                "matches nothing: only pods have ports with names, and this rule is about addresses: write the number of {name:?}"
            );
            found.push(LintFinding {
                policy: policy.into(),
                path,
                check: Check::NamedPortOfAddresses,
                message,
            });
        }
        return;
    }
    let has = |pod: &Pod, protocol: Option<Protocol>| {
        pod.ports.iter().any(|port| {
            port.name.as_deref() == Some(name) && protocol.is_none_or(|protocol| protocol == port.protocol)
        })
    };
    let mut other = false;
    for pod in destinations {
        if has(pod, protocol) {
            return;
        }
        other |= has(pod, None);
    }
    let protocol = protocol.map(|protocol| format!("{protocol} ")).unwrap_or_default();
    let hint = if other { " (one of another protocol is there)" } else { "" };
    let message = format!("matches nothing: no destination pod has a {protocol}port named {name:?}{hint}");
    found.push(LintFinding { policy: policy.into(), path, check: Check::NamedPortMissing, message });
}

/// Tests whether the peers of a rule match a pod.
pub(super) fn network_peers_hold(
    objects: &LintObjects<'_>,
    namespace: &str,
    rule: &NetworkPolicyRule,
    pod: &Pod,
) -> bool {
    ends(pod).any(|end| objects.evaluator.network_peers_match(namespace, &rule.peers, &end))
}

/// Tests whether the peers of a cluster-wide rule match a pod.
pub(super) fn cluster_peers_hold(objects: &LintObjects<'_>, peers: &[ClusterPeer], pod: &Pod) -> bool {
    ends(pod).any(|end| objects.evaluator.cluster_peers_match(peers, &end))
}

/// Pod as a peer, with each of its addresses. A pod without an address matches by labels and by whole blocks
/// only.
fn ends(pod: &Pod) -> impl Iterator<Item = PeerAddress<'_>> {
    let any = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let waiting = any.into_iter().filter(|_| pod.addresses.is_empty());
    let addresses = pod.addresses.iter().copied().chain(waiting);
    addresses.map(move |address| PeerAddress { address, owner: AddressOwner::Pod(pod) })
}
