//! Expansion of a rule list with denials into rules that allow.
//!
//! Services fall into atoms that every rule of the list covers or leaves out as a whole. The list allows each atom to
//! a set of addresses. Atoms with equal sets share the prefixes of the set.

use std::collections::{BTreeMap, HashMap};

use super::model::{Remote, RuleMatch, Service};
use super::ranges::Ranges;
use crate::net::flow::Protocol;
use crate::render::plan::{AclPlan, Family, Peers, Plan, Span};
use crate::tables::{Direction, Verdict};

const WITH_PORTS: [Protocol; 3] = [Protocol::TCP, Protocol::UDP, Protocol::SCTP];

/// Services that a list decides alike: a span of ports, or all protocols without ports (`None`).
type Atom = Option<Span>;

/// Rules that allow together the traffic of a list, or their number if it is above the limit.
pub(super) fn expand(
    plan: &Plan,
    list: &AclPlan,
    family: Family,
    max: usize,
) -> Result<Vec<RuleMatch>, usize> {
    let sets = allowed(plan, list, family);
    let mut by_set: BTreeMap<&Ranges, Vec<Atom>> = BTreeMap::new();
    sets.iter().for_each(|(atom, set)| by_set.entry(set).or_default().push(*atom));
    let everything = by_set.keys().fold(Ranges::all(family), |everything, set| everything.intersection(set));
    let mut rules = Rules { direction: list.direction, family, list: Vec::new(), max };
    rules.add(&everything.prefixes(family), &[None])?;
    for (set, atoms) in by_set {
        let rest = set.without(&everything);
        if rest.is_empty() {
            continue;
        }
        // Rules may overlap: the set itself may have fewer prefixes than its rest.
        let (rest, whole) = (rest.prefixes(family), set.prefixes(family));
        rules.add(if rest.len() < whole.len() { &rest } else { &whole }, &services(&atoms, family))?;
    }
    Ok(rules.list)
}

/// Addresses to which a list allows each atom.
fn allowed(plan: &Plan, list: &AclPlan, family: Family) -> Vec<(Atom, Ranges)> {
    let peers: Vec<Ranges> = list.rules.iter().map(|rule| ranges(plan, &rule.peers, family)).collect();
    let mut known: HashMap<Vec<usize>, Ranges> = HashMap::new();
    let sets = atoms(list).into_iter().map(|atom| {
        let covers = |services: &Option<Vec<Span>>| match (services, atom) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(spans), Some((protocol, first, _))) => {
                let after = spans.partition_point(|span| (span.0, span.1) <= (protocol, first));
                after > 0 && spans[after - 1].0 == protocol && spans[after - 1].2 >= first
            }
        };
        let of_atom: Vec<usize> =
            (0..list.rules.len()).filter(|&place| covers(&list.rules[place].services)).collect();
        let set = known.entry(of_atom).or_insert_with_key(|places| {
            let last = match list.last {
                Verdict::Allow => Ranges::all(family),
                Verdict::Deny => Ranges::default(),
            };
            // The first rule that matches decides.
            places.iter().rev().fold(last, |set, &place| match list.rules[place].verdict {
                Verdict::Allow => set.union(&peers[place]),
                Verdict::Deny => set.without(&peers[place]),
            })
        });
        (atom, set.clone())
    });
    sets.collect()
}

fn ranges(plan: &Plan, peers: &Peers, family: Family) -> Ranges {
    let set = |name: &String| Ranges::of(&plan.sets[name].addresses);
    match peers {
        Peers::Anyone => Ranges::all(family),
        Peers::In(name) => set(name),
        Peers::NotIn(name) => Ranges::all(family).without(&set(name)),
        Peers::Hosts(hosts) => {
            let mut hosts: Vec<_> = hosts.iter().map(|&host| (host.into(), true)).collect();
            hosts.sort_unstable();
            Ranges::of(&hosts)
        }
    }
}

/// Atoms of a list, in order.
fn atoms(list: &AclPlan) -> Vec<Atom> {
    let mut atoms = vec![None];
    for protocol in WITH_PORTS {
        let mut starts = vec![0_u32];
        let spans = list.rules.iter().filter_map(|rule| rule.services.as_ref()).flatten();
        for &(_, first, last) in spans.filter(|span| span.0 == protocol) {
            starts.extend([u32::from(first), u32::from(last) + 1]);
        }
        starts.sort_unstable();
        starts.dedup();
        let ends = starts.iter().skip(1).map(|start| start - 1).chain([u32::from(u16::MAX)]);
        let spans = starts.iter().zip(ends).filter_map(|(&first, last)| {
            Some(Some((protocol, u16::try_from(first).ok()?, u16::try_from(last).ok()?)))
        });
        atoms.extend(spans);
    }
    atoms
}

/// Matches of a rule of Neutron on these atoms.
fn services(atoms: &[Atom], family: Family) -> Vec<Service> {
    let mut spans: Vec<Span> = Vec::new();
    for &(protocol, first, last) in atoms.iter().flatten() {
        match spans.last_mut() {
            Some(before) if before.0 == protocol && u32::from(before.2) + 1 == u32::from(first) => {
                before.2 = last;
            }
            _ => spans.push((protocol, first, last)),
        }
    }
    let ports = |(protocol, first, last): Span| match (first, last) {
        (0, u16::MAX) => Some((protocol, None)),
        // Neutron has no port 0.
        (_, 0) => None,
        _ => Some((protocol, Some((first.max(1), last)))),
    };
    let mut services: Vec<_> = spans.into_iter().filter_map(ports).map(Some).collect();
    if atoms.contains(&None) {
        let others = (0..=u8::MAX).map(Protocol).filter(|protocol| !protocol.has_ports());
        services.extend(others.filter(|&protocol| is_of(protocol, family)).map(|other| Some((other, None))));
    }
    services
}

/// Tests whether Neutron takes a protocol by its number for a family: IPv4 has none of IPv6 (41 encapsulation, 43
/// routing, 44 fragment, 58 `ICMPv6`, 59 no next header, 60 options), and ICMP for IPv6 means `ICMPv6`.
fn is_of(protocol: Protocol, family: Family) -> bool {
    match family {
        Family::V4 => !matches!(protocol.0, 41 | 43 | 44 | 58..=60),
        Family::V6 => protocol != Protocol::ICMP,
    }
}

/// Rules of a list, up to a limit.
struct Rules {
    direction: Direction,
    family: Family,
    list: Vec<RuleMatch>,
    max: usize,
}

impl Rules {
    /// Adds a rule for each prefix and service.
    fn add(&mut self, prefixes: &[ipnet::IpNet], services: &[Service]) -> Result<(), usize> {
        let found = self.list.len() + prefixes.len() * services.len();
        if found > self.max {
            return Err(found);
        }
        for prefix in prefixes {
            let remote = match prefix.prefix_len() {
                0 => Remote::Anyone,
                _ => Remote::Prefix(*prefix),
            };
            self.list.extend(services.iter().map(|&service| RuleMatch {
                direction: self.direction,
                family: self.family,
                service,
                remote: remote.clone(),
            }));
        }
        Ok(())
    }
}
