//! Ranges of addresses, looked up in logarithmic time.

use ipnet::IpNet;

use crate::net::address::{Address, pack};

/// Addresses of some prefixes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AddressRanges {
    /// First and last address of each, in order. None overlaps the next one.
    ranges: Box<[(Address, Address)]>,
}

impl AddressRanges {
    pub(super) fn new(prefixes: &[IpNet]) -> AddressRanges {
        let bounds = |prefix: &IpNet| (pack(prefix.network()), pack(prefix.broadcast()));
        let mut ranges: Vec<(Address, Address)> = prefixes.iter().map(bounds).collect();
        ranges.sort_unstable();
        ranges.dedup_by(|next, last| {
            let overlaps = next.0 <= last.1;
            if overlaps {
                last.1 = last.1.max(next.1);
            }
            overlaps
        });
        AddressRanges { ranges: ranges.into() }
    }

    pub(super) fn contain(&self, address: Address) -> bool {
        let begun = self.ranges.partition_point(|(first, _)| *first <= address);
        begun.checked_sub(1).is_some_and(|at| address <= self.ranges[at].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_of_all_prefixes_and_no_others_are_in_the_ranges() {
        let prefixes =
            ["10.1.0.0/16", "10.1.2.0/24", "10.2.0.0/16", "192.0.2.7/32", "2001:db8::/32", "fd00::5/128"];
        let ranges = AddressRanges::new(&prefixes.map(|text| text.parse().unwrap()));
        let has = |text: &str| ranges.contain(pack(text.parse().unwrap()));
        for inside in
            ["10.1.0.0", "10.1.2.9", "10.1.3.0", "10.2.255.255", "192.0.2.7", "2001:db8:ffff::1", "fd00::5"]
        {
            assert!(has(inside), "{inside}");
        }
        for outside in
            ["10.0.255.255", "10.3.0.0", "192.0.2.6", "192.0.2.8", "2001:db9::", "fd00::4", "::a01:0"]
        {
            assert!(!has(outside), "{outside}");
        }
        assert!(!AddressRanges::default().contain(pack("10.0.0.1".parse().unwrap())));
    }
}
