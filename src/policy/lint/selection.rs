//! Check of selectors: a policy or a peer selects no pod, or only pods to which no policy applies.

mod namespace_names;

pub(super) use namespace_names::check as check_namespace_names;

use std::net::Ipv4Addr;

use super::finding::{Check, LintFinding};
use super::objects::{LintObjects, peer_list, selects};
use crate::policy::display;
use crate::policy::evaluate::{AddressOwner, PeerAddress, cluster_tiers, isolation, selectors};
use crate::policy::objects::{ClusterPeer, LabelSelector, Peer, Peers, Pod, Requirement};
use crate::tables::{Direction, PolicyRef};
use namespace_names::misnamed;

/// Selector and its place.
struct Selector<'s> {
    policy: PolicyRef,
    path: String,
    /// Check that fails if the selector selects nothing.
    check: Check,
    /// Text of the selected pods.
    described: String,
    /// Selector of pods.
    pods: &'s LabelSelector,
}

/// Checks subjects of policies.
pub(super) fn check(objects: &LintObjects<'_>, found: &mut Vec<LintFinding>) {
    for policy in &objects.network {
        let labels = display::selector(&policy.pod_selector);
        let selector = Selector {
            policy: isolation::name(policy),
            path: "spec.podSelector".to_owned(),
            check: Check::SelectsNoPod,
            described: format!("none in namespace {} matches {labels}", policy.namespace),
            pods: &policy.pod_selector,
        };
        let pods = objects.pods.of_namespace(&policy.namespace, &policy.pod_selector);
        check_selection(objects, selector, pods, |pod| selects(policy, pod), found);
    }
    for policy in &objects.cluster {
        let selector = Selector {
            policy: cluster_tiers::name(policy),
            path: "spec.subject".to_owned(),
            check: Check::SelectsNoPod,
            described: format!("there are no {}", display::scope(&policy.subject)),
            pods: &policy.subject.pods,
        };
        check_selection(
            objects,
            selector,
            objects.pods.of_scope(&policy.subject),
            |pod| objects.evaluator.scope_selects(&policy.subject, pod),
            found,
        );
    }
}

/// Checks peers of rules.
pub(super) fn check_peers(objects: &LintObjects<'_>, found: &mut Vec<LintFinding>) {
    for direction in [Direction::Ingress, Direction::Egress] {
        network_peers(objects, direction, found);
        cluster_peers(objects, direction, found);
    }
}

fn network_peers(objects: &LintObjects<'_>, direction: Direction, found: &mut Vec<LintFinding>) {
    let list = peer_list(direction);
    for policy in &objects.network {
        for (index, rule) in isolation::rules(policy, direction).into_iter().flatten().enumerate() {
            let Peers::Any(peers) = &rule.peers else { continue };
            for (at, peer) in peers.iter().enumerate() {
                let Peer::Pods { namespaces, pods } = peer else { continue };
                if namespaces.as_ref().is_some_and(|namespaces| misnamed(objects, namespaces).is_some()) {
                    continue;
                }
                let namespaces = match namespaces {
                    Some(namespaces) => format!("namespaces {}", display::selector(namespaces)),
                    None => format!("namespace {}", policy.namespace),
                };
                let selector = Selector {
                    policy: isolation::name(policy),
                    path: format!("spec.{direction}[{index}].{list}[{at}]"),
                    check: Check::PeerSelectsNothing,
                    described: if pods.is_everything() {
                        format!("there are no pods in {namespaces}")
                    } else {
                        format!("there are no pods {} in {namespaces}", display::selector(pods))
                    },
                    pods,
                };
                let selects = |pod: &Pod| {
                    objects.evaluator.network_peer_matches(&policy.namespace, peer, &by_labels(pod))
                };
                let pods = objects.pods.of_peer(&policy.namespace, peer);
                check_selection(objects, selector, pods, selects, found);
            }
        }
    }
}

fn cluster_peers(objects: &LintObjects<'_>, direction: Direction, found: &mut Vec<LintFinding>) {
    let list = peer_list(direction);
    for policy in &objects.cluster {
        for (index, rule) in cluster_tiers::rules(policy, direction).iter().enumerate() {
            // One entry may contain several networks, so the index of the entry is unknown.
            let path = format!("spec.{direction}[{index}].{list}");
            for peer in &rule.peers {
                match peer {
                    ClusterPeer::Pods(scope) if !is_contradiction(&scope.namespaces) => {
                        let selector = Selector {
                            policy: cluster_tiers::name(policy),
                            path: path.clone(),
                            check: Check::PeerSelectsNothing,
                            described: format!("there are no {}", display::scope(scope)),
                            pods: &scope.pods,
                        };
                        check_selection(
                            objects,
                            selector,
                            objects.pods.of_scope(scope),
                            |pod| objects.evaluator.scope_selects(scope, pod),
                            found,
                        );
                    }
                    ClusterPeer::Nodes(nodes)
                        if !objects.nodes.is_empty()
                            && !objects.nodes.iter().any(|node| selectors::selects(nodes, &node.labels)) =>
                    {
                        found.push(LintFinding {
                            policy: cluster_tiers::name(policy).into(),
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

/// Adds a finding if a selector selects no pod. All that it selects are among `pods`.
fn check_selection<'a>(
    objects: &LintObjects<'a>,
    selector: Selector<'_>,
    mut pods: impl Iterator<Item = &'a Pod>,
    selects: impl Fn(&Pod) -> bool,
    found: &mut Vec<LintFinding>,
) {
    if pods.any(&selects) {
        return;
    }
    let Selector { policy, path, check, described, pods: wanted } = selector;
    let exempt: Vec<&&Pod> = objects.exempt.iter().filter(|pod| selects(pod)).collect();
    let unread = objects.unread_selected(&selects);
    let (check, message) = match exempt.as_slice() {
        [] if unread.is_none() && !objects.has_pods() => return,
        [] => match unread {
            Some(unread) => (check, format!("selects no pod that is read: {}", unread.advice())),
            None => {
                (check, format!("selects no pod: {described}{}", objects.pods.label_values().near(wanted)))
            }
        },
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
    found.push(LintFinding { policy: policy.into(), path, check, message });
}

/// Pod as a peer of a rule that names labels only.
fn by_labels(pod: &Pod) -> PeerAddress<'_> {
    PeerAddress { address: Ipv4Addr::UNSPECIFIED.into(), owner: AddressOwner::Pod(pod) }
}

/// Tests for a label that must be present and absent: the parser replaces a peer of an unknown kind by such a
/// selector, with a warning.
fn is_contradiction(selector: &LabelSelector) -> bool {
    selector.requirements.iter().any(|requirement| match requirement {
        Requirement::Exists { key } => {
            selector.requirements.contains(&Requirement::DoesNotExist { key: key.clone() })
        }
        _ => false,
    })
}
