//! Services that policy allows, by the prefix of the peer.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::allowed::{Allowed, AllowedId, AllowedSets};
use crate::render::plan::{AclPlan, Family, Peers, Plan};
use crate::tables::Verdict;

/// All addresses of a family.
pub(in crate::render) fn everyone(family: Family) -> IpNet {
    match family {
        Family::V4 => Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0).into(),
        Family::V6 => Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// Services by prefix. The longest prefix of an address decides. The first entry holds all addresses, and each other
/// entry differs from the one above it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::render) struct PeerMap(Vec<Entry>);

/// Services of one prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::render) struct Entry {
    /// Addresses.
    pub(in crate::render) prefix: IpNet,
    /// Services.
    pub(in crate::render) allowed: AllowedId,
    /// Index of the longest entry that contains this one.
    pub(in crate::render) parent: Option<usize>,
}

impl PeerMap {
    /// Map in which all addresses may use every service.
    pub(in crate::render) fn open(family: Family) -> PeerMap {
        PeerMap(vec![Entry { prefix: everyone(family), allowed: AllowedSets::EVERYTHING, parent: None }])
    }

    /// Tests whether all addresses may use every service.
    pub(in crate::render) fn is_open(&self) -> bool {
        self.0.len() == 1 && self.0[0].allowed == AllowedSets::EVERYTHING
    }

    /// Entries, each after those that contain it.
    pub(in crate::render) fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// Map of a rule list.
    pub(in crate::render) fn of_list(
        plan: &Plan,
        list: &AclPlan,
        family: Family,
        sets: &mut AllowedSets,
    ) -> PeerMap {
        let mut changes: BTreeMap<IpNet, Vec<(usize, bool)>> = BTreeMap::new();
        let mut change = |prefix: IpNet, rule: usize, is_in: bool| {
            changes.entry(prefix).or_default().push((rule, is_in));
        };
        let mut matching = Vec::with_capacity(list.rules.len());
        for (number, rule) in list.rules.iter().enumerate() {
            matching.push(matches!(rule.peers, Peers::Anyone | Peers::NotIn(_)));
            match &rule.peers {
                Peers::Anyone => {}
                Peers::In(set) => {
                    plan.sets[set]
                        .addresses
                        .iter()
                        .for_each(|&(prefix, is_in)| change(prefix, number, is_in));
                }
                Peers::NotIn(set) => {
                    plan.sets[set]
                        .addresses
                        .iter()
                        .for_each(|&(prefix, is_in)| change(prefix, number, !is_in));
                }
                Peers::Hosts(hosts) => {
                    hosts.iter().for_each(|&host| change(IpNet::from(host), number, true));
                }
            }
        }
        let mut known: HashMap<Vec<bool>, AllowedId, foldhash::fast::RandomState> = HashMap::default();
        let mut decide = |matching: &Vec<bool>| {
            *known.entry(matching.clone()).or_insert_with(|| sets.number_of(services(list, matching)))
        };
        let root = everyone(family);
        changes.entry(root).or_default();
        let mut builder = Builder::default();
        let mut above: Vec<(IpNet, Vec<bool>)> = Vec::new();
        for (prefix, changes) in changes {
            while above.last().is_some_and(|(last, _)| !last.contains(&prefix)) {
                above.pop();
            }
            let mut matching = above.last().map_or(&matching, |(_, matching)| matching).clone();
            changes.into_iter().for_each(|(rule, is_in)| matching[rule] = is_in);
            builder.push(prefix, decide(&matching));
            above.push((prefix, matching));
        }
        PeerMap(builder.entries)
    }

    /// Map of the services that each of these maps allows.
    pub(in crate::render) fn intersection(
        maps: &[&PeerMap],
        family: Family,
        sets: &mut AllowedSets,
    ) -> PeerMap {
        let mut prefixes: Vec<IpNet> =
            maps.iter().flat_map(|map| map.0.iter().map(|entry| entry.prefix)).collect();
        prefixes.push(everyone(family));
        prefixes.sort_unstable();
        prefixes.dedup();
        let mut builder = Builder::default();
        for prefix in prefixes {
            let both = |a, map: &&PeerMap| sets.intersection(a, map.within(prefix));
            builder.push(prefix, maps.iter().fold(AllowedSets::EVERYTHING, both));
        }
        PeerMap(builder.entries)
    }

    /// Map with other services for some addresses.
    pub(in crate::render) fn with_hosts(&self, hosts: &BTreeMap<IpAddr, AllowedId>) -> PeerMap {
        let entries = self.0.iter().map(|entry| (entry.prefix, entry.allowed));
        let mut all: BTreeMap<IpNet, AllowedId> = entries.collect();
        all.extend(hosts.iter().map(|(&host, &allowed)| (IpNet::from(host), allowed)));
        let mut builder = Builder::default();
        all.into_iter().for_each(|(prefix, allowed)| builder.push(prefix, allowed));
        PeerMap(builder.entries)
    }

    /// Services of an address.
    pub(in crate::render) fn at(&self, address: IpAddr) -> AllowedId {
        self.within(IpNet::from(address))
    }

    /// Services of the longest entry that contains a prefix.
    fn within(&self, prefix: IpNet) -> AllowedId {
        let mut index = self.0.partition_point(|entry| entry.prefix <= prefix).saturating_sub(1);
        while let Some(parent) = self.0[index].parent.filter(|_| !self.0[index].prefix.contains(&prefix)) {
            index = parent;
        }
        self.0[index].allowed
    }
}

/// Services that a list allows, with its rules that match.
fn services(list: &AclPlan, matching: &[bool]) -> Allowed {
    let mut allowed = Allowed::all(list.last == Verdict::Allow);
    // The first rule that matches decides, so it is the last to be applied.
    for (rule, _) in list.rules.iter().zip(matching).rev().filter(|(_, matches)| **matches) {
        let is_allowed = rule.verdict == Verdict::Allow;
        match &rule.services {
            None => allowed = Allowed::all(is_allowed),
            Some(spans) => spans.iter().for_each(|span| allowed.set(*span, is_allowed)),
        }
    }
    allowed
}

/// Entries in the making. Prefixes come in order.
#[derive(Default)]
struct Builder {
    entries: Vec<Entry>,
    /// Entries that may contain the next prefix.
    above: Vec<usize>,
}

impl Builder {
    fn push(&mut self, prefix: IpNet, allowed: AllowedId) {
        while self.above.last().is_some_and(|&last| !self.entries[last].prefix.contains(&prefix)) {
            self.above.pop();
        }
        let parent = self.above.last().copied();
        if parent.is_some_and(|parent| self.entries[parent].allowed == allowed) {
            return;
        }
        self.above.push(self.entries.len());
        self.entries.push(Entry { prefix, allowed, parent });
    }
}

/// Adds the prefixes that remain of one without some of its parts, which are sorted and apart.
pub(in crate::render) fn subtract(prefix: IpNet, holes: &[IpNet], pieces: &mut Vec<IpNet>) {
    match holes {
        [] => pieces.push(prefix),
        [hole, ..] if *hole == prefix => {}
        _ => {
            let halves = prefix.subnets(prefix.prefix_len() + 1).expect("a hole is longer");
            for half in halves {
                let inside: Vec<IpNet> = holes.iter().filter(|hole| half.contains(*hole)).copied().collect();
                subtract(half, &inside, pieces);
            }
        }
    }
}
