//! A policy or a peer that selects no pod, or none that policy sees.

use std::net::Ipv4Addr;

use super::{Check, LintFinding, Scene, peer_list};
use crate::policy::display;
use crate::policy::evaluate::{AddressOwner, PeerAddress, cluster_tiers, isolation, selectors};
use crate::policy::objects::{ClusterPeer, LabelSelector, Peer, Peers, Pod, Requirement};
use crate::tables::{Direction, PolicyRef};

/// A selector in its place.
struct Selector {
    policy: PolicyRef,
    path: String,
    /// The check that fails where it selects nothing at all.
    check: Check,
    /// Selected pods in words.
    pods: String,
}

/// Subjects of policies.
pub(super) fn check(scene: &Scene<'_>, found: &mut Vec<LintFinding>) {
    for policy in &scene.network {
        let labels = display::selector(&policy.pod_selector);
        let selector = Selector {
            policy: isolation::name(policy),
            path: "spec.podSelector".to_owned(),
            check: Check::SelectsNoPod,
            pods: format!("none in namespace {} matches {labels}", policy.namespace),
        };
        let selects = |pod: &Pod| {
            pod.name.namespace == policy.namespace && selectors::selects(&policy.pod_selector, &pod.labels)
        };
        look(scene, selector, selects, found);
    }
    for policy in &scene.cluster {
        let selector = Selector {
            policy: cluster_tiers::name(policy),
            path: "spec.subject".to_owned(),
            check: Check::SelectsNoPod,
            pods: format!("there are no {}", display::scope(&policy.subject)),
        };
        look(scene, selector, |pod| scene.oracle.scope_holds(&policy.subject, pod), found);
    }
}

/// Peers of rules.
pub(super) fn check_peers(scene: &Scene<'_>, found: &mut Vec<LintFinding>) {
    for direction in [Direction::Ingress, Direction::Egress] {
        network_peers(scene, direction, found);
        cluster_peers(scene, direction, found);
    }
}

fn network_peers(scene: &Scene<'_>, direction: Direction, found: &mut Vec<LintFinding>) {
    let list = peer_list(direction);
    for policy in &scene.network {
        for (index, rule) in isolation::rules(policy, direction).into_iter().flatten().enumerate() {
            let Peers::Any(peers) = &rule.peers else { continue };
            for (at, peer) in peers.iter().enumerate() {
                let Peer::Pods { namespaces, pods } = peer else { continue };
                let namespaces = match namespaces {
                    Some(namespaces) => format!("namespaces {}", display::selector(namespaces)),
                    None => format!("namespace {}", policy.namespace),
                };
                let selector = Selector {
                    policy: isolation::name(policy),
                    path: format!("spec.{direction}[{index}].{list}[{at}]"),
                    check: Check::PeerSelectsNothing,
                    pods: format!("there are no pods {} in {namespaces}", display::selector(pods)),
                };
                let selects =
                    |pod: &Pod| scene.oracle.network_peer_matches(&policy.namespace, peer, &by_labels(pod));
                look(scene, selector, selects, found);
            }
        }
    }
}

fn cluster_peers(scene: &Scene<'_>, direction: Direction, found: &mut Vec<LintFinding>) {
    let list = peer_list(direction);
    for policy in &scene.cluster {
        for (index, rule) in cluster_tiers::rules(policy, direction).iter().enumerate() {
            // One entry may name several networks: what is left of the list does not say which entry it was.
            let path = format!("spec.{direction}[{index}].{list}");
            for peer in &rule.peers {
                match peer {
                    ClusterPeer::Pods(scope) if !is_contradiction(&scope.namespaces) => {
                        let selector = Selector {
                            policy: cluster_tiers::name(policy),
                            path: path.clone(),
                            check: Check::PeerSelectsNothing,
                            pods: format!("there are no {}", display::scope(scope)),
                        };
                        look(scene, selector, |pod| scene.oracle.scope_holds(scope, pod), found);
                    }
                    ClusterPeer::Nodes(nodes)
                        if !scene.nodes.is_empty()
                            && !scene.nodes.iter().any(|node| selectors::selects(nodes, &node.labels)) =>
                    {
                        found.push(LintFinding {
                            policy: cluster_tiers::name(policy),
                            path: path.clone(),
                            check: Check::PeerSelectsNothing,
                            message: format!("selects no node: none matches {}", display::selector(nodes)),
                        });
                    }
                    _ => {}
                }
            }
        }
    }
}

fn look(scene: &Scene<'_>, selector: Selector, selects: impl Fn(&Pod) -> bool, found: &mut Vec<LintFinding>) {
    if scene.pods.iter().any(|pod| selects(pod)) {
        return;
    }
    let Selector { policy, path, check, pods } = selector;
    let unseen: Vec<&&Pod> = scene.unseen.iter().filter(|pod| selects(pod)).collect();
    let (check, message) = match unseen.as_slice() {
        [] => (check, format!("selects no pod: {pods}")),
        [first, others @ ..] => {
            let why = if first.host_network { "is on the host's network" } else { "has finished" };
            let others = match others.len() {
                0 => String::new(),
                more => format!(", and {more} more are on it or have finished"),
            };
            let message = format!("selects no pod that policy sees: pod {} {why}{others}", first.name);
            (Check::HostNetworkOrFinished, message)
        }
    };
    found.push(LintFinding { policy, path, check, message });
}

/// A pod as a peer of a rule that names labels only.
fn by_labels(pod: &Pod) -> PeerAddress<'_> {
    PeerAddress { address: Ipv4Addr::UNSPECIFIED.into(), holder: AddressOwner::Pod(pod) }
}

/// Whether a label is to be there and not there: so the reader writes a peer of an unknown kind, with a warning.
fn is_contradiction(selector: &LabelSelector) -> bool {
    selector.requirements.iter().any(|requirement| match requirement {
        Requirement::Exists { key } => {
            selector.requirements.contains(&Requirement::DoesNotExist { key: key.clone() })
        }
        _ => false,
    })
}
