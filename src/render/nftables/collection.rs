//! Sets and maps with their elements.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::render::plan::{AddressSet, comment};

/// Most elements that stand in one line.
const LINE_MAX: usize = 4;

/// Set, or verdict map.
#[derive(Debug)]
pub(super) struct Collection {
    kind: &'static str,
    note: String,
    /// Type and flags, separated by semicolons.
    declaration: String,
    /// Elements, with the verdicts of a map.
    elements: BTreeMap<Key, Option<String>>,
}

/// Key of an element.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// Addresses from the first to the last.
    Range(IpAddr, IpAddr),
    /// Source and destination.
    Pair(IpAddr, IpAddr),
    /// Interface and source.
    Binding(String, IpAddr),
    /// Interface.
    Interface(String),
}

impl Collection {
    pub(super) fn set(note: &str, declaration: String) -> Collection {
        Collection { kind: "set", note: comment(note), declaration, elements: BTreeMap::new() }
    }

    pub(super) fn map(note: &str, declaration: String) -> Collection {
        Collection { kind: "map", ..Collection::set(note, declaration) }
    }

    /// Adds elements of a set.
    pub(super) fn extend(&mut self, keys: impl IntoIterator<Item = Key>) {
        self.elements.extend(keys.into_iter().map(|key| (key, None)));
    }

    /// Adds an element of a map.
    pub(super) fn put(&mut self, key: Key, verdict: String) {
        self.elements.insert(key, Some(verdict));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// Prints the declaration with the elements.
    pub(super) fn print(&self, name: &str, text: &mut String) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n\t# {}\n\t{} {name} {{", self.note, self.kind);
        for line in self.declaration.split("; ") {
            let _ = writeln!(text, "\t\t{line}");
        }
        if !self.elements.is_empty() {
            text.push_str("\t\telements = ");
            list(self.elements.iter(), self.kind == "map", text);
            text.push('\n');
        }
        text.push_str("\t}\n");
    }

    /// Prints the command that declares the collection, without elements.
    pub(super) fn print_declaration(&self, table: &str, name: &str, text: &mut String) {
        let _ = writeln!(text, "add {} {table} {name} {{ {}; }}", self.kind, self.declaration);
    }

    /// Prints the command that deletes the collection.
    pub(super) fn print_deletion(&self, table: &str, name: &str, text: &mut String) {
        let _ = writeln!(text, "delete {} {table} {name}", self.kind);
    }

    /// Prints the commands that lead from the elements of `old`, if that exists, to these.
    pub(super) fn print_changes(&self, old: Option<&Collection>, table: &str, name: &str, text: &mut String) {
        let before = old.map(|old| &old.elements);
        let added: Vec<_> = self
            .elements
            .iter()
            .filter(|(key, verdict)| before.and_then(|old| old.get(key)) != Some(verdict))
            .collect();
        let removed = before.into_iter().flatten();
        let removed: Vec<_> =
            removed.filter(|(key, verdict)| self.elements.get(key) != Some(verdict)).collect();
        for (verb, elements) in [("delete", removed), ("add", added)] {
            if !elements.is_empty() {
                let _ = write!(text, "{verb} element {table} {name} ");
                list(elements.into_iter(), self.kind == "map", text);
                text.push('\n');
            }
        }
    }
}

/// Prints elements in braces.
fn list<'a>(
    elements: impl ExactSizeIterator<Item = (&'a Key, &'a Option<String>)>,
    is_map: bool,
    text: &mut String,
) {
    let (open, between, close) = if elements.len() <= LINE_MAX && !is_map || elements.len() == 1 {
        ("{ ", ", ", " }")
    } else {
        ("{\n\t\t\t", ",\n\t\t\t", "\n\t\t}")
    };
    text.push_str(open);
    for (place, (key, verdict)) in elements.enumerate() {
        if place > 0 {
            text.push_str(between);
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "{key}");
        if let Some(verdict) = verdict {
            let _ = write!(text, " : {verdict}");
        }
    }
    text.push_str(close);
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Range(first, last) if first == last => write!(f, "{first}"),
            Key::Range(first, last) => match prefix_of(*first, *last) {
                Some(prefix) => write!(f, "{prefix}"),
                None => write!(f, "{first}-{last}"),
            },
            Key::Pair(source, destination) => write!(f, "{source} . {destination}"),
            Key::Binding(interface, source) => write!(f, "\"{interface}\" . {source}"),
            Key::Interface(interface) => write!(f, "\"{interface}\""),
        }
    }
}

/// Prefix that has exactly these addresses.
fn prefix_of(first: IpAddr, last: IpAddr) -> Option<IpNet> {
    let differing = number(first) ^ number(last);
    let bits = if first.is_ipv4() { 32 } else { 128 };
    let host_bits = (128 - differing.leading_zeros()) as u8;
    let prefix = IpNet::new(first, bits - host_bits).ok()?;
    (prefix.network() == first && prefix.broadcast() == last).then_some(prefix)
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Addresses of a set as ranges that do not overlap, which intervals of a set must not. Two prefixes share a range
/// only within a third.
pub(super) fn ranges(addresses: &AddressSet) -> Vec<Key> {
    let Some((first, _)) = addresses.first() else { return Vec::new() };
    let address = |number: u128| match first {
        IpNet::V4(_) => IpAddr::V4(Ipv4Addr::from_bits(number as u32)),
        IpNet::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(number)),
    };
    let mut ranges = Vec::new();
    // Prefixes that contain the current address, with the next address that each has still to cover; `None` past
    // the last address of the family.
    let mut above: Vec<(bool, Option<u128>, u128)> = Vec::new();
    let mut cover = |&(is_in, next, last): &(bool, Option<u128>, u128), end: Option<u128>| {
        let end = end.map_or(Some(last), |end| end.checked_sub(1)).map(|end| end.min(last));
        if let (true, Some(next), Some(end)) = (is_in, next, end)
            && next <= end
        {
            ranges.push(Key::Range(address(next), address(end)));
        }
    };
    for &(prefix, is_in) in addresses {
        let (start, last) = (number(prefix.network()), number(prefix.broadcast()));
        while let Some(top) = above.last().copied().filter(|&(_, _, end)| end < start) {
            cover(&top, None);
            above.pop();
        }
        if let Some(top) = above.last_mut() {
            cover(top, Some(start));
            top.1 = last.checked_add(1);
        }
        above.push((is_in, Some(start), last));
    }
    while let Some(top) = above.pop() {
        cover(&top, None);
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges_of(prefixes: &[(&str, bool)]) -> Vec<String> {
        let set = prefixes.iter().map(|(prefix, is_in)| (prefix.parse().unwrap(), *is_in)).collect();
        ranges(&set).iter().map(Key::to_string).collect()
    }

    #[test]
    fn an_exception_splits_its_block() {
        let block = [("1.1.1.0/24", true), ("1.1.1.0/26", false)];
        assert_eq!(ranges_of(&block), ["1.1.1.64-1.1.1.255"]);
        let nested =
            [("10.0.0.0/8", true), ("10.1.0.0/16", false), ("10.1.2.3/32", true), ("10.9.0.0/32", false)];
        assert_eq!(
            ranges_of(&nested),
            ["10.0.0.0/16", "10.1.2.3", "10.2.0.0-10.8.255.255", "10.9.0.1-10.255.255.255"]
        );
    }

    #[test]
    fn the_ends_of_a_family_are_covered() {
        assert_eq!(ranges_of(&[("0.0.0.0/0", true)]), ["0.0.0.0/0"]);
        let ends = [("0.0.0.0/0", true), ("0.0.0.0/32", false), ("255.255.255.255/32", false)];
        assert_eq!(ranges_of(&ends), ["0.0.0.1-255.255.255.254"]);
        let last = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128";
        assert_eq!(
            ranges_of(&[("::/0", true), (last, false)]),
            ["::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"]
        );
    }
}
