//! Dispatch to the chains of pods: a tree over the characters of interfaces, or the digits of addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::render::plan::{Endpoint, digest};

/// Most pods that one chain dispatches to. Above it each next character has a chain.
const CHAIN_MAX: usize = 10;
/// Longest path in the name of a chain.
const PATH_MAX: usize = 16;

/// Direction of a packet, seen from the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// From the pod.
    From,
    /// To the pod.
    To,
}

impl Side {
    pub(super) fn root(self) -> &'static str {
        self.choose("palisade-from", "palisade-to")
    }

    /// Prefix of chains of pods.
    pub(super) fn pod_prefix(self) -> &'static str {
        self.choose("pal-fw-", "pal-tw-")
    }

    /// Prefix of chains of interfaces.
    pub(super) fn interface_prefix(self) -> &'static str {
        self.choose("pal-fi-", "pal-ti-")
    }

    /// Prefix of groups of policies.
    pub(super) fn group_prefix(self) -> &'static str {
        self.choose("pal-go-", "pal-gi-")
    }

    /// Prefix of chains of policies.
    pub(super) fn policy_prefix(self) -> &'static str {
        self.choose("pal-po-", "pal-pi-")
    }

    /// Flag of the pod's address.
    pub(super) fn address_flag(self) -> &'static str {
        self.choose("-s", "-d")
    }

    /// Flag of the peer's address.
    pub(super) fn peer_flag(self) -> &'static str {
        self.choose("-d", "-s")
    }

    /// Word for the peer's address in the match on a set.
    pub(super) fn peer_word(self) -> &'static str {
        self.choose("dst", "src")
    }

    /// Rule that drops packets of interfaces whose names begin so, as at the end of Felix' dispatch: no pod of the state has
    /// them.
    pub(super) fn drop_from_others(self, prefix: &str) -> String {
        format!("{} {prefix}+ -j DROP", self.choose("-i", "-o"))
    }

    /// Rule lists of an address.
    pub(super) fn lists(self, endpoint: &Endpoint) -> &[String] {
        match self {
            Side::From => &endpoint.egress,
            Side::To => &endpoint.ingress,
        }
    }

    fn choose(self, from: &'static str, to: &'static str) -> &'static str {
        match self {
            Side::From => from,
            Side::To => to,
        }
    }
}

/// Destination of the dispatch.
#[derive(Debug)]
pub(super) struct Entry {
    key: Key,
    /// Characters of the interface, or digits of the address.
    path: String,
    /// Jump to the chain.
    target: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Interface,
    V4,
    V6,
}

impl Entry {
    pub(super) fn of_interface(name: &str, target: String) -> Entry {
        Entry { key: Key::Interface, path: name.to_owned(), target }
    }

    pub(super) fn of_address(address: IpAddr, target: String) -> Entry {
        match address {
            IpAddr::V4(address) => Entry { key: Key::V4, path: format!("{:08x}", address.to_bits()), target },
            IpAddr::V6(address) => {
                Entry { key: Key::V6, path: format!("{:032x}", address.to_bits()), target }
            }
        }
    }

    fn rule(&self, side: Side) -> String {
        format!("{} {}", matching(side, self.key, &self.path, true), self.target)
    }
}

/// Match on the entries whose paths begin with `path`, or are equal to it.
fn matching(side: Side, key: Key, path: &str, is_whole: bool) -> String {
    let bits = 4 * path.len();
    let number =
        |digits: usize| u128::from_str_radix(path, 16).map_or(0, |n| n << (4 * (digits - path.len())));
    match key {
        Key::Interface => {
            format!("{} {path}{}", side.choose("-i", "-o"), if is_whole { "" } else { "+" })
        }
        Key::V4 => format!("{} {}/{bits}", side.address_flag(), Ipv4Addr::from_bits(number(8) as u32)),
        Key::V6 => format!("{} {}/{bits}", side.address_flag(), Ipv6Addr::from_bits(number(32))),
    }
}

/// Rules of the chain that dispatches to the entries, which are sorted by path. Chains below it join `chains`.
pub(super) fn tree(side: Side, entries: &[Entry], chains: &mut BTreeMap<String, Vec<String>>) -> Vec<String> {
    if entries.len() <= CHAIN_MAX {
        return entries.iter().map(|entry| entry.rule(side)).collect();
    }
    let (first, last) = (&entries[0].path, &entries[entries.len() - 1].path);
    let common = first.bytes().zip(last.bytes()).take_while(|(a, b)| a == b).count();
    let mut rules = Vec::new();
    for group in entries.chunk_by(|a, b| a.path.as_bytes().get(common) == b.path.as_bytes().get(common)) {
        if let [only] = group {
            rules.push(only.rule(side));
            continue;
        }
        let path = &group[0].path[..=common];
        let short = if path.len() > PATH_MAX { digest(path) } else { path.to_owned() };
        let name = format!("{}{short}", side.choose("pal-fd-", "pal-td-"));
        rules.push(format!("{} -g {name}", matching(side, group[0].key, path, false)));
        let below = tree(side, group, chains);
        chains.insert(name, below);
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_leads_to_each_interface() {
        let names: Vec<String> = (0..30).map(|i| format!("veth{i}")).collect();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        let entries: Vec<Entry> =
            sorted.iter().map(|name| Entry::of_interface(name, format!("-g {name}"))).collect();
        let mut chains = BTreeMap::new();
        let root = tree(Side::From, &entries, &mut chains);
        assert_eq!(
            root[..3],
            ["-i veth0 -g veth0", "-i veth1+ -g pal-fd-veth1", "-i veth2+ -g pal-fd-veth2"]
        );
        // The chain of `veth1+` has eleven entries, and `veth1` itself comes first.
        assert_eq!(chains["pal-fd-veth1"].len(), 11);
        assert_eq!(chains["pal-fd-veth1"][0], "-i veth1 -g veth1");
        assert_eq!(chains["pal-fd-veth2"].len(), 11);
    }

    #[test]
    fn a_tree_of_addresses_has_prefixes_of_whole_digits() {
        let entries: Vec<Entry> = (0..=255)
            .map(|host| Entry::of_address(IpAddr::from([10, 1, 0, host]), "-g pod".to_owned()))
            .collect();
        let mut chains = BTreeMap::new();
        let root = tree(Side::To, &entries, &mut chains);
        assert_eq!((root.len(), root[1].as_str()), (16, "-d 10.1.0.16/28 -g pal-td-0a01001"));
        assert_eq!(chains["pal-td-0a01001"][2], "-d 10.1.0.18/32 -g pod");
    }
}
