//! Services that policy allows, as a set that is a function of the verdicts alone.

use std::collections::HashMap;

use crate::net::flow::Protocol;
use crate::render::plan::Span;

/// Ports, inclusive.
pub(in crate::render) type Ports = (u16, u16);

/// Every port, with port 0.
pub(in crate::render) const ALL_PORTS: Ports = (0, u16::MAX);

/// Protocols with ports, in the order of the rules.
pub(in crate::render) const PROTOCOLS: [Protocol; 3] = [Protocol::TCP, Protocol::UDP, Protocol::SCTP];

/// Set of services: equal sets compare as equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::render) struct Allowed {
    /// Allowed ports of each of [`PROTOCOLS`]: sorted, with gaps between them.
    ports: [Vec<Ports>; 3],
    /// Whether all other protocols are allowed.
    pub(in crate::render) others: bool,
}

impl Allowed {
    /// Every service, or none.
    pub(in crate::render) fn all(is_allowed: bool) -> Allowed {
        let ports = || if is_allowed { vec![ALL_PORTS] } else { Vec::new() };
        Allowed { ports: [ports(), ports(), ports()], others: is_allowed }
    }

    /// Adds the ports of a span, or removes them.
    pub(in crate::render) fn set(&mut self, (protocol, first, last): Span, is_allowed: bool) {
        let Some(place) = PROTOCOLS.iter().position(|other| *other == protocol) else { return };
        let mut kept = without(&self.ports[place], (first, last));
        if is_allowed {
            let at = kept.partition_point(|ports| ports.0 < first);
            kept.insert(at, (first, last));
        }
        self.ports[place] = joined(kept);
    }

    /// Allowed ports of a protocol.
    pub(in crate::render) fn ports(&self, protocol: Protocol) -> &[Ports] {
        let place = PROTOCOLS.iter().position(|other| *other == protocol);
        &self.ports[place.expect("a protocol with ports")]
    }

    /// Tests whether a port is allowed.
    pub(in crate::render) fn allows(&self, protocol: Protocol, port: u16) -> bool {
        self.ports(protocol).iter().any(|ports| (ports.0..=ports.1).contains(&port))
    }

    /// Ports of a range by their verdicts: runs of one verdict, in order.
    pub(in crate::render) fn runs(&self, protocol: Protocol, range: Ports) -> Vec<(Ports, bool)> {
        let mut runs = Vec::new();
        for is_allowed in [true, false] {
            let within = |&(first, last): &Ports| {
                let run = (first.max(range.0), last.min(range.1));
                (run.0 <= run.1).then_some((run, is_allowed))
            };
            runs.extend(self.ports_with(protocol, is_allowed).iter().filter_map(within));
        }
        runs.sort_unstable();
        runs
    }

    /// Ports that are allowed, or that are not.
    pub(in crate::render) fn ports_with(&self, protocol: Protocol, is_allowed: bool) -> Vec<Ports> {
        if is_allowed { self.ports(protocol).to_vec() } else { complement(self.ports(protocol)) }
    }

    /// Verdict on all ports of a protocol, if it is one.
    pub(in crate::render) fn constant(&self, protocol: Protocol) -> Option<bool> {
        match self.ports(protocol) {
            [] => Some(false),
            [ALL_PORTS] => Some(true),
            _ => None,
        }
    }

    /// Ports on which two sets differ.
    pub(in crate::render) fn differing(&self, other: &Allowed, protocol: Protocol) -> Vec<Ports> {
        let (ours, theirs) = (self.ports(protocol), other.ports(protocol));
        let mut differing: Vec<Ports> = ours.to_vec();
        theirs.iter().for_each(|ports| differing = without(&differing, *ports));
        let mut rest: Vec<Ports> = theirs.to_vec();
        ours.iter().for_each(|ports| rest = without(&rest, *ports));
        differing.extend(rest);
        differing.sort_unstable();
        joined(differing)
    }

    fn intersection(&self, other: &Allowed) -> Allowed {
        let of = |place: usize| {
            let denied = complement(&other.ports[place]);
            denied.iter().fold(self.ports[place].clone(), |ports, gap| without(&ports, *gap))
        };
        Allowed { ports: [of(0), of(1), of(2)], others: self.others && other.others }
    }
}

/// Ports without those of a gap.
fn without(list: &[Ports], (first, last): Ports) -> Vec<Ports> {
    let mut kept = Vec::with_capacity(list.len() + 1);
    for &(low, high) in list {
        if high < first || low > last {
            kept.push((low, high));
            continue;
        }
        if low < first {
            kept.push((low, first - 1));
        }
        if high > last {
            kept.push((last + 1, high));
        }
    }
    kept
}

/// Ports with neighbours joined.
fn joined(list: Vec<Ports>) -> Vec<Ports> {
    let mut joined: Vec<Ports> = Vec::with_capacity(list.len());
    for ports in list {
        match joined.last_mut() {
            Some(last) if u32::from(last.1) + 1 >= u32::from(ports.0) => last.1 = last.1.max(ports.1),
            _ => joined.push(ports),
        }
    }
    joined
}

fn complement(list: &[Ports]) -> Vec<Ports> {
    list.iter().fold(vec![ALL_PORTS], |rest, ports| without(&rest, *ports))
}

/// Number of a set of services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::render) struct AllowedId(usize);

/// Distinct sets of services, with their intersections.
#[derive(Debug)]
pub(in crate::render) struct AllowedSets {
    sets: Vec<Allowed>,
    numbers: HashMap<Allowed, AllowedId, foldhash::fast::RandomState>,
    intersections: HashMap<(AllowedId, AllowedId), AllowedId, foldhash::fast::RandomState>,
}

impl AllowedSets {
    /// Set of every service.
    pub(in crate::render) const EVERYTHING: AllowedId = AllowedId(0);

    pub(in crate::render) fn new() -> AllowedSets {
        let mut sets =
            AllowedSets { sets: Vec::new(), numbers: HashMap::default(), intersections: HashMap::default() };
        sets.number_of(Allowed::all(true));
        sets
    }

    pub(in crate::render) fn number_of(&mut self, set: Allowed) -> AllowedId {
        let next = AllowedId(self.sets.len());
        *self.numbers.entry(set).or_insert_with_key(|set| {
            self.sets.push(set.clone());
            next
        })
    }

    pub(in crate::render) fn get(&self, id: AllowedId) -> &Allowed {
        &self.sets[id.0]
    }

    pub(in crate::render) fn intersection(&mut self, a: AllowedId, b: AllowedId) -> AllowedId {
        if a == b || b == AllowedSets::EVERYTHING {
            return a;
        }
        if a == AllowedSets::EVERYTHING {
            return b;
        }
        if let Some(&known) = self.intersections.get(&(a, b)) {
            return known;
        }
        let id = self.number_of(self.get(a).intersection(self.get(b)));
        self.intersections.insert((a, b), id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_follow_from_the_verdicts_alone() {
        let mut set = Allowed::all(false);
        set.set((Protocol::TCP, 80, 90), true);
        set.set((Protocol::TCP, 91, 95), true);
        set.set((Protocol::TCP, 85, 86), false);
        assert_eq!(set.ports(Protocol::TCP), [(80, 84), (87, 95)]);
        assert_eq!(set.ports_with(Protocol::TCP, false), [(0, 79), (85, 86), (96, 65_535)]);
        set.set((Protocol::TCP, 0, 65_535), true);
        assert_eq!((set.constant(Protocol::TCP), set.constant(Protocol::UDP)), (Some(true), Some(false)));
        set.set((Protocol::TCP, 65_535, 65_535), false);
        assert_eq!(set.differing(&Allowed::all(true), Protocol::TCP), [(65_535, 65_535)]);
        assert_eq!(set.differing(&Allowed::all(false), Protocol::TCP), [(0, 65_534)]);
        let runs = set.runs(Protocol::TCP, (65_000, 65_535));
        assert_eq!(runs, [((65_000, 65_534), true), ((65_535, 65_535), false)]);
    }

    #[test]
    fn an_intersection_allows_what_both_allow() {
        let mut sets = AllowedSets::new();
        let (mut a, mut b) = (Allowed::all(false), Allowed::all(true));
        a.set((Protocol::UDP, 10, 20), true);
        b.set((Protocol::UDP, 15, 15), false);
        let (a, b) = (sets.number_of(a), sets.number_of(b));
        let both = sets.intersection(a, b);
        assert_eq!(sets.get(both).ports(Protocol::UDP), [(10, 14), (16, 20)]);
        assert!(!sets.get(both).others && sets.intersection(b, a) == both);
        assert_eq!(sets.intersection(AllowedSets::EVERYTHING, a), a);
    }
}
