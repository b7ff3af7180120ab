//! Sets of addresses as ranges, and ranges as prefixes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::render::plan::Family;

/// Set of addresses of one family: inclusive ranges, sorted, which neither overlap nor touch.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ranges(Vec<(u128, u128)>);

impl Ranges {
    /// All addresses of a family.
    pub(super) fn all(family: Family) -> Ranges {
        Ranges(vec![(0, u128::MAX >> (128 - bits(family)))])
    }

    /// Addresses of prefixes with membership, in order: the longest prefix of an address decides.
    pub(super) fn of(prefixes: &[(IpNet, bool)]) -> Ranges {
        let mut builder = Builder { ranges: Ranges::default(), open: Vec::new(), next: Some(0) };
        for &(prefix, is_in) in prefixes {
            let (first, last) = (number(prefix.network()), number(prefix.broadcast()));
            while let Some(top) = builder.open.pop_if(|(end, _)| *end < first) {
                builder.close(top);
            }
            if let (Some(&(_, true)), Some(next)) = (builder.open.last(), builder.next)
                && next < first
            {
                builder.ranges.push(next, first - 1);
            }
            builder.next = Some(first);
            builder.open.push((last, is_in));
        }
        while let Some(top) = builder.open.pop() {
            builder.close(top);
        }
        builder.ranges
    }

    /// Tests for a set without addresses.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Addresses of either set.
    pub(super) fn union(&self, other: &Ranges) -> Ranges {
        let mut all: Vec<(u128, u128)> = self.0.iter().chain(&other.0).copied().collect();
        all.sort_unstable();
        let mut union = Ranges::default();
        all.into_iter().for_each(|(first, last)| union.push(first, last));
        union
    }

    /// Addresses of this set that another lacks.
    pub(super) fn without(&self, other: &Ranges) -> Ranges {
        let mut rest = Ranges::default();
        let mut others = other.0.iter().copied().peekable();
        for &(first, last) in &self.0 {
            let mut next = Some(first);
            while let Some(&(from, until)) = others.peek()
                && from <= last
            {
                if let Some(start) = next.filter(|start| until >= *start) {
                    if from > start {
                        rest.push(start, from - 1);
                    }
                    next = until.checked_add(1);
                }
                if until > last {
                    break;
                }
                others.next();
            }
            if let Some(start) = next.filter(|start| *start <= last) {
                rest.push(start, last);
            }
        }
        rest
    }

    /// Addresses of both sets.
    pub(super) fn intersection(&self, other: &Ranges) -> Ranges {
        self.without(&self.without(other))
    }

    /// Fewest prefixes that make up the set, in order.
    pub(super) fn prefixes(&self, family: Family) -> Vec<IpNet> {
        let width = bits(family);
        let mut prefixes = Vec::new();
        for &(first, last) in &self.0 {
            let mut next = Some(first);
            while let Some(start) = next.filter(|start| *start <= last) {
                // The largest block that begins here and ends in the range.
                let mut host = start.trailing_zeros().min(width);
                while host > 0 && end(start, host) > last {
                    host -= 1;
                }
                let length = u8::try_from(width - host).unwrap_or(u8::MAX);
                prefixes.push(IpNet::new_assert(address(start, family), length));
                next = end(start, host).checked_add(1);
            }
        }
        prefixes
    }

    /// Appends a range that begins after all others, or touches or overlaps the last.
    fn push(&mut self, first: u128, last: u128) {
        match self.0.last_mut() {
            Some((_, end)) if end.checked_add(1).is_none_or(|next| first <= next) => *end = last.max(*end),
            _ => self.0.push((first, last)),
        }
    }
}

/// Prefixes being traversed: the end and the membership of those that contain the next address.
struct Builder {
    ranges: Ranges,
    open: Vec<(u128, bool)>,
    next: Option<u128>,
}

impl Builder {
    fn close(&mut self, (end, is_in): (u128, bool)) {
        if let Some(next) = self.next.filter(|next| is_in && *next <= end) {
            self.ranges.push(next, end);
        }
        self.next = self.next.and_then(|next| if next <= end { end.checked_add(1) } else { Some(next) });
    }
}

/// Last address of a block with this many host bits.
fn end(start: u128, host: u32) -> u128 {
    start | 1_u128.checked_shl(host).map_or(u128::MAX, |size| size - 1)
}

fn bits(family: Family) -> u32 {
    match family {
        Family::V4 => 32,
        Family::V6 => 128,
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn address(number: u128, family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::from_bits(u32::try_from(number).unwrap_or(u32::MAX)).into(),
        Family::V6 => Ipv6Addr::from_bits(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefixes(text: &[(&str, bool)]) -> Vec<(IpNet, bool)> {
        text.iter().map(|&(prefix, is_in)| (prefix.parse().unwrap(), is_in)).collect()
    }

    fn shown(ranges: &Ranges, family: Family) -> Vec<String> {
        ranges.prefixes(family).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_block_without_its_exception_is_the_remaining_prefixes() {
        let block = Ranges::of(&prefixes(&[("1.1.1.0/24", true), ("1.1.1.0/26", false)]));
        assert_eq!(shown(&block, Family::V4), ["1.1.1.64/26", "1.1.1.128/25"]);
        let all = Ranges::of(&prefixes(&[("::/0", true), ("8000::/1", false)]));
        assert_eq!(shown(&all, Family::V6), ["::/1"]);
        assert_eq!(shown(&Ranges::all(Family::V6), Family::V6), ["::/0"]);
        let last = Ranges::of(&prefixes(&[("::/0", false), ("8000::/1", true)]));
        assert_eq!(shown(&Ranges::all(Family::V6).without(&last), Family::V6), ["::/1"]);
    }

    fn nested() -> impl Strategy<Value = Vec<(IpNet, bool)>> {
        let prefix = (0..32_u8, 27..=32_u8)
            .prop_map(|(host, length)| IpNet::new_assert([10, 0, 0, host].into(), length).trunc());
        proptest::collection::btree_map(prefix, any::<bool>(), 0..8).prop_map(|map| map.into_iter().collect())
    }

    fn is_in(set: &[(IpNet, bool)], address: IpAddr) -> bool {
        let longest = set.iter().filter(|(prefix, _)| prefix.contains(&address));
        longest.max_by_key(|(prefix, _)| prefix.prefix_len()).is_some_and(|&(_, is_in)| is_in)
    }

    proptest! {

        #![proptest_config(crate::random::cases(256))]

        #[test]
        fn sets_are_those_of_a_naive_reading(a in nested(), b in nested()) {
            let [left, right] = [&a, &b].map(|set| Ranges::of(set));
            let sets = [left.union(&right), left.without(&right), left.intersection(&right)];
            for host in 0..33 {
                let address = IpAddr::from([10, 0, 0, host]);
                let (a, b) = (is_in(&a, address), is_in(&b, address));
                for (set, expected) in sets.iter().zip([a || b, a && !b, a && b]) {
                    let covering =
                        set.prefixes(Family::V4).iter().filter(|prefix| prefix.contains(&address)).count();
                    prop_assert_eq!(covering, usize::from(expected), "{} of {:?}", address, set);
                }
            }
        }
    }
}
