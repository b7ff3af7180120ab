//! Numbers of identities: a function of the keys that are numbered, in which few keys displace others.
//!
//! The hash of a key is its place and its priority. If the place is taken, the next free one is the number. A new key
//! moves another only if both have the same place and the new one has priority.

use std::collections::{BTreeSet, HashMap};

use crate::render::plan::digest;

/// Range of numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    pub(super) first: u32,
    pub(super) count: u32,
}

/// Numbers of identities that are the same in the whole cluster (256 to 65535).
pub(super) const CLUSTER: Range = Range { first: 256, count: (1 << 16) - 256 };
/// Numbers of identities of address blocks (`IdentityScopeLocal`).
pub(super) const CIDR: Range = Range { first: (1 << 24) + 1, count: (1 << 24) - 1 };
/// Numbers of identities of nodes (`IdentityScopeRemoteNode`).
pub(super) const REMOTE_NODE: Range = Range { first: (2 << 24) + 1, count: (1 << 24) - 1 };

/// Assigns a number to each key; `None` if there are more keys than numbers.
pub(super) fn assign<'k>(
    keys: impl IntoIterator<Item = &'k str>,
    range: Range,
) -> Option<HashMap<&'k str, u32>> {
    let mut ordered: Vec<(u64, &str)> = keys.into_iter().map(|key| (hash(key), key)).collect();
    ordered.sort_unstable();
    ordered.dedup();
    if ordered.len() > range.count as usize {
        return None;
    }
    let mut free_from = Taken::default();
    let number = |(hash, key): (u64, &'k str)| {
        let wanted = u32::try_from(hash % u64::from(range.count)).unwrap_or(0);
        (key, range.first + free_from.take(wanted, range.count))
    };
    Some(ordered.into_iter().map(number).collect())
}

/// Places that have a key.
#[derive(Default)]
struct Taken(BTreeSet<u32>);

impl Taken {
    /// Takes the first free place from this one on, in a circle.
    fn take(&mut self, wanted: u32, count: u32) -> u32 {
        let mut place = wanted;
        while !self.0.insert(place) {
            place = (place + 1) % count;
        }
        place
    }
}

fn hash(key: &str) -> u64 {
    u64::from_str_radix(&digest(key), 16).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_distinct_and_few_move_with_a_new_key() {
        let keys: Vec<String> = (0..2_000).map(|number| format!("app=a{number}")).collect();
        let all = assign(keys.iter().map(String::as_str), CLUSTER).unwrap();
        let distinct: BTreeSet<u32> = all.values().copied().collect();
        assert_eq!(distinct.len(), keys.len());
        assert!(distinct.iter().all(|number| (256..=65_535).contains(number)));
        let reversed = assign(keys.iter().rev().map(String::as_str), CLUSTER).unwrap();
        assert_eq!(all, reversed);
        let fewer = assign(keys[1..].iter().map(String::as_str), CLUSTER).unwrap();
        let moved = fewer.iter().filter(|(key, number)| all[*key] != **number).count();
        assert!(moved <= 2, "{moved}");
    }

    #[test]
    fn a_range_is_used_up_to_its_last_number() {
        let keys: Vec<String> = (0..5).map(|number| number.to_string()).collect();
        let range = Range { first: 10, count: 4 };
        let numbers = assign(keys[..4].iter().map(String::as_str), range).unwrap();
        assert_eq!(numbers.values().copied().collect::<BTreeSet<u32>>(), (10..14).collect());
        assert!(assign(keys.iter().map(String::as_str), range).is_none());
    }
}
