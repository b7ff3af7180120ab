//! Address blocks: an `except` that takes nothing out, a block of which nothing is left, and blocks that name pods by
//! address.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;

use super::prefixes::Prefixes;
use super::{Check, LintFinding, Scene, contain};
use crate::policy::objects::{IpBlock, NetworkPolicy, NetworkPolicyRule, Peer, Peers};
use crate::policy::oracle::isolation;
use crate::tables::Direction;

/// A rule of a policy, by their indices.
type RuleAt = (usize, usize);

/// A block, and where it stands.
struct Placed<'a> {
    policy: &'a NetworkPolicy,
    rule: &'a NetworkPolicyRule,
    block: &'a IpBlock,
    at: RuleAt,
    path: String,
}

impl Placed<'_> {
    fn finding(&self, check: Check, field: &str, message: String) -> LintFinding {
        let path = format!("{}{field}", self.path);
        LintFinding { policy: isolation::name(self.policy), path, check, message }
    }
}

/// Blocks whose exceptions leave nothing.
pub(super) fn check_empty(scene: &Scene<'_>, found: &mut Vec<LintFinding>) {
    for direction in [Direction::Ingress, Direction::Egress] {
        for placed in placed(scene, direction) {
            let cidr = placed.block.cidr;
            if IpNet::aggregate(&placed.block.except).contains(&cidr) {
                let message = format!("holds no address: its exceptions take out all of {cidr}");
                found.push(placed.finding(Check::EmptyBlock, "", message));
            }
        }
    }
}

/// What an exception takes out, the same policy lets in by another block: an exception never denies.
pub(super) fn check_excepts(scene: &Scene<'_>, found: &mut Vec<LintFinding>) {
    for direction in [Direction::Ingress, Direction::Egress] {
        let placed = placed(scene, direction);
        let mut rules = Rules::of(scene, direction, &placed);
        for placed in &placed {
            let siblings = siblings(&placed.block.except);
            for (at, (except, sibling)) in placed.block.except.iter().zip(siblings).enumerate() {
                let reason = match sibling {
                    Some(sibling) => Some(format!("the exception {sibling} holds it already")),
                    None => rules.allowing(placed, *except).map(|(policy, index)| {
                        format!("{} {direction}[{index}] allows it", isolation::name(scene.network[policy]))
                    }),
                };
                if let Some(reason) = reason {
                    let message = format!("{except} takes nothing out: {reason}");
                    found.push(placed.finding(
                        Check::ExceptWithoutEffect,
                        &format!(".except[{at}]"),
                        message,
                    ));
                }
            }
        }
    }
}

/// For each exception another one that holds it. Of two that are the same the later one is superfluous.
fn siblings(excepts: &[IpNet]) -> Vec<Option<IpNet>> {
    let mut order: Vec<usize> = (0..excepts.len()).collect();
    // A prefix comes after those around it.
    order.sort_unstable_by_key(|&at| (excepts[at], at));
    let mut open: Vec<IpNet> = Vec::new();
    let mut found = vec![None; excepts.len()];
    for at in order {
        while open.pop_if(|top| !top.contains(&excepts[at])).is_some() {}
        found[at] = open.last().copied();
        open.push(excepts[at]);
    }
    found
}

/// The rules of a direction, for asking which of them lets in a prefix.
struct Rules<'a> {
    network: &'a [&'a NetworkPolicy],
    direction: Direction,
    /// Rules for everyone, by namespace.
    of_everyone: HashMap<&'a str, Vec<RuleAt>>,
    /// Blocks by namespace and `cidr`, with what they leave out.
    blocks: HashMap<(&'a str, IpNet), Vec<(RuleAt, Prefixes)>>,
    /// Lengths of the `cidr`s.
    lengths: BTreeSet<u8>,
    /// Whether the one rule is for all pods and ports of the other.
    covers: HashMap<(RuleAt, RuleAt), bool>,
}

impl<'a> Rules<'a> {
    fn of(scene: &'a Scene<'a>, direction: Direction, placed: &[Placed<'a>]) -> Rules<'a> {
        let mut rules = Rules {
            network: &scene.network,
            direction,
            of_everyone: HashMap::new(),
            blocks: HashMap::new(),
            lengths: BTreeSet::new(),
            covers: HashMap::new(),
        };
        for (at, policy) in scene.network.iter().enumerate() {
            for (index, rule) in isolation::rules(policy, direction).into_iter().flatten().enumerate() {
                if rule.peers == Peers::Everyone {
                    rules.of_everyone.entry(&policy.namespace).or_default().push((at, index));
                }
            }
        }
        for placed in placed {
            let key = (placed.policy.namespace.as_str(), placed.block.cidr);
            let holes = Prefixes::of(&placed.block.except);
            rules.blocks.entry(key).or_default().push((placed.at, holes));
            rules.lengths.insert(placed.block.cidr.prefix_len());
        }
        rules
    }

    /// The first rule that matches all addresses of an exception, for the pods and on the ports of the exception's rule.
    fn allowing(&mut self, placed: &Placed<'_>, except: IpNet) -> Option<RuleAt> {
        let Rules { network, direction, of_everyone, blocks, lengths, covers } = self;
        let mut covers = |at: RuleAt| {
            let judged = covers.entry((at, placed.at));
            *judged.or_insert_with(|| {
                let policy = network[at.0];
                let rule =
                    &isolation::rules(policy, *direction).into_iter().flatten().collect::<Vec<_>>()[at.1];
                contain::selector(&placed.policy.pod_selector, &policy.pod_selector)
                    && contain::ports(&placed.rule.ports, &rule.ports)
            })
        };
        let namespace = placed.policy.namespace.as_str();
        let everyone = of_everyone.get(namespace).into_iter().flatten().copied();
        let mut found: Option<RuleAt> = None;
        for at in everyone {
            if found.is_none_or(|found| at < found) && covers(at) {
                found = Some(at);
            }
        }
        for &length in lengths.range(..=except.prefix_len()) {
            let around = IpNet::new_assert(except.addr(), length).trunc();
            for (at, holes) in blocks.get(&(namespace, around)).into_iter().flatten() {
                if found.is_none_or(|found| *at < found) && !holes.overlap(except) && covers(*at) {
                    found = Some(*at);
                }
            }
        }
        found
    }
}

/// Pods come and go with other addresses; a selector would follow them.
pub(super) fn check_pod_network(scene: &Scene<'_>, found: &mut Vec<LintFinding>) {
    let addresses: Vec<IpAddr> = scene.pods.iter().flat_map(|pod| pod.addresses.iter().copied()).collect();
    let networks: Vec<IpNet> = [true, false].iter().filter_map(|is_v4| common(&addresses, *is_v4)).collect();
    for placed in
        [Direction::Ingress, Direction::Egress].iter().flat_map(|direction| placed(scene, *direction))
    {
        let cidr = placed.block.cidr;
        let Some(network) = networks.iter().find(|network| network.contains(&cidr)) else { continue };
        if let Some(pod) = scene.pods.iter().find(|pod| pod.addresses.iter().any(|a| cidr.contains(a))) {
            let message = format!(
                "{cidr} lies in the pod network (pods have addresses in {network}) and holds pod {}: select pods by label",
                pod.name
            );
            found.push(placed.finding(Check::BlockInPodNetwork, ".cidr", message));
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

fn placed<'a>(scene: &Scene<'a>, direction: Direction) -> Vec<Placed<'a>> {
    let list = super::peer_list(direction);
    let mut found = Vec::new();
    for (number, &policy) in scene.network.iter().enumerate() {
        for (index, rule) in isolation::rules(policy, direction).into_iter().flatten().enumerate() {
            let Peers::Any(peers) = &rule.peers else { continue };
            for (at, peer) in peers.iter().enumerate() {
                if let Peer::IpBlock(block) = peer {
                    let path = format!("spec.{direction}[{index}].{list}[{at}].ipBlock");
                    found.push(Placed { policy, rule, block, at: (number, index), path });
                }
            }
        }
    }
    found
}
