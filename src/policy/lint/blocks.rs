//! Address blocks: an `except` that takes nothing out, and blocks that name pods by address.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Check, LintFinding, Scene, contain};
use crate::policy::objects::{IpBlock, NetworkPolicy, NetworkPolicyRule, Peer, Peers};
use crate::policy::oracle::isolation;
use crate::tables::Direction;

/// A block, and where it stands.
struct Placed<'a> {
    policy: &'a NetworkPolicy,
    rule: &'a NetworkPolicyRule,
    block: &'a IpBlock,
    path: String,
}

/// What an exception takes out, the same policy lets in by another block: an exception never denies.
pub(super) fn check_excepts(scene: &Scene<'_>, found: &mut Vec<LintFinding>) {
    for placed in placed(scene) {
        for (at, except) in placed.block.except.iter().enumerate() {
            let reason = covered_by_sibling(&placed, at, *except)
                .or_else(|| allowed_elsewhere(scene, &placed, *except));
            if let Some(reason) = reason {
                found.push(LintFinding {
                    policy: isolation::name(placed.policy),
                    path: format!("{}.except[{at}]", placed.path),
                    check: Check::ExceptWithoutEffect,
                    message: format!("{except} takes nothing out: {reason}"),
                });
            }
        }
    }
}

fn covered_by_sibling(placed: &Placed<'_>, at: usize, except: IpNet) -> Option<String> {
    let mut siblings = placed.block.except.iter().enumerate();
    // Of two that are the same the later one is superfluous.
    let (_, sibling) = siblings.find(|(other, sibling)| {
        *other != at && sibling.contains(&except) && (**sibling != except || *other < at)
    })?;
    Some(format!("the exception {sibling} holds it already"))
}

fn allowed_elsewhere(scene: &Scene<'_>, placed: &Placed<'_>, except: IpNet) -> Option<String> {
    let directions = [Direction::Ingress, Direction::Egress];
    let direction =
        directions.into_iter().find(|direction| placed.path.starts_with(&format!("spec.{direction}")))?;
    for policy in &scene.network {
        let same_pods = policy.namespace == placed.policy.namespace
            && contain::selector(&placed.policy.pod_selector, &policy.pod_selector);
        if !same_pods {
            continue;
        }
        for (index, rule) in isolation::rules(policy, direction).into_iter().flatten().enumerate() {
            if lets_in(rule, placed, except) {
                return Some(format!("{} {direction}[{index}] allows it", isolation::name(policy)));
            }
        }
    }
    None
}

/// Whether a rule matches all addresses of the exception on the ports of the exception's rule.
fn lets_in(rule: &NetworkPolicyRule, placed: &Placed<'_>, except: IpNet) -> bool {
    let ports = NetworkPolicyRule { peers: Peers::Everyone, ports: placed.rule.ports.clone() };
    let own = NetworkPolicyRule { peers: Peers::Everyone, ports: rule.ports.clone() };
    let holds = match &rule.peers {
        Peers::Everyone => true,
        Peers::Any(peers) => peers.iter().any(|peer| match peer {
            Peer::IpBlock(block) => contain::block_holds(except, block),
            Peer::Pods { .. } => false,
        }),
    };
    holds && contain::network_rule(&ports, &own)
}

/// Pods come and go with other addresses; a selector would follow them.
pub(super) fn check_pod_network(scene: &Scene<'_>, found: &mut Vec<LintFinding>) {
    let addresses: Vec<IpAddr> = scene.pods.iter().flat_map(|pod| pod.addresses.iter().copied()).collect();
    let networks: Vec<IpNet> = [true, false].iter().filter_map(|is_v4| common(&addresses, *is_v4)).collect();
    for placed in placed(scene) {
        let cidr = placed.block.cidr;
        let Some(network) = networks.iter().find(|network| network.contains(&cidr)) else { continue };
        if let Some(pod) = scene.pods.iter().find(|pod| pod.addresses.iter().any(|a| cidr.contains(a))) {
            found.push(LintFinding {
                policy: isolation::name(placed.policy),
                path: format!("{}.cidr", placed.path),
                check: Check::BlockInPodNetwork,
                message: format!(
                    "{cidr} lies in the pod network (pods have addresses in {network}) and holds pod {}: select pods by label",
                    pod.name
                ),
            });
        }
    }
}

/// The longest prefix that holds all addresses of a family.
fn common(addresses: &[IpAddr], is_v4: bool) -> Option<IpNet> {
    let mut of_family = addresses.iter().filter(|address| address.is_ipv4() == is_v4);
    let mut common = IpNet::from(*of_family.next()?);
    for address in of_family {
        while !common.contains(address) {
            common = common.supernet()?;
        }
    }
    Some(common)
}

fn placed<'a>(scene: &Scene<'a>) -> Vec<Placed<'a>> {
    let mut found = Vec::new();
    for &policy in &scene.network {
        for (direction, list) in [(Direction::Ingress, "from"), (Direction::Egress, "to")] {
            for (index, rule) in isolation::rules(policy, direction).into_iter().flatten().enumerate() {
                let Peers::Any(peers) = &rule.peers else { continue };
                for (at, peer) in peers.iter().enumerate() {
                    if let Peer::IpBlock(block) = peer {
                        let path = format!("spec.{direction}[{index}].{list}[{at}].ipBlock");
                        found.push(Placed { policy, rule, block, path });
                    }
                }
            }
        }
    }
    found
}
