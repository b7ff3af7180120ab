//! Classes of addresses in rule tables.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::ids::ClassId;
use crate::tables::RuleTables;

/// Classes of addresses.
pub(super) struct Classes<'a> {
    tables: &'a RuleTables,
    /// Lengths of the prefixes of IPv4 and of IPv6, the longest first.
    lengths: [Vec<u8>; 2],
}

impl<'a> Classes<'a> {
    pub(super) fn new(tables: &'a RuleTables) -> Classes<'a> {
        let lengths = [true, false].map(|is_v4| {
            let of_family = tables.prefixes.keys().filter(|prefix| prefix.addr().is_ipv4() == is_v4);
            let lengths: BTreeSet<u8> = of_family.map(IpNet::prefix_len).collect();
            lengths.into_iter().rev().collect()
        });
        Classes { tables, lengths }
    }

    /// Class of the longest prefix of an address.
    pub(super) fn of(&self, address: IpAddr) -> ClassId {
        let lengths = &self.lengths[usize::from(!address.is_ipv4())];
        let class = |&length: &u8| {
            let prefix = IpNet::new(address, length).ok()?.trunc();
            self.tables.prefixes.get(&prefix).copied()
        };
        lengths.iter().find_map(class).unwrap_or(ClassId::WORLD)
    }
}
