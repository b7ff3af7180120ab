//! Checks of `ipBlock`: exceptions without effect, empty blocks, and blocks that contain pods.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;

use super::finding::{Check, LintFinding};
use super::objects::{LintObjects, peer_list};
use super::subsumption::{self, Prefixes};
use crate::policy::evaluate::isolation;
use crate::policy::objects::{IpBlock, NetworkPolicy, NetworkPolicyRule, Peer, Peers, Pod, Service};
use crate::tables::{Direction, PodName};

/// Shortest prefix of a block that may be meant for Services: that of the widest networks of Services in use.
const SHORTEST_OF_SERVICES_V4: u8 = 12;
const SHORTEST_OF_SERVICES_V6: u8 = 64;

/// Rule, by the indices of its policy and of itself.
type RuleAt = (usize, usize);

/// Block and its place.
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
        LintFinding { policy: isolation::name(self.policy).into(), path, check, message }
    }
}

/// Reports blocks whose exceptions leave no address.
pub(super) fn check_empty(objects: &LintObjects<'_>, found: &mut Vec<LintFinding>) {
    for direction in [Direction::Ingress, Direction::Egress] {
        for placed in placed(objects, direction) {
            let cidr = placed.block.cidr;
            if IpNet::aggregate(&placed.block.except).contains(&cidr) {
                let message = format!("holds no address: its exceptions take out all of {cidr}");
                found.push(placed.finding(Check::EmptyBlock, "", message));
            }
        }
    }
}

/// Reports exceptions whose addresses another block of the same policy allows: an exception never denies.
pub(super) fn check_excepts(objects: &LintObjects<'_>, found: &mut Vec<LintFinding>) {
    for direction in [Direction::Ingress, Direction::Egress] {
        let blocks = Blocks::of(placed(objects, direction));
        for of_rule in blocks.placed.chunk_by(|a, b| a.at == b.at) {
            if of_rule.iter().any(|placed| !placed.block.except.is_empty()) {
                let allowing = Allowing::of(objects, direction, &blocks, &of_rule[0]);
                of_rule.iter().for_each(|placed| check_block(objects, direction, &allowing, placed, found));
            }
        }
    }
}

fn check_block(
    objects: &LintObjects<'_>,
    direction: Direction,
    allowing: &Allowing<'_>,
    placed: &Placed<'_>,
    found: &mut Vec<LintFinding>,
) {
    let siblings = siblings(&placed.block.except);
    for (at, (except, sibling)) in placed.block.except.iter().zip(siblings).enumerate() {
        let reason = match sibling {
            Some(sibling) => Some(format!("the exception {sibling} holds it already")),
            None => allowing.first(*except).map(|(policy, index)| {
                format!("{} {direction}[{index}] allows it", isolation::name(objects.network[policy]))
            }),
        };
        if let Some(reason) = reason {
            let message = format!("{except} takes nothing out: {reason}");
            found.push(placed.finding(Check::ExceptWithoutEffect, &format!(".except[{at}]"), message));
        }
    }
}

/// Finds another exception that contains each one. Of two equal exceptions the later one is superfluous.
fn siblings(excepts: &[IpNet]) -> Vec<Option<IpNet>> {
    let mut order: Vec<usize> = (0..excepts.len()).collect();
    // A prefix sorts after the prefixes that contain it.
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

/// Blocks of a direction.
struct Blocks<'a> {
    placed: Vec<Placed<'a>>,
    /// Exceptions of each block.
    holes: Vec<Prefixes>,
}

impl<'a> Blocks<'a> {
    fn of(placed: Vec<Placed<'a>>) -> Blocks<'a> {
        let holes = placed.iter().map(|placed| Prefixes::of(&placed.block.except)).collect();
        Blocks { placed, holes }
    }

    /// Blocks of a policy, with their exceptions.
    fn of_policy(&self, policy: usize) -> impl Iterator<Item = (&Placed<'a>, &Prefixes)> {
        let [first, end] =
            [policy, policy + 1].map(|policy| self.placed.partition_point(|placed| placed.at.0 < policy));
        self.placed[first..end].iter().zip(&self.holes[first..end])
    }
}

/// Rules that apply to all pods and ports of one rule, itself included, indexed by prefix.
struct Allowing<'a> {
    /// First rule for every peer.
    any_peer: Option<RuleAt>,
    /// Rules by the `cidr` of their blocks, with the exceptions of these.
    blocks: HashMap<IpNet, Vec<(RuleAt, &'a Prefixes)>>,
    /// Lengths of the `cidr`s.
    lengths: BTreeSet<u8>,
}

impl<'a> Allowing<'a> {
    fn of(
        objects: &LintObjects<'_>,
        direction: Direction,
        blocks: &'a Blocks<'_>,
        own: &Placed<'_>,
    ) -> Allowing<'a> {
        let covers = |policy: &NetworkPolicy, rule: &NetworkPolicyRule| {
            subsumption::selector(&own.policy.pod_selector, &policy.pod_selector)
                && subsumption::ports(&own.rule.ports, &rule.ports)
        };
        let covering = objects.policies.may_cover(own.policy);
        let rules = covering.iter().flat_map(|&at| {
            let policy = objects.network[at];
            let rules = isolation::rules(policy, direction).into_iter().flatten().enumerate();
            rules.map(move |(index, rule)| ((at, index), policy, rule))
        });
        let mut of_any_peer = rules.filter(|(_, _, rule)| rule.peers == Peers::Everyone);
        let any_peer = of_any_peer.find(|(_, policy, rule)| covers(policy, rule)).map(|(at, ..)| at);
        let mut allowing = Allowing { any_peer, blocks: HashMap::new(), lengths: BTreeSet::new() };
        for (placed, holes) in covering.iter().flat_map(|&policy| blocks.of_policy(policy)) {
            if covers(placed.policy, placed.rule) {
                let cidr = placed.block.cidr;
                allowing.blocks.entry(cidr).or_default().push((placed.at, holes));
                allowing.lengths.insert(cidr.prefix_len());
            }
        }
        allowing
    }

    /// First rule that matches all addresses of a prefix.
    fn first(&self, prefix: IpNet) -> Option<RuleAt> {
        let around = self.lengths.range(..=prefix.prefix_len());
        let around = around.map(|&length| IpNet::new_assert(prefix.addr(), length).trunc());
        let blocks = around.filter_map(|cidr| self.blocks.get(&cidr)).flatten();
        let matching = blocks.filter(|(_, holes)| !holes.overlap(prefix)).map(|(at, _)| *at);
        matching.chain(self.any_peer).min()
    }
}

/// Reports blocks within the pod network. Addresses of pods change; a selector follows them.
pub(super) fn check_pod_network<'a>(objects: &LintObjects<'a>, found: &mut Vec<LintFinding>) {
    let of_pod = |pod: &'a Pod| pod.addresses.iter().map(move |address| (*address, &pod.name));
    let mut pods: Vec<(IpAddr, &PodName)> = objects.pods.all().flat_map(of_pod).collect();
    pods.sort_unstable();
    let addresses: Vec<IpAddr> = pods.iter().map(|(address, _)| *address).collect();
    let networks: Vec<IpNet> = [true, false].iter().filter_map(|is_v4| common(&addresses, *is_v4)).collect();
    for placed in
        [Direction::Ingress, Direction::Egress].iter().flat_map(|direction| placed(objects, *direction))
    {
        let cidr = placed.block.cidr;
        let Some(network) = networks.iter().find(|network| network.contains(&cidr)) else { continue };
        let first = addresses.partition_point(|address| *address < cidr.network());
        if let Some((_, pod)) = pods.get(first).filter(|(address, _)| cidr.contains(address)) {
            let message = format!(
                "{cidr} lies in the pod network (pods have addresses in {network}) and holds pod {pod}: select pods by label"
            );
            found.push(placed.finding(Check::BlockInPodNetwork, ".cidr", message));
        }
    }
}

/// Reports blocks of egress about as large as a network of Services or smaller that contain the virtual address of one, and
/// the address of no pod or backend: policy sees the backends of a Service.
pub(super) fn check_services(objects: &LintObjects<'_>, found: &mut Vec<LintFinding>) {
    let mut services: Vec<(IpAddr, &Service)> = Vec::new();
    for service in &objects.services {
        services.extend(service.cluster_ips.iter().map(|address| (*address, *service)));
    }
    if services.is_empty() {
        return;
    }
    services.sort_unstable_by_key(|(address, _)| *address);
    let of_slices = objects.slices.iter().flat_map(|slice| &slice.endpoints).map(|endpoint| endpoint.address);
    let mut backends: Vec<IpAddr> = objects.pods.all().flat_map(|pod| &pod.addresses).copied().collect();
    backends.extend(of_slices);
    backends.sort_unstable();
    for placed in placed(objects, Direction::Egress) {
        let IpBlock { cidr, except } = placed.block;
        let shortest = if cidr.addr().is_ipv4() { SHORTEST_OF_SERVICES_V4 } else { SHORTEST_OF_SERVICES_V6 };
        let first = backends.partition_point(|address| *address < cidr.network());
        if cidr.prefix_len() < shortest || backends.get(first).is_some_and(|address| cidr.contains(address)) {
            continue;
        }
        let first = services.partition_point(|(address, _)| *address < cidr.network());
        let holes = Prefixes::of(except);
        let mut inside = services[first..].iter().take_while(|(address, _)| cidr.contains(address));
        if let Some((address, service)) = inside.find(|(address, _)| !holes.hold(IpNet::from(*address))) {
            let instead = match service.selector {
                Some(_) => "select the pods behind it by label",
                None => "name the addresses of its backends",
            };
            let message = format!(
                "{cidr} holds {address}, the virtual address of Service {}/{}: policy sees its backends: {instead}",
                service.namespace, service.name
            );
            found.push(placed.finding(Check::BlockOfService, ".cidr", message));
        }
    }
}

/// Longest prefix that contains all addresses of a family.
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

fn placed<'a>(objects: &LintObjects<'a>, direction: Direction) -> Vec<Placed<'a>> {
    let list = peer_list(direction);
    let mut found = Vec::new();
    for (number, &policy) in objects.network.iter().enumerate() {
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
