//! Set of addresses as disjoint prefixes.

use ipnet::IpNet;

/// Disjoint prefixes, sorted.
pub(in crate::policy::lint) struct Prefixes(Vec<IpNet>);

impl Prefixes {
    /// Set of the addresses of these prefixes.
    pub(in crate::policy::lint) fn of(prefixes: &[IpNet]) -> Prefixes {
        let mut apart = IpNet::aggregate(&prefixes.to_vec());
        apart.sort_unstable();
        Prefixes(apart)
    }

    /// Tests whether the set contains every address of a prefix.
    pub(in crate::policy::lint) fn hold(&self, prefix: IpNet) -> bool {
        self.before(prefix).is_some_and(|before| before.contains(&prefix))
    }

    /// Tests whether the set contains an address of a prefix.
    pub(in crate::policy::lint) fn overlap(&self, prefix: IpNet) -> bool {
        let after = self.0.partition_point(|other| other.network() <= prefix.network());
        self.before(prefix).is_some_and(|before| before.contains(&prefix) || prefix.contains(before))
            || self.0.get(after).is_some_and(|other| prefix.contains(other))
    }

    /// Last prefix that does not start after this one: the only one that can contain it.
    fn before(&self, prefix: IpNet) -> Option<&IpNet> {
        let after = self.0.partition_point(|other| other.network() <= prefix.network());
        self.0[..after].last()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use proptest::prelude::*;

    use super::*;

    fn prefix() -> impl Strategy<Value = IpNet> {
        (0..32_u32, 27..=32_u8).prop_map(|(bits, length)| {
            IpNet::new_assert(IpAddr::V4(Ipv4Addr::from_bits(bits)), length).trunc()
        })
    }

    proptest! {

        #![proptest_config(crate::random::cases(256))]

        #[test]
        fn a_set_holds_and_overlaps_what_its_addresses_say(
            list in prop::collection::vec(prefix(), 0..6), asked in prefix(),
        ) {
            let set = Prefixes::of(&list);
            let is_in = |bits: &u32| list.iter().any(|net| net.contains(&IpAddr::V4(Ipv4Addr::from_bits(*bits))));
            let of_asked = (0..32_u32).filter(|bits| asked.contains(&IpAddr::V4(Ipv4Addr::from_bits(*bits))));
            let (inside, outside): (Vec<u32>, Vec<u32>) = of_asked.partition(is_in);
            prop_assert_eq!(set.hold(asked), outside.is_empty());
            prop_assert_eq!(set.overlap(asked), !inside.is_empty());
            prop_assert!(!set.overlap("::/0".parse().unwrap()) && !set.hold("::1/128".parse().unwrap()));
        }
    }
}
