//! Consistent hashing of flows to backends: the lookup table of Maglev (Eisenbud et al., NSDI 2016, section 3.4).
//!
//! Each backend has a permutation of the table's places, and the backends take turns to claim the first free place of
//! theirs. So the places are evenly divided, and a change of the backends moves few of them.

use std::net::{IpAddr, SocketAddr};

/// Sizes of tables: primes, so that every step visits all places. With 25 places or more for each backend, shares differ by
/// a few percent.
const SIZES: [usize; 6] = [251, 1021, 4093, 16381, 65521, 262_139];
const PLACES_PER_BACKEND: usize = 25;

/// Table of one list of backends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Maglev(Box<[u16]>);

impl Maglev {
    /// Lays out the table of these backends. The order of the list has no influence on the backend of a place.
    pub(super) fn new(backends: &[SocketAddr]) -> Maglev {
        if backends.len() < 2 {
            return Maglev(vec![0; backends.len()].into());
        }
        let wanted = backends.len() * PLACES_PER_BACKEND;
        let size = SIZES.into_iter().find(|size| *size >= wanted).unwrap_or(SIZES[SIZES.len() - 1]);
        let mut order: Vec<u16> = (0..backends.len() as u16).collect();
        order.sort_by_key(|backend| backends[usize::from(*backend)]);
        let mut places: Vec<Permutation> =
            order.iter().map(|backend| Permutation::of(&backends[usize::from(*backend)], size)).collect();
        let mut table = vec![u16::MAX; size];
        let mut free = size;
        loop {
            for (backend, places) in order.iter().zip(&mut places) {
                let place = places.find(|place| table[*place] == u16::MAX);
                table[place.unwrap_or_default()] = *backend;
                free -= 1;
                if free == 0 {
                    return Maglev(table.into());
                }
            }
        }
    }

    /// Index of the backend of a hash; `None` without backends.
    #[inline]
    pub(super) fn pick(&self, hash: u64) -> Option<usize> {
        let place = (u128::from(hash) * self.0.len() as u128) >> 64;
        self.0.get(place as usize).map(|backend| usize::from(*backend))
    }
}

/// Places of a table in the order of one backend.
struct Permutation {
    at: usize,
    step: usize,
    size: usize,
}

impl Permutation {
    fn of(backend: &SocketAddr, size: usize) -> Permutation {
        let [one, other] = hashes(backend);
        Permutation { at: one as usize % size, step: 1 + other as usize % (size - 1), size }
    }
}

impl Iterator for Permutation {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let place = self.at;
        self.at = (self.at + self.step) % self.size;
        Some(place)
    }
}

/// Two hashes of a backend, the same on every node and in every process.
fn hashes(backend: &SocketAddr) -> [u64; 2] {
    let address = match backend.ip() {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    let words = [(address >> 64) as u64, address as u64, u64::from(backend.port())];
    [0x9e37_79b9_7f4a_7c15_u64, 0xd6e8_feb8_6659_fd93].map(|seed| words.into_iter().fold(seed, mix))
}

/// Mixes a word into a hash.
#[inline]
pub(super) fn mix(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word ^ 0xe703_7ed1_a0b4_28db) * 0xa076_1d64_78bd_642f;
    let folded = (product >> 64) as u64 ^ product as u64;
    (folded ^ folded >> 32).wrapping_mul(0x9fb2_1c65_1e98_df25)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn backend(number: u32) -> SocketAddr {
        SocketAddr::from(((0x0a00_0000 + number).to_be_bytes(), 8080))
    }

    /// Table by the text of the paper, with the backends' addresses in place of their numbers.
    fn naive(backends: &[SocketAddr], size: usize) -> Vec<SocketAddr> {
        let mut sorted = backends.to_vec();
        sorted.sort();
        let mut next = vec![0; sorted.len()];
        let mut table = vec![None; size];
        while table.iter().any(Option::is_none) {
            for (n, backend) in sorted.iter().enumerate() {
                let [one, other] = hashes(backend);
                let (offset, skip) = (one as usize % size, other as usize % (size - 1) + 1);
                let mut place = (offset + next[n] * skip) % size;
                while table[place].is_some() {
                    next[n] += 1;
                    place = (offset + next[n] * skip) % size;
                }
                table[place] = Some(*backend);
                next[n] += 1;
                if table.iter().all(Option::is_some) {
                    break;
                }
            }
        }
        table.into_iter().flatten().collect()
    }

    fn by_address(backends: &[SocketAddr]) -> Vec<SocketAddr> {
        Maglev::new(backends).0.iter().map(|backend| backends[usize::from(*backend)]).collect()
    }

    #[test]
    fn shares_are_even_and_a_backend_that_leaves_moves_little_more_than_its_own() {
        for count in [2, 3, 10, 40, 100] {
            let all: Vec<SocketAddr> = (0..count).map(backend).collect();
            let table = by_address(&all);
            let mut shares: BTreeMap<SocketAddr, usize> = BTreeMap::new();
            table.iter().for_each(|backend| *shares.entry(*backend).or_default() += 1);
            let fair = table.len() / count as usize;
            assert!(
                shares.len() == count as usize
                    && shares.values().all(|share| (fair..=fair + 1).contains(share))
            );
            let left = &all[..all.len() - 1];
            let after = by_address(left);
            if after.len() == table.len() {
                let gone = all[all.len() - 1];
                let pairs = table.iter().zip(&after);
                let moved = pairs.filter(|(before, after)| **before != gone && before != after).count();
                assert!(moved * 5 <= table.len(), "{moved} of {} places move, {count} backends", table.len());
            }
        }
    }

    #[test]
    fn a_list_without_backends_has_none_and_one_backend_has_all() {
        assert_eq!(Maglev::new(&[]).pick(7), None);
        assert_eq!(Maglev::new(&[backend(1)]).pick(u64::MAX), Some(0));
        let two = Maglev::new(&[backend(1), backend(2)]);
        assert!([0, u64::MAX].into_iter().all(|hash| two.pick(hash).is_some()));
    }

    proptest! {

        #![proptest_config(crate::random::cases(256))]

        #[test]
        fn the_table_is_that_of_the_paper_in_any_order(
            numbers in prop::collection::btree_set(0..10_000u32, 2..30),
            turned in 0..30usize,
        ) {
            let mut backends: Vec<SocketAddr> = numbers.into_iter().map(backend).collect();
            let table = by_address(&backends);
            prop_assert_eq!(&naive(&backends, table.len()), &table);
            let turned = turned % backends.len();
            backends.rotate_left(turned);
            prop_assert_eq!(by_address(&backends), table);
        }
    }
}
