//! Longest-prefix match for addresses of both families: peer classes, routes.

use std::net::IpAddr;

use ipnet::IpNet;

use super::exact_table::ExactTable;
use super::prefix_set::{Entry, PrefixSet};
use super::prefix_trie::{DENSE_NODES_MIN, NO_MATCH, PrefixTrie};
use crate::limits::BATCH_FRAMES_MAX;

/// Prefix length of a single IPv6 address.
const EXACT: u8 = 128;

/// Prefixes and their values, compiled for lookup.
///
/// One owner changes the table; readers have clones. A clone copies a list of shared pages, and a change
/// copies the pages that it writes, so the next generation costs as much as the difference.
#[derive(Clone)]
pub struct PrefixTable {
    v4: PrefixTrie,
    v6: PrefixTrie,
    /// IPv6 prefixes of 128 bits, except a few without room, which are in the trie.
    v6_exact: ExactTable,
}

impl Default for PrefixTable {
    fn default() -> PrefixTable {
        PrefixTable::build([])
    }
}

impl PrefixTable {
    /// Result of batched lookups without a match.
    pub const NO_MATCH: u32 = NO_MATCH;
    /// Largest value of a prefix.
    pub const VALUE_MAX: u32 = NO_MATCH - 1;

    /// Table of `prefixes`. Host bits are ignored; of equal prefixes the last one counts.
    pub fn build(prefixes: impl IntoIterator<Item = (IpNet, u32)>) -> PrefixTable {
        PrefixTable::build_with_default(prefixes, NO_MATCH)
    }

    /// Table of `prefixes`, with a value for all other addresses.
    pub fn build_with_default(prefixes: impl IntoIterator<Item = (IpNet, u32)>, default: u32) -> PrefixTable {
        PrefixTable::compile(prefixes, default, DENSE_NODES_MIN)
    }

    fn compile(
        prefixes: impl IntoIterator<Item = (IpNet, u32)>,
        default: u32,
        dense_nodes_min: usize,
    ) -> PrefixTable {
        let (mut v4, mut v6, mut v6_exact) = (Vec::new(), Vec::new(), Vec::new());
        for (prefix, value) in prefixes {
            let family = match prefix {
                IpNet::V4(_) => &mut v4,
                IpNet::V6(_) if prefix.prefix_len() == EXACT => &mut v6_exact,
                IpNet::V6(_) => &mut v6,
            };
            family.push(entry(prefix, value));
        }
        let (v6_exact, overfull) =
            exact_table(v6_exact.into_iter().map(|entry| (entry.bits, entry.value)).collect());
        v6.extend(overfull);
        PrefixTable {
            v4: PrefixTrie::new(u32::BITS, PrefixSet::new(v4), default, dense_nodes_min),
            v6: PrefixTrie::new(u128::BITS, PrefixSet::new(v6), default, dense_nodes_min),
            v6_exact,
        }
    }

    /// Number of prefixes.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len() + self.v6_exact.len()
    }

    /// Tests whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size of the compiled form in bytes, for both families, shared pages included.
    pub fn bytes(&self) -> usize {
        self.v4.bytes() + self.v6.bytes() + self.v6_exact.bytes()
    }

    /// Value of the longest prefix that contains `address`.
    pub fn lookup(&self, address: IpAddr) -> Option<u32> {
        match address {
            IpAddr::V4(address) => self.lookup_v4(address.to_bits()),
            IpAddr::V6(address) => self.lookup_v6(address.to_bits()),
        }
    }

    /// Value of the longest prefix that contains all of `prefix`, itself included.
    pub fn covering(&self, prefix: IpNet) -> Option<u32> {
        let Entry { bits, len, .. } = Entry::new(prefix, 0);
        let exact = || Some(self.v6_exact.find(bits)).filter(|&found| found != NO_MATCH);
        match prefix {
            IpNet::V4(_) => self.v4.covering(bits, len),
            IpNet::V6(_) if len == EXACT => exact().or_else(|| self.v6.covering(bits, len)),
            IpNet::V6(_) => self.v6.covering(bits, len),
        }
    }

    /// Value for an IPv4 address in host byte order.
    #[inline]
    pub fn lookup_v4(&self, address: u32) -> Option<u32> {
        Some(self.v4.find(address)).filter(|&found| found != NO_MATCH)
    }

    /// Value for an IPv6 address in host byte order.
    #[inline]
    pub fn lookup_v6(&self, address: u128) -> Option<u32> {
        let exact = self.v6_exact.find(address);
        let found = if exact == NO_MATCH { self.v6.find(address) } else { exact };
        Some(found).filter(|&found| found != NO_MATCH)
    }

    /// Looks up IPv4 addresses (host byte order). The result is [`PrefixTable::NO_MATCH`] without a match and
    /// without a default.
    #[inline]
    pub fn lookup_batch_v4(&self, addresses: &[u32], found: &mut [u32]) {
        self.v4.find_batch(addresses, found);
    }

    /// Looks up IPv6 addresses (host byte order). The result is [`PrefixTable::NO_MATCH`] without a match and
    /// without a default.
    #[inline]
    pub fn lookup_batch_v6(&self, addresses: &[u128], found: &mut [u32]) {
        assert_eq!(addresses.len(), found.len(), "one result for each address");
        if self.v6_exact.len() == 0 {
            return self.v6.find_batch(addresses, found);
        }
        let chunks = addresses.chunks(BATCH_FRAMES_MAX).zip(found.chunks_mut(BATCH_FRAMES_MAX));
        chunks.for_each(|(addresses, found)| self.lookup_chunk_v6(addresses, found));
    }

    /// Looks up single addresses first, and the remaining ones in the trie.
    fn lookup_chunk_v6(&self, addresses: &[u128], found: &mut [u32]) {
        for (&address, found) in addresses.iter().zip(&mut *found) {
            let bucket = self.v6_exact.bucket(address);
            *found = bucket as u32;
            self.v6_exact.prefetch(bucket);
        }
        let mut open = [0; BATCH_FRAMES_MAX];
        let mut count = 0;
        for (i, (&address, found)) in addresses.iter().zip(&mut *found).enumerate() {
            *found = self.v6_exact.find_in(*found as usize, address);
            open[count % BATCH_FRAMES_MAX] = i as u8;
            count += usize::from(*found == NO_MATCH);
        }
        if count > 0 {
            self.lookup_remaining_v6(addresses, found, &open[..count]);
        }
    }

    #[inline(never)]
    fn lookup_remaining_v6(&self, addresses: &[u128], found: &mut [u32], open: &[u8]) {
        let mut open_addresses = [0; BATCH_FRAMES_MAX];
        for (&i, address) in open.iter().zip(&mut open_addresses) {
            *address = addresses[i as usize];
        }
        let mut open_found = [NO_MATCH; BATCH_FRAMES_MAX];
        self.v6.find_batch(&open_addresses[..open.len()], &mut open_found[..open.len()]);
        for (&i, value) in open.iter().zip(open_found) {
            found[i as usize] = value;
        }
    }

    /// Adds a prefix or replaces its value. Returns the previous value.
    pub fn insert(&mut self, prefix: IpNet, value: u32) -> Option<u32> {
        let entry = entry(prefix, value);
        match prefix {
            IpNet::V4(_) => self.v4.insert(entry),
            IpNet::V6(_) if entry.len == EXACT => self.insert_exact(entry),
            IpNet::V6(_) => self.v6.insert(entry),
        }
    }

    /// Removes a prefix. Returns its value.
    pub fn remove(&mut self, prefix: IpNet) -> Option<u32> {
        let Entry { bits, len, .. } = Entry::new(prefix, 0);
        match prefix {
            IpNet::V4(_) => self.v4.remove(bits, len),
            IpNet::V6(_) if len == EXACT => self.v6_exact.remove(bits).or_else(|| self.v6.remove(bits, len)),
            IpNet::V6(_) => self.v6.remove(bits, len),
        }
    }

    fn insert_exact(&mut self, entry: Entry) -> Option<u32> {
        if self.v6.get(entry.bits, entry.len).is_some() {
            return self.v6.insert(entry);
        }
        let Ok(before) = self.v6_exact.insert(entry.bits, entry.value) else {
            return self.v6.insert(entry);
        };
        if self.v6_exact.is_overfull() {
            let (larger, overfull) = exact_table(self.v6_exact.iter().collect());
            self.v6_exact = larger;
            for entry in overfull {
                self.v6.insert(entry);
            }
        }
        before
    }
}

/// Exact-match table of these addresses, and the entries that find no room in it. Of equal addresses the last
/// one counts.
fn exact_table(addresses: Vec<(u128, u32)>) -> (ExactTable, Vec<Entry>) {
    let mut table = ExactTable::new(addresses.len());
    let mut overfull = Vec::new();
    for (bits, value) in addresses {
        if table.insert(bits, value).is_err() {
            overfull.push(Entry { bits, len: EXACT, value });
        }
    }
    (table, overfull)
}

fn entry(prefix: IpNet, value: u32) -> Entry {
    assert!(value <= PrefixTable::VALUE_MAX, "{prefix} leads to {value}, above {}", PrefixTable::VALUE_MAX);
    Entry::new(prefix, value)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Naive counterpart: a linear scan of all prefixes.
    fn linear_scan(prefixes: &BTreeMap<IpNet, u32>, address: IpAddr) -> Option<u32> {
        let covering = prefixes.iter().filter(|(prefix, _)| prefix.contains(&address));
        covering.max_by_key(|(prefix, _)| prefix.prefix_len()).map(|(_, &value)| value)
    }

    /// Generates addresses that often share leading bits.
    fn addresses() -> impl Strategy<Value = IpAddr> {
        let v4 = (any::<u32>(), 0..=32_u32, any::<u32>()).prop_map(|(a, keep, b)| {
            let kept = u32::MAX.checked_shl(32 - keep).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(0x0a01_02ff & kept | (a & b) & !kept))
        });
        let v6 = (any::<u128>(), 0..=128_u32, any::<u128>()).prop_map(|(a, keep, b)| {
            let kept = u128::MAX.checked_shl(128 - keep).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(
                0xfd00_0010_0244_0001_0000_0000_0000_01ff & kept | (a & b) & !kept,
            ))
        });
        prop_oneof![v4, v6]
    }

    fn prefixes() -> impl Strategy<Value = IpNet> {
        let len = prop_oneof![3 => 0..=128_u8, 1 => Just(128), 1 => Just(0)];
        (addresses(), len).prop_map(|(address, len)| {
            let max = if address.is_ipv4() { 32 } else { 128 };
            IpNet::new(address, if len == 128 { max } else { len % (max + 1) }).unwrap().trunc()
        })
    }

    /// First and last address of a prefix, and their neighbours.
    fn edges(prefix: &IpNet) -> Vec<IpAddr> {
        match prefix {
            IpNet::V4(net) => {
                let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
                let edges = [first, last, first.wrapping_sub(1), last.wrapping_add(1)];
                edges.map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))).to_vec()
            }
            IpNet::V6(net) => {
                let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
                let edges = [first, last, first.wrapping_sub(1), last.wrapping_add(1)];
                edges.map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))).to_vec()
            }
        }
    }

    fn agree(table: &PrefixTable, naive: &BTreeMap<IpNet, u32>, probes: &[IpAddr]) {
        assert_eq!(table.len(), naive.len());
        let probes: Vec<_> = naive.keys().flat_map(edges).chain(probes.iter().copied()).collect();
        let expected: Vec<_> = probes.iter().map(|&address| linear_scan(naive, address)).collect();
        let (mut v4, mut v6, mut expected_v4, mut expected_v6) = (vec![], vec![], vec![], vec![]);
        for (&address, &expected) in probes.iter().zip(&expected) {
            assert_eq!(table.lookup(address), expected, "{address} in {naive:?}");
            let expected = expected.unwrap_or(PrefixTable::NO_MATCH);
            match address {
                IpAddr::V4(address) => (v4.push(address.to_bits()), expected_v4.push(expected)),
                IpAddr::V6(address) => (v6.push(address.to_bits()), expected_v6.push(expected)),
            };
        }
        let mut found = vec![0; v4.len()];
        table.lookup_batch_v4(&v4, &mut found);
        assert_eq!(found, expected_v4);
        let mut found = vec![0; v6.len()];
        table.lookup_batch_v6(&v6, &mut found);
        assert_eq!(found, expected_v6);
    }

    proptest! {
        #![proptest_config(crate::random::cases(40))]

        #[test]
        fn finds_what_a_linear_scan_finds(
            prefixes in vec((prefixes(), 0..9_u32), 0..120),
            probes in vec(addresses(), 50),
            dense_nodes_min in prop_oneof![Just(0), Just(3), Just(DENSE_NODES_MIN)],
        ) {
            let table = PrefixTable::compile(prefixes.clone(), NO_MATCH, dense_nodes_min);
            agree(&table, &prefixes.into_iter().collect(), &probes);
        }

        #[test]
        fn changes_make_what_a_build_makes_and_leave_clones_alone(
            first in vec((prefixes(), 0..9_u32), 0..80),
            changes in vec((prefixes(), any::<prop::sample::Index>(), prop::option::of(0..9_u32)), 1..30),
            probes in vec(addresses(), 50),
            dense_nodes_min in prop_oneof![Just(0), Just(3), Just(DENSE_NODES_MIN)],
        ) {
            let mut table = PrefixTable::compile(first.clone(), NO_MATCH, dense_nodes_min);
            let mut naive: BTreeMap<_, _> = first.into_iter().collect();
            let earlier = (table.clone(), naive.clone());
            for (other, index, value) in changes {
                match value {
                    Some(value) => assert_eq!(table.insert(other, value), naive.insert(other, value)),
                    None if naive.is_empty() => assert_eq!(table.remove(other), None),
                    None => {
                        let there = *naive.keys().nth(index.index(naive.len())).unwrap();
                        assert_eq!(table.remove(there), naive.remove(&there));
                        assert_eq!(table.remove(other), naive.remove(&other));
                    }
                }
            }
            agree(&table, &naive, &probes);
            agree(&earlier.0, &earlier.1, &probes);
        }
    }

    #[test]
    fn memory_of_removed_prefixes_is_used_again() {
        let pod = |i: u32| IpNet::from(IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + i * 97)));
        let mut table = PrefixTable::build((0..2000).map(|i| (pod(i), i)));
        let bytes = table.bytes();
        for round in 1..20 {
            (0..2000).for_each(|i| assert_eq!(table.remove(pod(i)), Some(i + round - 1)));
            (0..2000).for_each(|i| assert_eq!(table.insert(pod(i), i + round), None));
        }
        assert!(table.bytes() <= 2 * bytes, "{} bytes grew to {}", bytes, table.bytes());
    }

    #[test]
    fn empty_table_takes_no_more_than_a_list_of_pages() {
        assert!(PrefixTable::default().is_empty());
        assert_eq!(PrefixTable::default().lookup("::1".parse().unwrap()), None);
        let table = PrefixTable::build_with_default([], 7);
        assert_eq!(table.lookup("192.0.2.1".parse().unwrap()), Some(7));
    }
}
