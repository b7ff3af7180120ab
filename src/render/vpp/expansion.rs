//! Matches of session rules for the services that each prefix of peers may use.
//!
//! A table of session rules (`mma_template.c` of VPP) is a tree: a rule is below one that contains it, and a packet
//! descends into the first rule that matches. Lookup and insertion follow the lowest address and port of a rule. So
//! the answer depends on the order of rules as soon as two overlap of which neither contains the other: a port of
//! a network, and all ports of a part of it. These matches overlap in that way only if all that is in both has one
//! verdict and the lowest addresses differ; else the port is split into the prefixes that remain. Then the
//! narrowest rule decides, whatever the order of those of equal width.

use std::collections::BTreeMap;

use ipnet::IpNet;

use crate::net::flow::Protocol;
use crate::render::contiv::allowed::{Allowed, AllowedId, AllowedSets, Ports};
use crate::render::contiv::peers::{PeerMap, subtract};
use crate::render::contiv::rule::{EXPANSION_MAX, Obstacle};

/// Match on a peer and a port of the pod or the peer, and its verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Match {
    /// Peers.
    pub(super) prefix: IpNet,
    /// Port; 0 for all.
    pub(super) port: u16,
    /// Verdict.
    pub(super) permits: bool,
}

/// Prefix with its services, and its own matches.
struct Node<'a> {
    prefix: IpNet,
    allowed: &'a Allowed,
    /// Verdict on all ports that no match names.
    base: bool,
    /// Whether the base differs from that of the next wider prefix, or from that of an empty table.
    has_base: bool,
    /// Ports with matches of their own.
    ports: Vec<Ports>,
    /// End of the nodes within this one, which follow it.
    end: usize,
}

/// Matches for the peers of a map and one protocol.
pub(super) fn matches(
    peers: &PeerMap,
    sets: &AllowedSets,
    protocol: Protocol,
) -> Result<Vec<Match>, Obstacle> {
    let nodes = nodes(peers, sets, protocol);
    let mut matches = Vec::new();
    let mut expanded = 0;
    for (place, node) in nodes.iter().enumerate() {
        if node.has_base {
            matches.push(Match { prefix: node.prefix, port: 0, permits: node.base });
        }
        for &(first, last) in &node.ports {
            let width = usize::from(last - first) + 1;
            expanded += if width > 1 { width } else { 0 };
            if expanded > EXPANSION_MAX {
                return Err(Obstacle::Ranges(expanded));
            }
            for port in first..=last {
                let permits = node.allowed.allows(protocol, port);
                let pieces = pieces(&nodes, place, protocol, port);
                expanded += pieces.len().saturating_sub(1);
                if expanded > EXPANSION_MAX {
                    return Err(Obstacle::Overlaps(expanded));
                }
                matches.extend(pieces.into_iter().map(|prefix| Match { prefix, port, permits }));
            }
        }
    }
    Ok(matches)
}

/// Nodes of a map, each before those that it contains. VPP itself keeps redirections to a proxy in the rule of all
/// addresses, so that the widest prefixes are its halves.
fn nodes<'a>(peers: &PeerMap, sets: &'a AllowedSets, protocol: Protocol) -> Vec<Node<'a>> {
    let (root, entries) = peers.entries().split_first().expect("a map has an entry for all addresses");
    let mut all: BTreeMap<IpNet, AllowedId> =
        entries.iter().map(|entry| (entry.prefix, entry.allowed)).collect();
    let halves = root.prefix.subnets(1).expect("1 is a length");
    halves.for_each(|half| _ = all.entry(half).or_insert(root.allowed));
    let mut nodes: Vec<Node> = Vec::with_capacity(all.len());
    let mut above: Vec<usize> = Vec::new();
    for (prefix, id) in all {
        while let Some(last) = above.pop_if(|last| !nodes[*last].prefix.contains(&prefix)) {
            nodes[last].end = nodes.len();
        }
        let wider = above.last().map_or(sets.get(AllowedSets::EVERYTHING), |last| nodes[*last].allowed);
        let allowed = sets.get(id);
        // No rule names port 0 alone, so its verdict is that on all ports which no rule names.
        let base = allowed.allows(protocol, 0);
        let has_base = base != wider.allows(protocol, 0);
        let ports =
            if has_base { allowed.ports_with(protocol, !base) } else { allowed.differing(wider, protocol) };
        above.push(nodes.len());
        nodes.push(Node { prefix, allowed, base, has_base, ports, end: 0 });
    }
    let end = nodes.len();
    above.into_iter().for_each(|place| nodes[place].end = end);
    nodes
}

/// Prefixes for the match of a node on a port: its own, or what remains beside the narrower matches.
fn pieces(nodes: &[Node], place: usize, protocol: Protocol, port: u16) -> Vec<IpNet> {
    let node = &nodes[place];
    let verdict = node.allowed.allows(protocol, port);
    let is_harmless = |(inner, at): (&Node, usize)| {
        let mut within = nodes[at..inner.end].iter();
        inner.base == verdict
            && inner.prefix.network() != node.prefix.network()
            && within.all(|node| node.allowed.allows(protocol, port) == verdict)
    };
    let within = || nodes[place + 1..node.end].iter().zip(place + 1..);
    if within().filter(|(inner, _)| inner.has_base).all(is_harmless) {
        return vec![node.prefix];
    }
    let names_port = |inner: &Node| inner.ports.iter().any(|ports| (ports.0..=ports.1).contains(&port));
    let mut holes: Vec<IpNet> = Vec::new();
    for (inner, _) in within().filter(|(inner, _)| inner.has_base || names_port(inner)) {
        if holes.last().is_none_or(|hole| !hole.contains(&inner.prefix)) {
            holes.push(inner.prefix);
        }
    }
    let mut pieces = Vec::new();
    subtract(node.prefix, &holes, &mut pieces);
    pieces
}
