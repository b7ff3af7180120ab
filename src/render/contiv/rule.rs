//! Rules of a table: networks, protocol, ports and action, in their total order.

use std::cmp::{Ordering, Reverse};
use std::fmt;

use ipnet::IpNet;

use super::allowed::{ALL_PORTS, Allowed, AllowedSets, PROTOCOLS, Ports};
use super::fold::Scope;
use super::peers::everyone;
use crate::net::flow::Protocol;
use crate::render::plan::Family;
use crate::tables::Direction;

/// Most rules of a table that stand for ports of ranges.
pub(in crate::render) const EXPANSION_MAX: usize = 4_096;

/// Rule. The first in order that matches decides: if one rule matches part of the traffic of another, it is first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::render) struct Rule {
    pub(in crate::render) source: IpNet,
    pub(in crate::render) destination: IpNet,
    /// Protocol; `None` for every protocol.
    pub(in crate::render) protocol: Option<Protocol>,
    /// Destination ports.
    pub(in crate::render) ports: Ports,
    pub(in crate::render) permits: bool,
}

impl Ord for Rule {
    fn cmp(&self, other: &Rule) -> Ordering {
        let protocol = |rule: &Rule| (rule.protocol.is_none(), rule.protocol);
        let ports = |rule: &Rule| (rule.ports == ALL_PORTS, rule.ports);
        compare_networks(&self.source, &other.source)
            .then_with(|| compare_networks(&self.destination, &other.destination))
            .then_with(|| protocol(self).cmp(&protocol(other)))
            .then_with(|| ports(self).cmp(&ports(other)))
            .then_with(|| self.permits.cmp(&other.permits))
    }
}

impl PartialOrd for Rule {
    fn partial_cmp(&self, other: &Rule) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Compares networks: a part is less than the whole, and IPv4 is less than IPv6.
fn compare_networks(a: &IpNet, b: &IpNet) -> Ordering {
    let key = |network: &IpNet| (network.broadcast(), Reverse(network.prefix_len()));
    key(a).cmp(&key(b))
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = self.protocol.map_or("ANY".to_owned(), |protocol| protocol.to_string());
        let port = if self.ports == ALL_PORTS { "ANY".to_owned() } else { self.ports.0.to_string() };
        let action = if self.permits { "PERMIT" } else { "DENY" };
        write!(f, "{action} {}[{protocol}:ANY] -> {}[{protocol}:{port}]", self.source, self.destination)
    }
}

/// System whose rules are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::render) struct Language {
    /// Name of the format.
    pub(in crate::render) name: &'static str,
    /// Whether a rule may have a range of ports, and SCTP as a protocol. Without, a rule has one port or all.
    pub(in crate::render) has_ranges: bool,
}

/// Property of a policy that rules cannot express.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::render) enum Obstacle {
    /// Verdict on SCTP, or on some of its ports, that differs from that on other protocols.
    Sctp,
    /// Ranges that need this many rules.
    Ranges(usize),
    /// Ports that need this many rules, because other rules are about parts of their networks.
    Overlaps(usize),
    /// Denied ports, or a denied protocol, of what another rule permits, where no rule that denies may be before it.
    DeniedPorts,
    /// Rule that permits, of whose networks this many remain without the denied ones.
    Pieces(usize),
}

/// Adds rules of a scope to a table. `direction` is that of policy: the peer is the source of ingress.
pub(in crate::render) fn push_rules(
    scope: &Scope,
    family: Family,
    direction: Direction,
    sets: &AllowedSets,
    language: Language,
    rules: &mut Vec<Rule>,
) -> Result<(), Obstacle> {
    let own = scope.own.map_or(everyone(family), IpNet::from);
    let entries = scope.peers.entries();
    let mut expanded = 0;
    for entry in entries {
        let above = entry.parent.map(|parent| sets.get(entries[parent].allowed));
        let own_set = sets.get(entry.allowed);
        for (protocol, ports, permits) in matches(own_set, above, language, &mut expanded)? {
            let (source, destination) = match direction {
                Direction::Ingress => (entry.prefix, own),
                Direction::Egress => (own, entry.prefix),
            };
            rules.push(Rule { source, destination, protocol, ports, permits });
        }
    }
    Ok(())
}

/// Match of a rule beside its networks, and whether it permits.
type Match = (Option<Protocol>, Ports, bool);

/// Matches with which traffic of a prefix is decided, above the rules of the prefix that contains it.
fn matches(
    own: &Allowed,
    above: Option<&Allowed>,
    language: Language,
    expanded: &mut usize,
) -> Result<Vec<Match>, Obstacle> {
    let mut matches = Vec::new();
    let above = above.filter(|above| above.others == own.others);
    for protocol in PROTOCOLS {
        let Some(is_allowed) = own.constant(protocol) else {
            if protocol == Protocol::SCTP {
                return Err(Obstacle::Sctp);
            }
            let expanded = (!language.has_ranges).then_some(&mut *expanded);
            ports(own, above, protocol, expanded, &mut matches)?;
            continue;
        };
        if protocol == Protocol::SCTP && is_allowed != own.others && !language.has_ranges {
            return Err(Obstacle::Sctp);
        }
        let inherited = above.map_or(Some(own.others), |above| above.constant(protocol));
        if inherited != Some(is_allowed) {
            matches.push((Some(protocol), ALL_PORTS, is_allowed));
        }
    }
    if above.is_none() {
        matches.push((None, ALL_PORTS, own.others));
    }
    Ok(matches)
}

/// Adds matches of a protocol on whose ports there is more than one verdict: of ranges, or of single ports that are
/// counted in `expanded`.
fn ports(
    own: &Allowed,
    above: Option<&Allowed>,
    protocol: Protocol,
    mut expanded: Option<&mut usize>,
    matches: &mut Vec<Match>,
) -> Result<(), Obstacle> {
    // No rule names port 0 alone, so its verdict is that on all ports which no rule names.
    let base = own.allows(protocol, 0);
    let inherited = above.map_or(own.others, |above| above.allows(protocol, 0));
    let named = match above {
        Some(above) if inherited == base => own.differing(above, protocol),
        _ => own.ports_with(protocol, !base),
    };
    for (first, last) in named {
        let Some(expanded) = &mut expanded else {
            let runs = own.runs(protocol, (first, last)).into_iter();
            matches.extend(runs.map(|(run, is_allowed)| (Some(protocol), run, is_allowed)));
            continue;
        };
        if first < last {
            **expanded += usize::from(last - first) + 1;
            if **expanded > EXPANSION_MAX {
                return Err(Obstacle::Ranges(**expanded));
            }
        }
        let single = |port| (Some(protocol), (port, port), own.allows(protocol, port));
        matches.extend((first..=last).map(single));
    }
    if inherited != base {
        matches.push((Some(protocol), ALL_PORTS, base));
    }
    Ok(())
}

/// Rule that permits all traffic of a family.
pub(in crate::render) fn permit_all(family: Family) -> Rule {
    let everyone = everyone(family);
    Rule { source: everyone, destination: everyone, protocol: None, ports: ALL_PORTS, permits: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(source: &str, destination: &str, protocol: Option<Protocol>, port: u16) -> Rule {
        let ports = if port == 0 { ALL_PORTS } else { (port, port) };
        let network = |text: &str| text.parse().unwrap();
        Rule { source: network(source), destination: network(destination), protocol, ports, permits: true }
    }

    #[test]
    fn a_rule_for_a_part_of_the_traffic_precedes_the_rule_for_the_whole() {
        let networks =
            ["10.0.0.0/8", "10.0.0.0/9", "10.0.0.0/32", "10.255.255.255/32", "0.0.0.0/0", "11.0.0.0/8"];
        let protocols = [Some(Protocol::TCP), Some(Protocol::UDP), None];
        let mut rules = Vec::new();
        for source in networks {
            for destination in networks {
                for protocol in protocols {
                    rules.extend([0, 80, 443].map(|port| rule(source, destination, protocol, port)));
                }
            }
        }
        let contains = |a: &Rule, b: &Rule| {
            a.source.contains(&b.source)
                && a.destination.contains(&b.destination)
                && (a.protocol.is_none() && a.ports == ALL_PORTS || a.protocol == b.protocol)
                && a.ports.0 <= b.ports.0
                && a.ports.1 >= b.ports.1
        };
        let mut pairs = 0;
        for a in &rules {
            for b in &rules {
                assert_eq!(a.cmp(b), b.cmp(a).reverse());
                assert_eq!(a.cmp(b) == Ordering::Equal, a == b);
                if a != b && contains(a, b) {
                    assert!(b < a, "{b} precedes {a}");
                    pairs += 1;
                }
            }
        }
        assert!(pairs > 1_000);
        // Transitive: sorting from any rotation gives one order.
        let mut sorted = rules.clone();
        sorted.sort();
        rules.rotate_left(100);
        rules.sort();
        assert_eq!(rules, sorted);
    }

    #[test]
    fn networks_of_ipv4_precede_those_of_ipv6() {
        let order = ["10.0.0.1/32", "10.0.0.0/8", "0.0.0.0/0", "2001:db8::1/128", "2001:db8::/32", "::/0"];
        let networks: Vec<IpNet> = order.iter().map(|text| text.parse().unwrap()).collect();
        assert!(networks.is_sorted_by(|a, b| compare_networks(a, b) == Ordering::Less));
    }
}
